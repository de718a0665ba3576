"""What a plan tells of a phase's search: the layouts that came next, why others are out, and the front.

The front is what of speed and latency can be had together: the layouts that no other beats in both.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

from planner.candidate.trial import Numbers, Speed, speed_of, trial_of
from planner.estimate.throughput.replicas import ReplicaBalance
from planner.facts.part import Maybe, Part
from planner.facts.terms import Phase
from planner.search.decision import is_auto
from planner.search.trials import Kept, Lost
from planner.spec.resolved import ResolvedSpec

__all__ = ["Fastest", "PhaseSearch", "front_of", "search_told"]

MAX_RANKED = 8  # layouts of a phase that a plan tells
MAX_FRONT_SIZES = 16  # layouts whose smaller loads are tried for the front
BINDS = 1.03  # times as full as the chosen layout's fullest GPU, to be told as the reason: assumed


class Tried(Part):
    """A layout that fits and keeps the SLO, and why another was taken."""

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


class LostLayouts(Part):
    """Layouts that are out for one reason."""

    layouts: int
    for_example: dict[str, int]  # the nearest of them
    detail: str


class Fastest(Part):
    """A layout at one load that no other beats in speed and latency."""

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
        """Return TPOT, or in prefill TTFT."""
        found = self.ttft_ms if self.tpot_ms is None else self.tpot_ms
        assert found is not None
        return found


class PhaseSearch(Part):
    """What was tried for a phase."""

    tried: int
    candidates: tuple[Tried, ...]  # each size's best from the fastest a node, the chosen one among them
    lost: dict[str, LostLayouts]  # by reason
    front: tuple[Fastest, ...]


def search_told(
    spec: ResolvedSpec, phase: Phase, found: Sequence[Kept | Lost], chosen: Kept, balance: ReplicaBalance
) -> PhaseSearch:
    """Return what a plan tells of all layouts of `phase` that were `found`, of which one is `chosen`."""
    kept = [each for each in found if isinstance(each, Kept)]
    return PhaseSearch(
        tried=len(found),
        candidates=_ranked(kept, chosen),
        lost=_lost([each for each in found if isinstance(each, Lost)]),
        front=_front(spec, phase, kept, balance),
    )


def front_of(points: Iterable[Fastest]) -> tuple[Fastest, ...]:
    """Return those of `points` that are faster than all others of at most their latency, from the shortest latency."""
    front: list[Fastest] = []
    for point in sorted(points, key=lambda each: (each.latency_ms, -each.tokens_per_s_per_gpu)):
        if not front or point.tokens_per_s_per_gpu > front[-1].tokens_per_s_per_gpu:
            front.append(point)
    return tuple(front)


def _ranked(kept: Sequence[Kept], chosen: Kept) -> tuple[Tried, ...]:
    """Return the fastest of each EP size and attention TP, from the fastest on, and the chosen one with them."""
    order = sorted(kept, key=lambda each: (-each.tokens_per_s_per_node, each.nodes))
    first = {_size(chosen): chosen}
    for each in order:
        first.setdefault(_size(each), each)
    best = [each for each in order if first[_size(each)] is each]
    told = best[:MAX_RANKED] if chosen in best[:MAX_RANKED] else [*best[: MAX_RANKED - 1], chosen]
    return tuple(_tried(each, chosen) for each in told)


def _tried(layout: Kept, chosen: Kept) -> Tried:
    return Tried(
        **layout.numbers,
        **vars(layout.speed),
        nodes_per_unit=layout.nodes,
        tokens_per_s_per_node=layout.tokens_per_s_per_node,
        chosen=layout == chosen,
        why_not=None if layout == chosen else _why_not(layout, chosen),
    )


def _size(layout: Kept) -> tuple[int, int]:
    return layout.numbers["ep_size"], layout.numbers["attention_tp"]


def _why_not(other: Kept, chosen: Kept) -> str:
    ratio = other.tokens_per_s_per_node / chosen.tokens_per_s_per_node
    if ratio >= 1:
        return "cluster: fills it worse"
    slower = f"{100 * (1 - ratio):.1f}% slower"
    if other.speed.max_over_mean > BINDS * chosen.speed.max_over_mean:
        return f"bound: {slower}, max/mean {other.speed.max_over_mean:.2f}"
    return slower


def _lost(lost: Sequence[Lost]) -> dict[str, LostLayouts]:
    """Count the reasons; the example of each is the last, of the largest units, which comes nearest."""
    nearest = {each.why: each for each in lost}
    counts = Counter(each.why for each in lost)
    return {
        why: LostLayouts(layouts=number, for_example=dict(nearest[why].numbers), detail=nearest[why].detail)
        for why, number in counts.items()
    }


def _front(spec: ResolvedSpec, phase: Phase, kept: Sequence[Kept], balance: ReplicaBalance) -> tuple[Fastest, ...]:
    """Try the fastest layouts with fewer and fewer requests, where these are free."""
    order = sorted(kept, key=lambda each: -each.tokens_per_s_per_node)[:MAX_FRONT_SIZES]
    small = sorted(kept, key=lambda each: each.latency_ms)[:MAX_FRONT_SIZES]
    points = [_point(phase, each.numbers, each.speed) for each in kept]
    if not is_auto(spec.phase(phase), "max_requests") or phase == "prefill":
        return front_of(points)
    for each in chain(order, small):
        requests = each.numbers["max_requests"] // 2
        while requests:
            speed = speed_of(trial_of(spec, phase, each.numbers, requests), balance)
            points.append(_point(phase, {**each.numbers, "max_requests": requests}, speed))
            requests //= 2
    return front_of(points)


def _point(phase: Phase, numbers: Numbers, speed: Speed) -> Fastest:
    is_prefill = phase == "prefill"
    return Fastest(
        **numbers,
        tokens_per_s_per_gpu=speed.tokens_per_s_per_gpu,
        tpot_ms=None if is_prefill else speed.tpot_ms,
        ttft_ms=speed.ttft_ms if is_prefill else None,
    )
