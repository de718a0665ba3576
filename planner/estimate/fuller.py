"""Units that are fuller than their operating point says, as a day asks for more than it makes.

A plan predicts at its operating point, which limits nothing. A unit takes `max_requests` for each rank or attention
group, as far as KV has room. Until then nobody is refused: steps take longer, and make more. A prefill unit computes
more of the time, and prompts wait longer.
"""

from dataclasses import replace

from planner.estimate.performance import PhaseOutlook
from planner.estimate.throughput.predict import Case, Prediction, predict, saturated_rate

__all__ = ["as_full_as_asked"]

HALVINGS = 20  # of the requests between the point's and the most


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
