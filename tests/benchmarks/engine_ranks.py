"""Two ranks of one unit on two cores, against two independent copies of the model on the same two cores.

    python -m tests.benchmarks.engine_ranks FOLDER PORT

Each of two processes holds both: its rank of the unit (half of the experts) and a copy of its own (all of them), one
thread each. A turn is one step of the unit, then one step of both copies at the same time, or the other way round; by
the clock on the wall, from when both processes are ready until both have finished. Either way the processes compute
their own requests, the same ones: 8 prompts of 512 tokens, or one token for each of 32 requests with 512 tokens of KV.
Experts lie in order, so a turn of the unit also pays for the experts' uneven loads.

Prints JSON: for each workload, seconds of each turn of the unit and of the copies. The first turns are left out.
"""

import json
import sys
from pathlib import Path

import torch

from runtime.memory import keep_freed_memory
from runtime.parallel import SoloGroup, new_group
from runtime.rendezvous import MeetingPoint
from tests.benchmarks.engine_workloads import our_engine, our_step, seconds
from tests.runtime.rank_processes import fork_ranks

ADDRESS = "127.0.0.1"
TURNS = {"prefill": 8, "decode 32": 60}
WARM_UP = {"prefill": 2, "decode 32": 10}


def main(rank, size, port, folder):
    """One process."""
    torch.set_num_threads(1)
    keep_freed_memory()
    group = new_group(rank, size)
    unit, copy = our_engine(folder, group, torch.bfloat16), our_engine(folder, SoloGroup(), torch.bfloat16)
    group.join(MeetingPoint(ADDRESS, port, rank == 0, ADDRESS))
    measured = {workload: _measured(group, {"unit": unit, "copies": copy}, workload) for workload in TURNS}
    if rank == 0:
        print(json.dumps(measured))
    group.any(False)


def _measured(group, engines, workload):
    """Whose step -> seconds of each turn."""
    steps = {name: our_step(engine, workload, seed=group.rank) for name, engine in engines.items()}
    taken = {name: [] for name in steps}
    for turn in range(WARM_UP[workload] + TURNS[workload]):
        for name in sorted(steps, reverse=turn % 2 == 1):
            group.any(False)
            taken[name].append(seconds(lambda step=steps[name]: (step(), group.any(False))))
    return {name: times[WARM_UP[workload] :] for name, times in taken.items()}


if __name__ == "__main__":
    fork_ranks(main, 2, int(sys.argv[2]), Path(sys.argv[1]))
