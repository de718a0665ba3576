"""Choose prefill's utilisation (the used share of its saturated rate) if `slo` has a TTFT and the spec sets none.

A prompt's mean TTFT is the time of its own steps, of the steps that it waits in the queue, and of reading its cached
KV:

    TTFT = (prompt_steps + queued_steps) x step + read      see `throughput/predict.py`

The highest utilisation that meets the SLO follows in closed form. Layouts are chosen, and days planned, by prefill's
rate at this utilisation. At the saturated rate, no prompt that waits would meet the SLO.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count, takewhile
from math import floor

from planner.estimate.throughput.predict import Case, Prediction, prompt_read_time
from planner.estimate.throughput.queue import utilisation_at_wait
from planner.facts.terms import Phase
from planner.spec.resolved import ResolvedSpec
from planner.spec.schema import Spec
from planner.spec.undecided import is_undecided

SLO_MARGIN = 0.99  # share of the SLO to plan for: until a layout's map is found, its balance may change TPOT by 0.9 %
MIN_UTILISATION = 0.5  # assumed: below that, shorter steps serve better than idle units
MIN_OFFERED_UTILISATION = 0.05  # assumed: nobody pays for units that are idle for more than 95 % of the time
STEP_TOKENS = "operating_point.prefill.step_tokens"
SHORTEST_STEP = 512  # tokens; the search tries no shorter steps
ROUNDING_STEPS = 1000  # utilisations are rounded down to thousandths


def with_promised_utilisation(spec: ResolvedSpec, case: Case, rate: float) -> Case:
    """Return `case` at the highest utilisation whose mean TTFT meets the SLO, but at least MIN_UTILISATION.

    `rate` is the case's saturated rate, in computed tokens/s of one GPU. The case is unchanged if it is not prefill, or
    if the spec has no TTFT or writes the utilisation. If MIN_UTILISATION is too much for the TTFT, the prediction
    misses the SLO.
    """
    promised, point = spec.written.slo.ttft_ms, case.point
    if promised is None or not is_set_by_ttft(spec.written, case.phase):
        return case
    step = point.step_tokens / case.unit.attention_tp / rate
    used = _max_utilisation(SLO_MARGIN * promised / 1e3 - prompt_read_time(case), step, point.prompt_steps)
    return replace(case, point=replace(point, utilisation=max(used, MIN_UTILISATION)))


def highest_utilisation(found: Prediction, promised_ms: float) -> float:
    """Return the highest utilisation at which prefill's mean TTFT meets `promised_ms`; 0 if none does."""
    assert found.ttft_seconds is not None
    steps, reading = found.point.prompt_steps, found.cache_read_seconds
    step = (found.ttft_seconds.mid - reading) / (steps + found.point.queued_steps)
    return _max_utilisation(promised_ms / 1e3 - reading, step, steps)


def relative_utilisation(found: Prediction, promised_ms: float | None) -> float:
    """Return prefill's utilisation over the highest one that meets the TTFT SLO; 1 if the SLO is missed or absent."""
    if promised_ms is None or found.phase != "prefill":
        return 1.0
    return found.point.utilisation / max(highest_utilisation(found, promised_ms), found.point.utilisation)


def shorter_steps(spec: ResolvedSpec) -> tuple[str, Sequence[int]]:
    """Return (path of the field that sets prefill's step length, shorter lengths, at which prompts wait less).

    The lengths are powers of two in tokens, largest first; none if `auto` decides the field.
    """
    point, autos = spec.written.operating_point.prefill, spec.document.autos
    path, step_tokens = "prefill.max_batch_tokens", spec.phase("prefill").max_batch_tokens
    if point is not None and not is_undecided(point.step_tokens) and STEP_TOKENS not in autos:
        path, step_tokens = STEP_TOKENS, point.step_tokens
    if path in autos:
        return path, ()
    steps = takewhile(lambda each: each < step_tokens, (SHORTEST_STEP * 2**power for power in count()))
    return path, tuple(steps)[::-1]


def is_set_by_ttft(spec: Spec, phase: Phase) -> bool:
    """Return whether the TTFT SLO sets the phase's utilisation. It does for prefill, unless the spec writes it."""
    point = spec.operating_point.prefill
    is_written = point is not None and point.utilisation is not None
    return phase == "prefill" and spec.slo.ttft_ms is not None and not is_written


def _max_utilisation(seconds: float, step: float, prompt_steps: int) -> float:
    """Return the highest utilisation at which a prompt's mean wait and its own steps fit into `seconds`, rounded down.

    Returns 0 if the prompt's own steps alone take longer. `step` is the time of one step in seconds.
    """
    wait = max(seconds / step - prompt_steps, 0.0)
    return floor(ROUNDING_STEPS * utilisation_at_wait(wait)) / ROUNDING_STEPS
