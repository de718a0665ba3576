"""How often a trace uses blocks of KV again, by how long they are kept: the curve that plans size the cache with.

    python -m tests.benchmarks.kv_reuse FOLDER

FOLDER has `traffic/mooncake_conversation_trace.jsonl`. It exits with 1 where `CONVERSATION` has other figures.
"""

import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from planner.estimate.kv_cache import CONVERSATION, Reuse
from stacks.simulator.requests.trace import read_trace

KEEPS_S = (1, 10, 60, 120, 300, 600, 1200, 1800, 3600)


def main(folder):
    """Print the curve; return the exit status."""
    uses = [(each.at, each.blocks) for each in read_trace(folder / "traffic" / "mooncake_conversation_trace.jsonl")]
    print(f"{'kept, s':>8}{'hits':>9}{'a block stays, s':>18}")
    for each in reuse_of(uses, KEEPS_S):
        print(f"{each.keep_s:>8,}{each.hit_rate:>9.2%}{each.kept_s:>18,.1f}")
    again = reuse_of(uses, [each.keep_s for each in CONVERSATION])
    told = [(round(each.hit_rate, 4), round(each.kept_s, 1)) for each in again]
    return int(told != [(each.hit_rate, each.kept_s) for each in CONVERSATION])


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
    ages = [after - before for each in times.values() for before, after in pairwise(each)]
    unused = [last - each[-1] for each in times.values()]
    num_uses = len(ages) + len(unused)
    return tuple(
        Reuse(
            keep_s=keep_s,
            hit_rate=sum(age <= keep_s for age in ages) / num_uses,
            kept_s=sum(min(age, keep_s) for age in (*ages, *unused)) / num_uses,
        )
        for keep_s in keeps_s
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
