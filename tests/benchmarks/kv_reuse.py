"""How often a trace uses blocks of KV again, by how long they are kept: the curve that plans size the cache with.

    python -m tests.benchmarks.kv_reuse FOLDER

FOLDER has `traffic/mooncake_conversation_trace.jsonl`. It exits with 1 where `CONVERSATION` has other figures, or where
a plan's hit rate is more than three points from that of a simulated cache of the same size.
"""

import sys
from dataclasses import astuple
from pathlib import Path

from planner.estimate.kv_cache import kept_hit_rate
from planner.facts.reuse import CONVERSATION, Reuse, ReuseCurve, measure_reuse
from planner.facts.trace import BLOCK_TOKENS
from stacks.simulator.requests.prefix_cache import PrefixCache
from stacks.simulator.requests.trace import read_trace

SIZES, SMALL = (1828, 9140, 45698), 494  # blocks: 1, 5 and 25 % of the trace's
MOST_APART = 0.03
KEEPS_S = (1, 10, 60, 120, 300, 600, 1200, 1800, 3600)


def main(folder):
    """Print the curve; return the exit status."""
    uses = [(each.at, each.blocks) for each in read_trace(folder / "traffic" / "mooncake_conversation_trace.jsonl")]
    print(f"{'kept, s':>8}{'hits':>9}{'a block stays, s':>18}")
    for each in measure_reuse(uses, KEEPS_S).points:
        print(f"{each.keep_s:>8,}{each.hit_rate:>9.2%}{each.kept_s:>18,.1f}")
    again = measure_reuse(uses, [each.keep_s for each in CONVERSATION.points])
    most_apart = max(_compare_sizes(uses))
    points = tuple(Reuse(*map(round, astuple(each), (0, 4, 1, 4, 1))) for each in again.points)
    told = ReuseCurve(points, round(again.twice_share, 3))
    return int(told != CONVERSATION or most_apart > MOST_APART)


def _compare_sizes(uses):
    """Print what a plan and the simulation say of caches of several sizes; yield how far apart they are."""
    num_uses = sum(len(blocks) for _, blocks in uses)
    per_s = num_uses / uses[-1][0]
    for sizes in [(size, 0) for size in SIZES] + [(SMALL, size) for size in SIZES]:
        cache, hits = PrefixCache(*sizes), 0
        for _, blocks in uses:
            hits += cache.hits(blocks, BLOCK_TOKENS * len(blocks) + 1) // BLOCK_TOKENS
            cache.keep(blocks)
        planned, played = kept_hit_rate(CONVERSATION, *(size / per_s for size in sizes)), hits / num_uses
        print(f"{sizes[0]:,} blocks in memory, {sizes[1]:,} on disk: planned {planned:.1%}, played {played:.1%}")
        yield abs(planned - played)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
