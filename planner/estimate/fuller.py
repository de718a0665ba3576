"""Units that are fuller than their operating point says, as a day asks for more than it makes.

A plan predicts at its operating point, which limits nothing. A unit takes `max_requests` for each rank or attention
group, as far as KV has room. Until then nobody is refused: steps take longer, and make more. A prefill unit computes
more of the time, and prompts wait longer. What units make when they are full is the most that a day is answered with.
"""

from collections.abc import Sequence
from dataclasses import replace

from planner.estimate.performance import PhaseOutlook
from planner.estimate.throughput.predict import Case, Prediction, predict, saturated_rate
from planner.facts.terms import Phase
from planner.layout.memory import MemoryPlan
from planner.spec.schema import Spec

__all__ = ["as_full_as_asked", "full_rates", "most_requests"]

HALVINGS = 20  # of the requests between the point's and the most


def full_rates(spec: Spec, memory: Sequence[MemoryPlan], outlooks: Sequence[PhaseOutlook]) -> dict[Phase, float]:
    """Return the most tokens/s that one GPU of each phase makes, where its speed is known.

    Prefill then computes all the time; in other units each rank or attention group has `most_requests`.
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
    """Return how many requests a rank or attention group takes: `max_requests`, or fewer where KV has less room."""
    kv_tokens = outlook.case.point.kv_tokens if outlook.case else 0
    rooms = [each.kv_tokens / kv_tokens for each in memory if each.phase == outlook.phase and kv_tokens]
    return min([spec.phase(outlook.phase).max_requests, *rooms])


def as_full_as_asked(outlook: PhaseOutlook, most_requests: float, load: float) -> Prediction | None:
    """Return what a phase does whose units make `load` times the tokens of their operating point.

    None where the speed is not known, where `most_requests` of a group do not make as many, and where prefill would
    have to compute all the time: prompts then wait longer and longer.
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


def _with_requests(case: Case, requests: float) -> Case:
    return replace(case, point=replace(case.point, requests=requests))
