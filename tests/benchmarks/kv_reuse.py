"""How often a trace uses blocks of KV again, by how long they are kept: the curve that plans size the cache with.

    python -m tests.benchmarks.kv_reuse FOLDER

FOLDER has `traffic/mooncake_conversation_trace.jsonl`. It exits with 1 where `CONVERSATION` has other figures, or where
a plan's hit rate is more than three points from that of a simulated cache of the same size.
"""

import sys
from collections import defaultdict
from dataclasses import astuple
from itertools import pairwise
from pathlib import Path

from planner.estimate.kv_cache import CONVERSATION, Reuse, kept_hit_rate
from stacks.simulator.requests.prefix_cache import PrefixCache
from stacks.simulator.requests.trace import BLOCK_TOKENS, read_trace

SIZES, SMALL = (1828, 9140, 45698), 494  # blocks: 1, 5 and 25 % of the trace's
MOST_APART = 0.03
KEEPS_S = (1, 10, 60, 120, 300, 600, 1200, 1800, 3600)


def main(folder):
    """Print the curve; return the exit status."""
    uses = [(each.at, each.blocks) for each in read_trace(folder / "traffic" / "mooncake_conversation_trace.jsonl")]
    print(f"{'kept, s':>8}{'hits':>9}{'a block stays, s':>18}")
    for each in reuse_of(uses, KEEPS_S):
        print(f"{each.keep_s:>8,}{each.hit_rate:>9.2%}{each.kept_s:>18,.1f}")
    again = reuse_of(uses, [each.keep_s for each in CONVERSATION])
    most_apart = max(_compare_sizes(uses))
    told = [Reuse(*map(round, astuple(each), (0, 4, 1, 4, 1))) for each in again]
    return int(told != list(CONVERSATION) or most_apart > MOST_APART)


def _compare_sizes(uses):
    """Print what a plan and the simulation say of caches of several sizes; yield how far apart they are."""
    num_uses = sum(len(blocks) for _, blocks in uses)
    per_s = num_uses / uses[-1][0]
    for sizes in [(size, 0) for size in SIZES] + [(SMALL, size) for size in SIZES]:
        cache, hits = PrefixCache(*sizes), 0
        for _, blocks in uses:
            hits += cache.hits(blocks, BLOCK_TOKENS * len(blocks) + 1) // BLOCK_TOKENS
            cache.keep(blocks)
        planned, played = kept_hit_rate(*(size / per_s for size in sizes)), hits / num_uses
        print(f"{sizes[0]:,} blocks in memory, {sizes[1]:,} on disk: planned {planned:.1%}, played {played:.1%}")
        yield abs(planned - played)


def reuse_of(uses, keeps_s):
    """Return what each of `keeps_s` gives in a trace: the second of each prompt, in order, and its blocks' ids.

    A block's id stands for all that comes before it too, so that a hit never follows a miss. What happens after the
    last prompt is not counted.
    """
    times = defaultdict(list)
    last = 0.0
    for last, blocks in uses:
        for block in blocks:
            times[block].append(last)
    num_uses = sum(map(len, times.values()))
    once, twice = (_gaps((each[number:] for each in times.values()), last) for number in (0, 1))
    return tuple(
        Reuse(keep_s, *(share for gaps in (once, twice) for share in _keep(*gaps, keep_s, num_uses)))
        for keep_s in keeps_s
    )


def _gaps(uses, last):
    """Return the times between the uses of each block, and those from its last use to the end."""
    uses = [each for each in uses if each]
    return [after - before for each in uses for before, after in pairwise(each)], [last - each[-1] for each in uses]


def _keep(ages, unused, keep_s, num_uses):
    """Return the share of uses that find their block, and how long one stays, as a mean over all uses."""
    kept_s = sum(min(age, keep_s) for age in (*ages, *unused))
    return sum(age <= keep_s for age in ages) / num_uses, kept_s / num_uses


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
