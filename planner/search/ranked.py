"""Summarise a phase's search for layouts: the runners-up, and the reasons for rejections."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from planner.facts.part import Part

if TYPE_CHECKING:
    from planner.candidate.trial import Numbers, Speed

MAX_RANKED = 8  # layouts of a phase that a plan lists
IMBALANCE_RATIO = 1.03  # assumed: a max/mean load over this times the chosen layout's counts as the reason


RejectionReason = Literal["memory", "slo", "failure domain", "cluster", "engine"]


@dataclass(frozen=True)
class AcceptedLayout:
    """A layout that fits and keeps the SLO."""

    numbers: "Numbers"  # every field that may be `auto`, except `units`
    nodes: int  # of a unit
    speed: "Speed"
    tokens_per_s_per_node: float  # of a whole node, idle GPUs included


@dataclass(frozen=True)
class RejectedLayout:
    """A layout that does not fit or breaks the SLO, with the reason."""

    numbers: "Numbers"
    why: RejectionReason
    detail: str
    reached: Mapping[str, float]  # slo field -> latency in ms


class RankedLayout(Part):
    """A layout that fits and keeps the SLO; unless it was chosen, with the reason why it was not."""

    ep_size: int
    attention_tp: int
    redundant_experts: int
    max_batch_tokens: int
    max_requests: int
    nodes_per_unit: int
    tokens_per_s_per_gpu: float
    tokens_per_s_per_node: float
    tpot_ms: float | None
    ttft_ms: float | None
    max_over_mean: float
    chosen: bool
    why_not: str | None


class RejectedLayouts(Part):
    """The number of layouts rejected for the same reason, and one of them as an example."""

    layouts: int
    for_example: dict[str, int]  # sizes of the layout that came nearest to being accepted
    detail: str


class PhaseSearch(Part):
    """The summary of a search for one phase's layout."""

    tried: int  # number of layouts
    candidates: tuple[RankedLayout, ...]  # the best layout of each size, fastest per node first, with the chosen one
    lost: dict[str, RejectedLayouts]  # reason -> layouts rejected for it


def summarize_search(found: Sequence[AcceptedLayout | RejectedLayout], chosen: AcceptedLayout) -> PhaseSearch:
    """Return the summary of a search for a phase's layout. `found` has the outcome of each layout that was tried."""
    kept = [each for each in found if isinstance(each, AcceptedLayout)]
    return PhaseSearch(
        tried=len(found),
        candidates=_rank_layouts(kept, chosen),
        lost=_count_rejections([each for each in found if isinstance(each, RejectedLayout)]),
    )


def _rank_layouts(kept: Sequence[AcceptedLayout], chosen: AcceptedLayout) -> tuple[RankedLayout, ...]:
    """Return up to MAX_RANKED layouts, fastest first: the best of each EP size and attention TP, and the chosen one."""
    order = sorted(kept, key=lambda each: (-each.tokens_per_s_per_node, each.nodes))
    first = {_group_key(chosen): chosen}
    for each in order:
        first.setdefault(_group_key(each), each)
    best = [each for each in order if first[_group_key(each)] is each]
    shown = best[:MAX_RANKED] if chosen in best[:MAX_RANKED] else [*best[: MAX_RANKED - 1], chosen]
    return tuple(_to_ranked_layout(each, chosen) for each in shown)


def _to_ranked_layout(layout: AcceptedLayout, chosen: AcceptedLayout) -> RankedLayout:
    return RankedLayout(
        **layout.numbers,
        **vars(layout.speed),
        nodes_per_unit=layout.nodes,
        tokens_per_s_per_node=layout.tokens_per_s_per_node,
        chosen=layout == chosen,
        why_not=None if layout == chosen else _explain_lower_rank(layout, chosen),
    )


def _group_key(layout: AcceptedLayout) -> tuple[int, int]:
    return layout.numbers["ep_size"], layout.numbers["attention_tp"]


def _explain_lower_rank(other: AcceptedLayout, chosen: AcceptedLayout) -> str:
    ratio = other.tokens_per_s_per_node / chosen.tokens_per_s_per_node
    if ratio >= 1:
        return "cluster: fills it worse"
    slower = f"{100 * (1 - ratio):.1f}% slower"
    if other.speed.max_over_mean > IMBALANCE_RATIO * chosen.speed.max_over_mean:
        return f"bound: {slower}, max/mean of a step {other.speed.max_over_mean:.2f}"
    return slower


def _count_rejections(lost: Sequence[RejectedLayout]) -> dict[str, RejectedLayouts]:
    """Return reason -> the number of layouts rejected for it, and one of them as an example.

    The example is the last layout: it has the largest unit, and so came nearest.
    """
    nearest = {each.why: each for each in lost}
    counts = Counter(each.why for each in lost)
    return {
        why: RejectedLayouts(layouts=number, for_example=dict(nearest[why].numbers), detail=nearest[why].detail)
        for why, number in counts.items()
    }
