"""Seconds of steps at any load, out of small tables of the planner's prediction.

A unit's ranks step together and wait for the fullest of them: for its attention. Experts of all ranks share all tokens,
so they see the mean. A table has three axes: how much the fullest attention group has, how much KV each of its tokens
reads, and what the mean of all groups has of the fullest. Between its points it is linear.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from planner.estimate.performance import PhaseOutlook
from planner.estimate.throughput.predict import prompt_step_seconds, token_step_seconds
from planner.facts.terms import Phase
from planner.plan.estimated import Estimated
from stacks.simulator.service import Level, case_of_outlook, slower

__all__ = ["PhaseSpeed", "StepTable", "predicted_speeds"]

FULLNESS = (0.0, 0.25, 0.5, 1.0)
POINTS = 9  # of each other axis
LEAST_SHARE = 1e-3  # of a mean: some token is computed
MOST_CONTEXT = 131_072.0  # tokens; beyond it the table goes on as at its end
LEAST_CONTEXT = 64.0


@dataclass(frozen=True)
class StepTable:
    """Seconds at each point of three axes, each ascending; nearest at the ends beyond them."""

    loads: tuple[float, ...]
    contexts: tuple[float, ...]
    fullness: tuple[float, ...]
    seconds: tuple[float, ...]  # the last axis varies fastest

    def at(self, load: float, context: float, fullness: float) -> float:
        """Return the seconds at a point, linear between the eight around it."""
        axes = (self.loads, load), (self.contexts, context), (self.fullness, fullness)
        (i, x), (j, y), (k, z) = (_place(axis, value) for axis, value in axes)
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
    """How fast the units of a phase are: what each kind of step takes, where they have such steps."""

    prompts: StepTable | None
    tokens: StepTable | None
    step_tokens: int  # of prompts that a rank computes in one step
    transfer_s_per_token: float = 0.0  # of KV to the next phase
    tokens_per_step: float = 1.0  # of a request: more with drafts


def predicted_speeds(plan: Estimated, level: Level) -> dict[Phase, PhaseSpeed]:
    """Return the speed of each phase of `plan`, as it is predicted."""
    found = {}
    for outlook in plan.outlooks:
        phase, prediction, point = outlook.phase, outlook.prediction, case_of_outlook(outlook).point
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
    """Return the seconds of a token: its load is a group's requests, at most `most`; its context the KV of each."""
    case = case_of_outlook(outlook)
    return _table(
        _geometric(1.0, max(most, 2.0)),
        lambda load, context, share: slower(outlook, level) * token_step_seconds(case, load, context, share),
    )


def _prompt_table(outlook: PhaseOutlook, level: Level) -> StepTable:
    """Return the step of prompts: its load is the tokens that a group computes, its context what each of them reads."""
    case = case_of_outlook(outlook)
    prompt = max(case.point.computed_tokens, 1.0)
    return _table(
        _geometric(16.0, max(case.point.step_tokens, 32.0)),
        lambda load, context, share: slower(outlook, level) * prompt_step_seconds(case, load, context, prompt, share),
    )


def _table(loads: tuple[float, ...], seconds: Callable[[float, float, float], float]) -> StepTable:
    contexts = _geometric(LEAST_CONTEXT, MOST_CONTEXT)
    values = [seconds(x, y, max(z, LEAST_SHARE)) for x in loads for y in contexts for z in FULLNESS]
    return StepTable(loads, contexts, FULLNESS, tuple(values))


def _geometric(first: float, last: float) -> tuple[float, ...]:
    return tuple(first * (last / first) ** (place / (POINTS - 1)) for place in range(POINTS))


def _place(axis: Sequence[float], value: float) -> tuple[int, float]:
    """Return the point below `value`, and how far from it to the next one `value` is."""
    low = min(max(bisect_right(axis, value) - 1, 0), len(axis) - 2)
    return low, min(max((value - axis[low]) / (axis[low + 1] - axis[low]), 0.0), 1.0)
