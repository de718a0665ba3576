"""What a plan tells of a phase's search: the layouts that came next, why others are out, and the front.

The front is what of speed and latency can be had together: the layouts that no other beats in both.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from planner.candidate.trial import Numbers, speed_of, trial_of
from planner.estimate.throughput.replicas import ReplicaBalance
from planner.facts.terms import Phase
from planner.search.decision import is_auto
from planner.search.trials import Kept, Lost, Why
from planner.spec.resolved import ResolvedSpec

__all__ = ["FrontPoint", "PhaseSearch", "Ranked", "front_of", "search_told"]

MAX_RANKED = 8  # layouts of a phase that a plan tells
MAX_FRONT_SIZES = 16  # layouts whose smaller loads are tried for the front
BINDS = 1.03  # times as full as the chosen layout's fullest GPU, to be told as the reason: assumed


@dataclass(frozen=True)
class Ranked:
    """A layout and why another was taken; the chosen one has no reason."""

    layout: Kept
    why_not: str | None


@dataclass(frozen=True)
class FrontPoint:
    """A layout at one load."""

    numbers: Numbers
    tokens_per_s_per_gpu: float
    latency_ms: float  # TPOT, or TTFT in prefill


@dataclass(frozen=True)
class PhaseSearch:
    """What was tried for a phase."""

    phase: Phase
    tried: int
    chosen: Kept
    ranked: tuple[Ranked, ...]  # each size's best from the fastest a node, the chosen one among them
    lost: Mapping[Why, tuple[int, Lost]]  # how many, and the nearest of them
    front: tuple[FrontPoint, ...]


def search_told(
    spec: ResolvedSpec, phase: Phase, found: Sequence[Kept | Lost], chosen: Kept, balance: ReplicaBalance
) -> PhaseSearch:
    """Return what a plan tells of all layouts of `phase` that were `found`, of which one is `chosen`."""
    kept = [each for each in found if isinstance(each, Kept)]
    return PhaseSearch(
        phase=phase,
        tried=len(found),
        chosen=chosen,
        ranked=_ranked(kept, chosen),
        lost=_lost([each for each in found if isinstance(each, Lost)]),
        front=_front(spec, phase, kept, balance),
    )


def front_of(points: Iterable[FrontPoint]) -> tuple[FrontPoint, ...]:
    """Return those of `points` that are faster than all others of at most their latency, from the shortest latency."""
    front: list[FrontPoint] = []
    for point in sorted(points, key=lambda each: (each.latency_ms, -each.tokens_per_s_per_gpu)):
        if not front or point.tokens_per_s_per_gpu > front[-1].tokens_per_s_per_gpu:
            front.append(point)
    return tuple(front)


def _ranked(kept: Sequence[Kept], chosen: Kept) -> tuple[Ranked, ...]:
    """Return the fastest of each EP size and attention TP, from the fastest on, and the chosen one with them."""
    order = sorted(kept, key=lambda each: (-each.tokens_per_s_per_node, each.nodes))
    first = {_size(chosen): chosen}
    for each in order:
        first.setdefault(_size(each), each)
    best = [each for each in order if first[_size(each)] is each]
    told = best[:MAX_RANKED] if chosen in best[:MAX_RANKED] else [*best[: MAX_RANKED - 1], chosen]
    return tuple(Ranked(each, None if each == chosen else _why_not(each, chosen)) for each in told)


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


def _lost(lost: Sequence[Lost]) -> dict[Why, tuple[int, Lost]]:
    """Count the reasons; the example of each is the last, of the largest units, which comes nearest."""
    found: dict[Why, tuple[int, Lost]] = {}
    for each in lost:
        found[each.why] = (found.get(each.why, (0, each))[0] + 1, each)
    return found


def _front(spec: ResolvedSpec, phase: Phase, kept: Sequence[Kept], balance: ReplicaBalance) -> tuple[FrontPoint, ...]:
    """Try the fastest layouts with fewer and fewer requests, where these are free."""
    order = sorted(kept, key=lambda each: -each.tokens_per_s_per_node)[:MAX_FRONT_SIZES]
    small = sorted(kept, key=lambda each: each.latency_ms)[:MAX_FRONT_SIZES]
    points = [FrontPoint(each.numbers, each.speed.tokens_per_s_per_gpu, each.latency_ms) for each in kept]
    if not is_auto(spec.phase(phase), "max_requests") or phase == "prefill":
        return front_of(points)
    for each in chain(order, small):
        requests = each.numbers["max_requests"] // 2
        while requests:
            speed = speed_of(trial_of(spec, phase, each.numbers, requests), balance)
            assert speed.tpot_ms is not None
            numbers = {**each.numbers, "max_requests": requests}
            points.append(FrontPoint(numbers, speed.tokens_per_s_per_gpu, speed.tpot_ms))
            requests //= 2
    return front_of(points)
