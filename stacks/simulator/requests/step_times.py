"""Seconds of a step at any load, interpolated in small tables of the planner's prediction.

A unit's ranks step together, so attention takes as long as on the fullest rank. Experts take as long as for the mean,
since all ranks' tokens are spread over them. A table has three axes: the load of the fullest attention group, the KV
that each of its tokens reads, and the mean load as a share of the fullest. It is interpolated linearly.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from planner.compiler import Compiled
from planner.estimate.performance import PhaseOutlook
from planner.estimate.throughput.predict import prompt_step_seconds, token_step_seconds
from planner.facts.terms import Phase
from stacks.simulator.speed import Level, known_case, slowdown

__all__ = ["PhaseSpeed", "StepTable", "predicted_speeds"]

FULLNESS = (0.0, 0.25, 0.5, 1.0)
POINTS = 9  # on the axes of loads and of contexts
LEAST_SHARE = 1e-3  # the least mean, as a share of the fullest: it is never 0
MOST_CONTEXT = 131_072.0  # tokens; a longer context takes as long as this one
LEAST_CONTEXT = 64.0


@dataclass(frozen=True)
class StepTable:
    """The seconds of a step at each point of three ascending axes.

    A value beyond an axis counts as the end of that axis.
    """

    loads: tuple[float, ...]
    contexts: tuple[float, ...]
    fullness: tuple[float, ...]
    seconds: tuple[float, ...]  # the last axis varies fastest

    def seconds_at(self, load: float, context: float, fullness: float) -> float:
        """Return a step's seconds, interpolated linearly between the eight points of the table around these values."""
        axes = (self.loads, load), (self.contexts, context), (self.fullness, fullness)
        (i, x), (j, y), (k, z) = (_locate(axis, value) for axis, value in axes)
        rows, columns = len(self.contexts), len(self.fullness)
        total = 0.0
        for a, b, c in CORNERS:
            weight = (x if a else 1 - x) * (y if b else 1 - y) * (z if c else 1 - z)
            if weight:
                total += weight * self.seconds[((i + a) * rows + j + b) * columns + k + c]
        return total


CORNERS = tuple(product((0, 1), repeat=3))


@dataclass(frozen=True)
class PhaseSpeed:
    """The speed of a phase's units: tables of the seconds of their prefill steps, their decode steps, or both."""

    prompts: StepTable | None
    tokens: StepTable | None
    step_tokens: int  # prompt tokens that a rank computes in one step
    transfer_s_per_token: float = 0.0  # seconds to send a token's KV to the next phase
    tokens_per_step: float = 1.0  # tokens that a request gets in a step: more than 1 with drafts


def predicted_speeds(plan: Compiled, level: Level) -> dict[Phase, PhaseSpeed]:
    """Return phase -> its predicted speed in `plan`, at `level` of the predicted range."""
    found = {}
    for outlook in plan.speed:
        phase, prediction, point = outlook.phase, outlook.prediction, known_case(outlook).point
        transfer = prediction.kv_transfer_seconds if prediction is not None else None
        found[phase] = PhaseSpeed(
            prompts=_prompt_table(outlook, level) if phase != "decode" else None,
            tokens=_token_table(outlook, level, plan.spec.phase(phase).max_requests) if phase != "prefill" else None,
            step_tokens=int(point.step_tokens),
            transfer_s_per_token=transfer / point.prompt_tokens if transfer else 0.0,
            tokens_per_step=point.accepted_tokens,
        )
    return found


def _token_table(outlook: PhaseOutlook, level: Level, most: float) -> StepTable:
    """Return a table of seconds per token, over a group's requests (up to `most`) and the KV tokens of each request."""
    case = known_case(outlook)
    return _table(
        _geometric(1.0, max(most, 2.0)),
        lambda load, context, share: slowdown(outlook, level) * token_step_seconds(case, load, context, share),
    )


def _prompt_table(outlook: PhaseOutlook, level: Level) -> StepTable:
    """Return a table of seconds per prefill step, over a group's tokens and the KV tokens that each of them reads."""
    case = known_case(outlook)
    prompt = max(case.point.computed_tokens, 1.0)
    return _table(
        _geometric(16.0, max(case.point.step_tokens, 32.0)),
        lambda load, context, share: slowdown(outlook, level) * prompt_step_seconds(case, load, context, prompt, share),
    )


def _table(loads: tuple[float, ...], seconds: Callable[[float, float, float], float]) -> StepTable:
    contexts = _geometric(LEAST_CONTEXT, MOST_CONTEXT)
    values = [seconds(x, y, max(z, LEAST_SHARE)) for x in loads for y in contexts for z in FULLNESS]
    return StepTable(loads, contexts, FULLNESS, tuple(values))


def _geometric(first: float, last: float) -> tuple[float, ...]:
    return tuple(first * (last / first) ** (place / (POINTS - 1)) for place in range(POINTS))


def _locate(axis: Sequence[float], value: float) -> tuple[int, float]:
    """Return (index of the axis point below `value`, fraction of the way to the next point)."""
    low = min(max(bisect_right(axis, value) - 1, 0), len(axis) - 2)
    return low, min(max((value - axis[low]) / (axis[low + 1] - axis[low]), 0.0), 1.0)
