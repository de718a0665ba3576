"""How full prefill is kept where `slo` promises a TTFT and the spec writes no `utilisation`.

A prompt's mean TTFT is its own steps, the steps that it waits for its turn, and the read of what a cache has:

    TTFT = (prompt_steps + queued_steps) x step + read      as `throughput/predict.py` has it

The highest utilisation that keeps the promise follows, in closed form. What prefill is worth at it is what a layout
is chosen by and what a day is planned with: the rate of a saturated phase would keep the promise for nobody who waits.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count, takewhile
from math import floor

from planner.estimate.throughput.predict import Case, Prediction, prompt_reading
from planner.estimate.throughput.queue import utilisation_of
from planner.facts.terms import Phase
from planner.spec.resolved import ResolvedSpec
from planner.spec.schema import Spec
from planner.spec.undecided import is_undecided

__all__ = [
    "KEPT",
    "LEAST",
    "LEAST_OFFERED",
    "as_full_as_promised",
    "follows_from_promise",
    "highest_utilisation",
    "share_of_highest",
    "shorter_steps",
]

KEPT = 0.99  # of the SLO, since a layout's balance is known only when its map is found: within 0.9 % of TPOT
LEAST = 0.5  # assumed: whoever has to wait for less is better served by shorter steps than by units that idle
LEAST_OFFERED = 0.05  # to whoever promises less: assumed, nobody pays for units that do nothing
STEP_TOKENS = "operating_point.prefill.step_tokens"
SHORTEST_STEP = 512  # tokens: as few as a search tries
STEPS = 1000  # of a utilisation, which is rounded down


def as_full_as_promised(spec: ResolvedSpec, case: Case, rate: float) -> Case:
    """Return the case at the highest utilisation at which its mean TTFT is within what `slo` promises.

    `rate` is the case's saturated rate, in computed tokens/s of one GPU. The case is unchanged where its utilisation
    does not follow from the promise. Below half, it is half: the promise is broken then.
    """
    promised, point = spec.written.slo.ttft_ms, case.point
    if promised is None or not follows_from_promise(spec.written, case.phase):
        return case
    step = point.step_tokens / case.unit.attention_tp / rate
    used = _within(KEPT * promised / 1e3 - prompt_reading(case), step, point.prompt_steps)
    return replace(case, point=replace(point, utilisation=max(used, LEAST)))


def highest_utilisation(found: Prediction, promised_ms: float) -> float:
    """Return the highest utilisation at which prefill keeps a TTFT; 0 where a prompt that never waits breaks it."""
    assert found.ttft_seconds is not None
    steps, reading = found.point.prompt_steps, found.cache_read_seconds
    step = (found.ttft_seconds.mid - reading) / (steps + found.point.queued_steps)
    return _within(promised_ms / 1e3 - reading, step, steps)


def share_of_highest(found: Prediction, promised_ms: float | None) -> float:
    """Return the share that a phase uses of what it may without breaking its TTFT; 1 where it breaks it or has none."""
    if promised_ms is None or found.phase != "prefill":
        return 1.0
    return found.point.utilisation / max(highest_utilisation(found, promised_ms), found.point.utilisation)


def shorter_steps(spec: ResolvedSpec) -> tuple[str, Sequence[int]]:
    """Return the field that says how long prefill's steps are, and shorter ones, for which a prompt waits less.

    They are powers of two, from the largest on; none where auto decides the field.
    """
    point, autos = spec.written.operating_point.prefill, spec.document.autos
    path, step_tokens = "prefill.max_batch_tokens", spec.phase("prefill").max_batch_tokens
    if point is not None and not is_undecided(point.step_tokens) and STEP_TOKENS not in autos:
        path, step_tokens = STEP_TOKENS, point.step_tokens
    if path in autos:
        return path, ()
    steps = takewhile(lambda each: each < step_tokens, (SHORTEST_STEP * 2**power for power in count()))
    return path, tuple(steps)[::-1]


def follows_from_promise(spec: Spec, phase: Phase) -> bool:
    """Whether a phase's utilisation follows from the TTFT that `slo` promises."""
    point = spec.operating_point.prefill
    is_written = point is not None and point.utilisation is not None
    return phase == "prefill" and spec.slo.ttft_ms is not None and not is_written


def _within(seconds: float, step: float, prompt_steps: int) -> float:
    """Return the highest utilisation at which a prompt's mean wait and its own steps take no more than `seconds`.

    It is rounded down, and 0 where the prompt's own steps take longer. `step` is a step's seconds.
    """
    wait = max(seconds / step - prompt_steps, 0.0)
    return floor(STEPS * utilisation_of(wait)) / STEPS
