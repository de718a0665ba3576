"""How often blocks of KV are used again, by how long they are kept: a curve, read from a trace of prompts.

    1 2    at  0 s       block 1 is used at 0, 10 and 40 s, block 2 at 0 and 10, block 3 at 40
    1 2    at 10 s       kept for 10 s after its last use: 2 of the 6 uses find their block
    1 3    at 40 s       kept for 60 s: 3 of them do

Such times do not depend on the amount of traffic, as long as each user returns after the same time. So a trace of few
requests serves for many. What happens after the last prompt is not counted.

`CONVERSATION` is that of Mooncake's conversation trace, kvcache-ai/Mooncake FAST25-release/traces @3b5a594, Apache-2.0:
12,031 requests in 59 minutes, 288,500 blocks of 512 tokens, 36.6 % of them seen before. `python -m
tests.benchmarks.kv_reuse` reads it again.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from planner.facts.day import DAY_S
from planner.facts.trace import NotATrace, parse_trace

KEEPS_S = (10, 60, 120, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, *(days * DAY_S for days in (1, 3, 7)))


@dataclass(frozen=True)
class Reuse:
    """The hit rate in a trace if each block stays cached for `keep_s` after its last use, and how long blocks stay.

    `kept_s` and `twice_kept_s` are means over all uses of blocks: the seconds from a use to the next or the eviction.
    """

    keep_s: float
    hit_rate: float  # share of all used blocks that were cached
    kept_s: float
    twice_hit_rate: float  # share of all used blocks that were cached and had been used twice
    twice_kept_s: float  # counting 0 for blocks not yet used twice


@dataclass(frozen=True)
class ReuseCurve:
    """The reuse of blocks in one trace, in order of `keep_s`."""

    points: tuple[Reuse, ...]
    twice_share: float  # share of all uses that are the second one of their block

    def interpolate(self, value: float, given: str, wanted: str) -> float:
        """Return the value of the field `wanted` at the point where the field `given` has this `value`.

        The curve is straight from (0, 0) through the points, and constant after the last one.
        """
        points = [(0.0, 0.0), *((getattr(each, given), getattr(each, wanted)) for each in self.points)]
        for (x0, y0), (x1, y1) in pairwise(points):
            if value <= x1 and x0 < x1:
                return float(y0 + (y1 - y0) * (value - x0) / (x1 - x0))
        return float(points[-1][1])


CONVERSATION = ReuseCurve(
    points=(
        Reuse(10, 0.0428, 9.6, 0.0424, 3.3),
        Reuse(60, 0.1033, 55.8, 0.0775, 18.6),
        Reuse(120, 0.1916, 105.4, 0.1242, 34.0),
        Reuse(300, 0.2877, 231.7, 0.1789, 68.4),
        Reuse(600, 0.3433, 406.1, 0.207, 110.2),
        Reuse(1800, 0.3635, 895.9, 0.2131, 216.0),
    ),
    twice_share=0.153,
)


@lru_cache(maxsize=1)  # a search for sizes reads the same file for each candidate
def reuse_in(content: bytes) -> ReuseCurve:
    """Return the curve of the trace in `content`, up to the time that it covers. Raises NotATrace if it is no trace."""
    requests = parse_trace(content)
    uses = [(each.at, each.blocks) for each in requests if each.blocks]
    if not uses:
        raise NotATrace("its prompts have no hash_ids")
    if uses[-1][0] < KEEPS_S[0]:
        raise NotATrace(f"its prompts come within {uses[-1][0]:g} s, which says nothing of later ones")
    return measure_reuse(uses, [each for each in KEEPS_S if each <= uses[-1][0]])


def measure_reuse(uses: Iterable[tuple[float, Sequence[int]]], keeps_s: Sequence[float]) -> ReuseCurve:
    """Return the reuse of blocks in a trace for each keeping time in `keeps_s`.

    `uses` has, in order, (second, blocks' ids). A block's id stands for all that comes before it too, so that a hit
    never follows a miss.
    """
    times: dict[int, list[float]] = defaultdict(list)
    last = 0.0
    for last, blocks in uses:
        for block in blocks:
            times[block].append(last)
    num_uses = sum(map(len, times.values()))
    once, twice = (_reuse_intervals((each[number:] for each in times.values()), last) for number in (0, 1))
    points = tuple(
        Reuse(keep_s, *_hit_and_stay(*once, keep_s, num_uses), *_hit_and_stay(*twice, keep_s, num_uses))
        for keep_s in keeps_s
    )
    return ReuseCurve(points, sum(len(each) > 1 for each in times.values()) / num_uses)


def _reuse_intervals(uses: Iterable[Sequence[float]], last: float) -> tuple[list[float], list[float]]:
    """Return (the times between the uses of each block, the times from each block's last use to the end)."""
    found = [each for each in uses if each]
    return [after - before for each in found for before, after in pairwise(each)], [last - each[-1] for each in found]


def _hit_and_stay(ages: Sequence[float], unused: Sequence[float], keep_s: float, num_uses: int) -> tuple[float, float]:
    """Return (the share of uses that find their block, the mean seconds that a block stays cached after a use)."""
    kept_s = sum(min(age, keep_s) for age in (*ages, *unused))
    return sum(age <= keep_s for age in ages) / num_uses, kept_s / num_uses
