"""The ranks of the soak: `soak_ranks.py SIZE PORT CHECKPOINT FOLDER NODES NUMBER SEED`; NODES as in 0,1.

Each serves NUMBER requests as a mixed rank of one unit, with overlap, and writes its report to `FOLDER/RANK.json`.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from runtime.expert_parallel.factory import new_group
from runtime.expert_parallel.rendezvous import MeetingPoint
from tests.runtime.rank_processes import fork_ranks
from tests.runtime.soak import small_engine, soak

ADDRESS = "127.0.0.1"


def main(rank, size, port, checkpoint, folder, nodes, number, seed):
    group = new_group(rank, size, [int(node) for node in nodes.split(",")])
    unit, alone = small_engine(checkpoint, group, "five_stage"), small_engine(checkpoint)
    group.join(MeetingPoint(ADDRESS, port, rank == 0, ADDRESS))
    report = soak(unit, "mixed", number, seed * size + rank, group, alone)
    (folder / f"{rank}.json").write_text(json.dumps(asdict(report)))
    group.any(False)  # nobody leaves while a peer still exchanges


if __name__ == "__main__":
    fork_ranks(main, *map(int, sys.argv[1:3]), *map(Path, sys.argv[3:5]), sys.argv[5], *map(int, sys.argv[6:8]))
