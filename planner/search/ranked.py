"""Summarise a phase's search for layouts: the runners-up, the reasons for rejections, and the Pareto front.

The front holds the layouts that no other layout beats in both throughput and latency.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

from planner.candidate.trial import Numbers, Speed, speed_of, trial_of
from planner.estimate.throughput.replicas import ReplicaBalance
from planner.facts.part import Maybe, Part
from planner.facts.terms import Phase
from planner.search.decision import is_auto
from planner.search.trials import AcceptedLayout, RejectedLayout
from planner.spec.resolved import ResolvedSpec

MAX_RANKED = 8  # layouts of a phase that a plan lists
MAX_FRONT_SIZES = 16  # fastest layouts, and as many of shortest latency, tried at lighter loads for the front
IMBALANCE_RATIO = 1.03  # assumed: a max/mean load over this times the chosen layout's counts as the reason


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


class SpeedPoint(Part):
    """A layout at one load that no other layout beats in both throughput and latency."""

    ep_size: int
    attention_tp: int
    redundant_experts: int
    max_batch_tokens: int
    max_requests: int
    tokens_per_s_per_gpu: float
    tpot_ms: Maybe[float] = None
    ttft_ms: Maybe[float] = None  # in prefill

    @property
    def latency_ms(self) -> float:
        """Return TPOT in ms, or TTFT for prefill."""
        found = self.ttft_ms if self.tpot_ms is None else self.tpot_ms
        assert found is not None
        return found


class PhaseSearch(Part):
    """The summary of a search for one phase's layout."""

    tried: int  # number of layouts
    candidates: tuple[RankedLayout, ...]  # the best layout of each size, fastest per node first, with the chosen one
    lost: dict[str, RejectedLayouts]  # reason -> layouts rejected for it
    front: tuple[SpeedPoint, ...]


def summarize_search(
    spec: ResolvedSpec,
    phase: Phase,
    found: Sequence[AcceptedLayout | RejectedLayout],
    chosen: AcceptedLayout,
    balance: ReplicaBalance,
) -> PhaseSearch:
    """Summarise the search for a layout of `phase`; `found` has the outcome of each layout that was tried."""
    kept = [each for each in found if isinstance(each, AcceptedLayout)]
    return PhaseSearch(
        tried=len(found),
        candidates=_rank_layouts(kept, chosen),
        lost=_count_rejections([each for each in found if isinstance(each, RejectedLayout)]),
        front=_search_front(spec, phase, kept, balance),
    )


def pareto_front(points: Iterable[SpeedPoint]) -> tuple[SpeedPoint, ...]:
    """Return the points that no other point beats in both throughput and latency, shortest latency first."""
    front: list[SpeedPoint] = []
    for point in sorted(points, key=lambda each: (each.latency_ms, -each.tokens_per_s_per_gpu)):
        if not front or point.tokens_per_s_per_gpu > front[-1].tokens_per_s_per_gpu:
            front.append(point)
    return tuple(front)


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
        why_not=None if layout == chosen else _why_not_chosen(layout, chosen),
    )


def _group_key(layout: AcceptedLayout) -> tuple[int, int]:
    return layout.numbers["ep_size"], layout.numbers["attention_tp"]


def _why_not_chosen(other: AcceptedLayout, chosen: AcceptedLayout) -> str:
    ratio = other.tokens_per_s_per_node / chosen.tokens_per_s_per_node
    if ratio >= 1:
        return "cluster: fills it worse"
    slower = f"{100 * (1 - ratio):.1f}% slower"
    if other.speed.max_over_mean > IMBALANCE_RATIO * chosen.speed.max_over_mean:
        return f"bound: {slower}, max/mean of a step {other.speed.max_over_mean:.2f}"
    return slower


def _count_rejections(lost: Sequence[RejectedLayout]) -> dict[str, RejectedLayouts]:
    """Count rejected layouts by reason. The last one, of the largest unit, came nearest and serves as the example."""
    nearest = {each.why: each for each in lost}
    counts = Counter(each.why for each in lost)
    return {
        why: RejectedLayouts(layouts=number, for_example=dict(nearest[why].numbers), detail=nearest[why].detail)
        for why, number in counts.items()
    }


def _search_front(
    spec: ResolvedSpec, phase: Phase, kept: Sequence[AcceptedLayout], balance: ReplicaBalance
) -> tuple[SpeedPoint, ...]:
    """Return the Pareto front of throughput and latency over the `kept` layouts.

    With `max_requests: auto`, also try the best layouts at half, a quarter and so on of their requests.
    """
    order = sorted(kept, key=lambda each: -each.tokens_per_s_per_node)[:MAX_FRONT_SIZES]
    small = sorted(kept, key=lambda each: each.latency_ms)[:MAX_FRONT_SIZES]
    points = [_to_speed_point(phase, each.numbers, each.speed) for each in kept]
    if not is_auto(spec.phase(phase), "max_requests") or phase == "prefill":
        return pareto_front(points)
    for each in chain(order, small):
        requests = each.numbers["max_requests"] // 2
        while requests:
            speed = speed_of(trial_of(spec, phase, each.numbers, requests), balance)
            points.append(_to_speed_point(phase, {**each.numbers, "max_requests": requests}, speed))
            requests //= 2
    return pareto_front(points)


def _to_speed_point(phase: Phase, numbers: Numbers, speed: Speed) -> SpeedPoint:
    is_prefill = phase == "prefill"
    return SpeedPoint(
        **numbers,
        tokens_per_s_per_gpu=speed.tokens_per_s_per_gpu,
        tpot_ms=None if is_prefill else speed.tpot_ms,
        ttft_ms=speed.ttft_ms if is_prefill else None,
    )
