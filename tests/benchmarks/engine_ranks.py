"""Two ranks of one unit on two cores, against two independent copies of the model on the same two cores.

    python -m tests.benchmarks.engine_ranks FOLDER PORT

Each process holds both: its rank of the unit (half of the experts) and a copy of its own (all of them). They take turns
at prefill of 8 x 512 tokens and at decode of 32 requests, each process with its own requests, so that both ways compute
the same number of tokens. Prints JSON: for each workload, seconds of a step of the unit and of the copies, medians.
"""

import json
import statistics
import sys
from pathlib import Path

import torch

from runtime.memory import keep_freed_memory
from runtime.parallel import SoloGroup, new_group
from runtime.rendezvous import MeetingPoint
from tests.benchmarks.engine_workloads import our_engine, our_step, seconds
from tests.runtime.rank_processes import fork_ranks

ADDRESS = "127.0.0.1"
REPEATS = {"prefill": 5, "decode 32": 15}


def main(rank, size, port, folder):
    """One process."""
    torch.set_num_threads(1)
    keep_freed_memory()
    group = new_group(rank, size)
    copy, unit = our_engine(folder, SoloGroup(), torch.bfloat16), our_engine(folder, group, torch.bfloat16)
    group.join(MeetingPoint(ADDRESS, port, rank == 0, ADDRESS))
    medians = {workload: _medians(group, [copy, unit], workload) for workload in REPEATS}
    if rank == 0:
        print(json.dumps({workload: {"copies": each[0], "unit": each[1]} for workload, each in medians.items()}))
    group.any(False)


def _medians(group, engines, workload):
    """A round lasts from when both are ready until both have finished; the first is left out."""
    steps, taken = [our_step(engine, workload) for engine in engines], [[], []]
    for _ in range(REPEATS[workload] + 1):
        for step, times in zip(steps, taken, strict=True):
            group.any(False)
            times.append(seconds(lambda step=step: (step(), group.any(False))))
    return [statistics.median(times[1:]) for times in taken]


if __name__ == "__main__":
    fork_ranks(main, 2, int(sys.argv[2]), Path(sys.argv[1]))
