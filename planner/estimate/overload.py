"""Predict the speed of units under more load than at their operating point.

The operating point is not a limit. A unit accepts `max_requests` per rank or attention group, as far as KV has room. Up
to that number no request is refused: steps take longer, and produce more tokens. A prefill unit computes more of the
time, and prompts wait longer. How much of a day's traffic is answered is limited by the rate of units with the most
requests.
"""

from collections.abc import Sequence
from dataclasses import replace

from planner.estimate.performance import PhaseOutlook
from planner.estimate.throughput.predict import Case, Prediction, predict, saturated_rate
from planner.facts.terms import Phase
from planner.layout.memory import MemoryPlan
from planner.spec.schema import Spec

HALVINGS = 20  # bisection steps between the point's requests and the most


def full_rates(spec: Spec, memory: Sequence[MemoryPlan], outlooks: Sequence[PhaseOutlook]) -> dict[Phase, float]:
    """Return the maximum tokens/s of one GPU, for each phase with a known speed.

    At this rate prefill computes all the time, and other units have `most_requests` in each rank or attention group.
    """
    rates = {}
    for each in outlooks:
        if each.case is not None:
            full = (
                each.case if each.phase == "prefill" else _with_requests(each.case, most_requests(spec, memory, each))
            )
            rates[each.phase] = max(saturated_rate(each.case), saturated_rate(full))
    return rates


def most_requests(spec: Spec, memory: Sequence[MemoryPlan], outlook: PhaseOutlook) -> float:
    """Return how many requests a rank or attention group accepts: `max_requests`, or fewer if KV has no room."""
    kv_tokens = outlook.case.point.kv_tokens if outlook.case else 0
    rooms = [each.kv_tokens / kv_tokens for each in memory if each.phase == outlook.phase and kv_tokens]
    return min([spec.phase(outlook.phase).max_requests, *rooms])


def predict_at_load(outlook: PhaseOutlook, most_requests: float, load: float) -> Prediction | None:
    """Predict a phase while it serves `load` times the tokens/s of its operating point.

    Returns None if the speed is unknown, if decode cannot reach this rate with `most_requests` per attention group, or
    if prefill would be saturated, so that its queue grows without end.
    """
    case, found = outlook.case, outlook.prediction
    if case is None or found is None:
        return None
    if case.phase == "prefill":
        used = load * case.point.utilisation
        return predict(replace(case, point=replace(case.point, utilisation=used)), found.evidence) if used < 1 else None
    asked, few, many = load * saturated_rate(case), case.point.requests, most_requests
    if saturated_rate(_with_requests(case, many)) < asked:
        return None
    for _ in range(HALVINGS):
        middle = (few + many) / 2
        few, many = (few, middle) if saturated_rate(_with_requests(case, middle)) >= asked else (middle, many)
    return predict(_with_requests(case, many), found.evidence)


def predict_at_peak(outlook: PhaseOutlook, most_requests: float, load: float) -> Prediction | None:
    """Predict a phase as `predict_at_load` does, but decode units that are asked for more at their most requests."""
    found = predict_at_load(outlook, most_requests, load)
    if found is None and outlook.prediction is not None and outlook.case is not None and outlook.phase == "decode":
        return predict(_with_requests(outlook.case, most_requests), outlook.prediction.evidence)
    return found


def _with_requests(case: Case, requests: float) -> Case:
    return replace(case, point=replace(case.point, requests=requests))
