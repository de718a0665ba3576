"""Traces that were played: a column for each variant of the spec and each balancer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.compiler import Compiled
from planner.facts.trace import TraceRequest
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.fix import for_example
from planner.spec.resolved import ResolvedSpec
from runtime.gateway.ranks.router import Policy
from stacks.simulator.requests.replay import Replay, replay
from stacks.simulator.requests.trace import select_window
from stacks.simulator.variants import Variant, check_variants, part_progress, plan_variant

__all__ = ["ReplayColumn", "Values", "play_traces"]

Values = NDArray[np.float64]


@dataclass(frozen=True)
class ReplayColumn:
    """The result of playing a trace on one variant's plan with one balancer."""

    title: str
    variant: Variant
    plan: Compiled
    replay: Replay

    @cached_property
    def ttft(self) -> Values:
        """The TTFT of each answered request in seconds, ascending."""
        return np.sort([job.first_token - job.at for job in self.replay.jobs])

    @cached_property
    def tpot(self) -> Values:
        """The TPOT of each answer with two or more tokens in seconds, ascending."""
        jobs = (job for job in self.replay.jobs if job.output > 1)
        return np.sort([(job.done - job.first_token) / (job.output - 1) for job in jobs])

    @property
    def prompt_tokens(self) -> int:
        """The number of prompt tokens over all answered requests."""
        return sum(job.prompt for job in self.replay.jobs)

    def share_kept(self, values: Values, promised_ms: float | None) -> float | None:
        """Return the fraction of requests whose latency is within `promised_ms`; None without a promise or requests.

        `values` are the latencies of the answered requests, in seconds. Refused requests count as too late.
        """
        came = self.replay.refused + len(self.replay.jobs)
        if promised_ms is None or not came:
            return None
        lost = self.replay.refused / came
        return float(np.mean(values <= promised_ms / 1e3)) * (1 - lost) if len(values) else 1 - lost

    def rate_per_s(self, tokens: Callable[[Replay], float]) -> float:
        """Return `tokens(replay)` per second, over the seconds until the last request was done."""
        return tokens(self.replay) / self.replay.seconds if self.replay.seconds else 0.0


def play_traces(
    spec: ResolvedSpec,
    variants: Sequence[Variant],
    policies: Sequence[Policy],
    trace: Sequence[TraceRequest],
    window: tuple[float, float],
    on_progress: Callable[[str, float], None] = lambda _, __: None,
) -> tuple[tuple[ReplayColumn, ...], tuple[Finding, ...]]:
    """Return (columns, errors): the results of playing a trace, and the errors of variants that cannot be planned.

    Plays the part of `trace` in `window` (start and end in seconds) with each variant of `spec` and each balancer.
    Raises CallError if no request is in the window, and the same errors as `play_days`.
    """
    if not select_window(trace, *window):
        rule, last = "R414 must hold a request of the trace", trace[-1].at
        reason = f"its {len(trace):,} requests come within {last:,.0f} s"
        finding = Finding("--window", "-".join(map(str, window)), rule, reason, for_example(f"0-{last:.0f}"))
        raise CallError([finding.at("tidemill simulate")])
    found, failed, specs = list[ReplayColumn](), list[Finding](), check_variants(spec, variants)
    for number, (variant, changed) in enumerate(zip(variants, specs, strict=True)):
        part = part_progress(on_progress, variant.title, number * len(policies), len(variants) * len(policies))
        plan = plan_variant(changed, variant, part, failed)
        if plan is None:
            continue
        requests = select_window(trace, *window, variant.scale)
        for place, policy in enumerate(policies):
            title = variant.title if len(policies) == 1 else f"{variant.title}, {policy.value}"
            part = part_progress(on_progress, title, number * len(policies) + place, len(variants) * len(policies))
            found.append(ReplayColumn(title, variant, plan, replay(plan, requests, policy, on_progress=part)))
    return tuple(found), tuple(failed)
