"""Two ranks of one unit on two cores, against two independent copies of the model on the same two cores.

    python -m tests.benchmarks.engine_ranks FOLDER PORT

Each of two processes holds both: its rank of the unit (half of the experts) and a copy of its own (all of them), one
thread each. A turn is one step of the unit, then one step of both copies at the same time, or the other way round; by
the clock on the wall, from when both processes are ready until both have finished. Either way the processes compute
their own requests, the same ones: 8 prompts of 512 tokens, or one token for each of 32 requests with 512 tokens of KV.

Experts lie where a plan puts them: the planner makes the unit's map of the loads that the engine counted on other
prompts than those measured. There are no redundant experts and no overlap, which a spec has to ask for. What is left of
the experts' uneven loads is the unit's to bear.

Prints JSON: for each workload, seconds of each turn of the unit and of the copies. The first turns are left out.
"""

import json
import sys
from pathlib import Path

import torch

from planner.expert_map import balance
from runtime.expert_parallel.factory import new_group
from runtime.expert_parallel.group import SoloGroup
from runtime.expert_parallel.rendezvous import MeetingPoint
from runtime.kernels.cpu.memory import keep_freed_memory
from tests.benchmarks.engine_workloads import (
    CONFIG,
    NUM_PROMPTS,
    PROMPT_TOKENS,
    our_engine,
    our_step,
    seconds,
    token_ids,
)
from tests.runtime.rank_processes import fork_ranks

ADDRESS = "127.0.0.1"
NUM_RANKS = 2
SEED_OF_LOADS = 2**20  # no step that is measured has these prompts
TURNS = {"prefill": 8, "decode 32": 60}
WARM_UP = {"prefill": 2, "decode 32": 10}


def planned_map(folder):
    """As a plan has it whose spec names the loads of a prefill step: [num_moe_layers][num_experts]."""
    engine = our_engine(folder, SoloGroup(), torch.bfloat16)
    engine.prefill(token_ids(NUM_PROMPTS, PROMPT_TOKENS, seed=SEED_OF_LOADS).tolist())
    loads = tuple(map(tuple, engine.model.load.rows.tolist()))
    expert_map = balance(loads, CONFIG["n_routed_experts"], NUM_RANKS)
    return [list(layer) for layer in expert_map.physical_to_logical]


def main(rank, size, port, folder, expert_map):
    """One process."""
    torch.set_num_threads(1)
    keep_freed_memory()
    group = new_group(rank, size)
    unit = our_engine(folder, group, torch.bfloat16, expert_map)
    copy = our_engine(folder, SoloGroup(), torch.bfloat16)
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
    CHECKPOINT = Path(sys.argv[1])
    fork_ranks(main, NUM_RANKS, int(sys.argv[2]), CHECKPOINT, planned_map(CHECKPOINT))
