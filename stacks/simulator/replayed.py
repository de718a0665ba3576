"""Traces that were played: a column for each variant of the spec and each balancer, with its figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.plan.estimated import Estimated
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.fix import for_example
from planner.spec.check import ResolvedSpec
from runtime.gateway.ranks.router import Policy
from stacks.simulator.columns import Variant, checked, part_of, planned
from stacks.simulator.figures import Figure
from stacks.simulator.latency import QUANTILES
from stacks.simulator.replay import Replay, replay
from stacks.simulator.trace import TraceRequest, in_window

__all__ = ["REPLAY_FIGURES", "ReplayColumn", "play_traces"]

Values = NDArray[np.float64]


@dataclass(frozen=True)
class ReplayColumn:
    """One column."""

    title: str
    variant: Variant
    plan: Estimated
    replay: Replay

    @cached_property
    def ttft(self) -> Values:
        """Seconds from each request to its first token, ascending."""
        return np.sort([job.first_token - job.at for job in self.replay.jobs])

    @cached_property
    def tpot(self) -> Values:
        """Seconds between two tokens of each answer, on average over the answer, ascending."""
        jobs = (job for job in self.replay.jobs if job.output > 1)
        return np.sort([(job.done - job.first_token) / (job.output - 1) for job in jobs])

    @property
    def prompt_tokens(self) -> int:
        """Return the tokens of all prompts that were answered."""
        return sum(job.prompt for job in self.replay.jobs)

    def kept(self, values: Values, promised_ms: float | None) -> float | None:
        """Return the share of requests that keep a promise; one that was refused does not. None where none came."""
        came = self.replay.refused + len(self.replay.jobs)
        if promised_ms is None or not came:
            return None
        lost = self.replay.refused / came
        return float(np.mean(values <= promised_ms / 1e3)) * (1 - lost) if len(values) else 1 - lost

    def per_second(self, tokens: Callable[[Replay], float]) -> float:
        """Return a rate over the time until the last request was done."""
        return tokens(self.replay) / self.replay.seconds if self.replay.seconds else 0.0


def play_traces(
    spec: ResolvedSpec,
    variants: Sequence[Variant],
    policies: Sequence[Policy],
    trace: Sequence[TraceRequest],
    window: tuple[float, float],
    tell: Callable[[str, float], None] = lambda _, __: None,
) -> tuple[tuple[ReplayColumn, ...], tuple[Finding, ...]]:
    """Return what becomes of the part of `trace` in `window` with each variant of `spec` and each balancer.

    With it comes why other variants cannot be planned.

    Raises CallError where no request is in the window, and what `play_columns` raises.
    """
    if not in_window(trace, *window):
        rule, last = "R414 must hold a request of the trace", trace[-1].at
        reason = f"its {len(trace):,} requests come within {last:,.0f} s"
        finding = Finding("--window", "-".join(map(str, window)), rule, reason, for_example(f"0-{last:.0f}"))
        raise CallError([finding.at("tidemill simulate")])
    found, failed, specs = list[ReplayColumn](), list[Finding](), checked(spec, variants)
    for number, (variant, changed) in enumerate(zip(variants, specs, strict=True)):
        part = part_of(tell, variant.title, number * len(policies), len(variants) * len(policies))
        plan = planned(changed, variant, part, failed)
        if plan is None:
            continue
        requests = in_window(trace, *window, variant.scale)
        for place, policy in enumerate(policies):
            title = variant.title if len(policies) == 1 else f"{variant.title}, {policy.value}"
            part = part_of(tell, title, number * len(policies) + place, len(variants) * len(policies))
            found.append(ReplayColumn(title, variant, plan, replay(plan, requests, policy, tell=part)))
    return tuple(found), tuple(failed)


def _latency(kind: str, quantile: float, form: str, factor: float, unit: str) -> Figure[ReplayColumn]:
    percentile = f"p{quantile * 100:g}"

    def value(one: ReplayColumn) -> float | None:
        values: Values = getattr(one, kind)
        return float(np.quantile(values, quantile)) * 1e3 if len(values) else None

    return Figure(f"{kind}_{percentile}_ms", f"{kind.upper()} {percentile}, {unit}", value, form, factor)


def _mean(one: ReplayColumn, name: str) -> float:
    return float(np.mean([getattr(each, name) for each in one.replay.samples]))


REPLAY_FIGURES: tuple[Figure[ReplayColumn], ...] = (
    *(_latency("ttft", each, ",.2f", 1e-3, "s") for each in QUANTILES),
    *(_latency("tpot", each, ",.1f", 1.0, "ms") for each in QUANTILES),
    Figure("ttft_kept", "TTFT kept", lambda one: one.kept(one.ttft, one.plan.spec.slo.ttft_ms), ".2%"),
    Figure("tpot_kept", "TPOT kept", lambda one: one.kept(one.tpot, one.plan.spec.slo.tpot_ms), ".2%"),
    Figure("done", "requests done", lambda one: len(one.replay.jobs), ",.0f", has_zeros=True),
    Figure("refused", "refused with 429", lambda one: one.replay.refused, ",.0f"),
    Figure("too_long", "refused as too long", lambda one: one.replay.too_long, ",.0f"),
    Figure("seconds", "until all are done, s", lambda one: one.replay.seconds, ",.1f"),
    Figure(
        "prompt_tokens_per_s",
        "prompt tokens/s",
        lambda one: one.per_second(lambda _: one.prompt_tokens),
        ",.0f",
    ),
    Figure(
        "output_tokens_per_s",
        "output tokens/s",
        lambda one: one.per_second(lambda found: sum(job.output for job in found.jobs)),
        ",.0f",
    ),
    Figure(
        "cache_hit_rate",
        "cache hits",
        lambda one: sum(job.hits for job in one.replay.jobs) / one.prompt_tokens if one.prompt_tokens else None,
        ".1%",
    ),
    Figure(
        "prompt_busy",
        "prompt units busy",
        lambda one: one.per_second(lambda found: found.prompt_busy_s / max(found.num_prompt_units, 1)),
        ".1%",
    ),
    Figure(
        "peak_queue",
        "prompts in queue, most",
        lambda one: max(each.queued_prompts for each in one.replay.samples),
        ",.0f",
    ),
    Figure("running", "requests at tokens, mean", lambda one: _mean(one, "running"), ",.1f"),
    Figure("kv_used", "KV in use, mean", lambda one: _mean(one, "kv_used"), ".2%"),
    Figure("kv_most", "KV in use, fullest rank", lambda one: _mean(one, "kv_most"), ".2%"),
)
