"""What of speed and latency can be had together: the layouts that no other beats in both."""

from collections.abc import Iterable
from dataclasses import dataclass

from planner.search.speed import Numbers

__all__ = ["FrontPoint", "front_of"]


@dataclass(frozen=True)
class FrontPoint:
    """A layout at one load."""

    numbers: Numbers
    tokens_per_s_per_gpu: float
    latency_ms: float  # TPOT, or TTFT in prefill


def front_of(points: Iterable[FrontPoint]) -> tuple[FrontPoint, ...]:
    """Return those of `points` that are faster than all others of at most their latency, from the shortest latency."""
    front: list[FrontPoint] = []
    for point in sorted(points, key=lambda each: (each.latency_ms, -each.tokens_per_s_per_gpu)):
        if not front or point.tokens_per_s_per_gpu > front[-1].tokens_per_s_per_gpu:
            front.append(point)
    return tuple(front)
