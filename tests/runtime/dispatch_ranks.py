"""The ranks of the dispatch test: `dispatch_ranks.py SIZE PORT SLOTS_PER_RANK FOLDER`.

Each reads `FOLDER/input.npz` (`x_ROUND_RANK` [T, D] and `slots_ROUND_RANK` [T, K]), dispatches each round by each form,
computes an "expert" that depends on the slot, combines, and writes `FOLDER/RANK.npz` (`FORM_WHAT_ROUND`).
"""

import itertools
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from runtime.expert_parallel.dispatcher import AllToAllDispatcher, PlainRows
from runtime.expert_parallel.group import GlooGroup
from runtime.expert_parallel.hierarchical import LowLatencyDispatcher, NodeDispatcher, new_dispatcher
from runtime.expert_parallel.rendezvous import MeetingPoint
from runtime.expert_parallel.shared_memory.dispatcher import SharedDispatcher
from runtime.expert_parallel.shared_memory.pipes import Pipes
from tests.runtime.rank_processes import fork_ranks

ADDRESS = "127.0.0.1"
HIDDEN = 16
ROW_BYTES = HIDDEN * 4
TOP_K = 3
SMALL_STEP_TOKENS = 7


def main(rank, size, port, slots_per_rank, folder):
    group = GlooGroup(rank, size)
    group.join(MeetingPoint(ADDRESS, port, rank == 0, ADDRESS))
    exchanges = Counter()
    group.all_to_all, Pipes.signal = map(exchanges.counted, (group.all_to_all, Pipes.signal))
    results = {}
    with np.load(folder / "input.npz", allow_pickle=False) as inputs:
        for form, dispatcher in forms(group, slots_per_rank):
            for number in itertools.count():
                if f"x_{number}_{rank}" not in inputs:
                    break
                x, slots = (torch.from_numpy(inputs[f"{name}_{number}_{rank}"]) for name in ("x", "slots"))
                result = torch.float64 if form == "shared_wide" else torch.float32
                found = one_round(dispatcher, x, slots, rank * slots_per_rank, result, exchanges)
                results |= {f"{form}_{what}_{number}": value for what, value in found.items()}
    np.savez(folder / f"{rank}.npz", **results)
    group.any(False)  # nobody leaves while a peer still exchanges


class Counter:
    """Knows how often functions were called."""

    number = 0

    def counted(self, function):
        """It, and counted."""

        def call(*arguments):
            self.number += 1
            return function(*arguments)

        return call


def forms(group, slots_per_rank):
    """(name, dispatcher), one after another, because the ranks' nodes are not those of all."""
    rows = PlainRows(torch.float32)
    for form, nodes in node_layouts(group.size).items():
        group.nodes = nodes
        yield form, (NodeDispatcher if form.startswith("by") else AllToAllDispatcher)(group, slots_per_rank, rows)
    group.nodes = tuple(range(group.size))
    yield "each_alone", new_dispatcher(group, slots_per_rank, TOP_K, rows, torch.zeros(1, HIDDEN), 0)
    normal = AllToAllDispatcher(group, slots_per_rank, rows)
    yield "low_latency", LowLatencyDispatcher(normal, SMALL_STEP_TOKENS)
    yield "shared", SharedDispatcher(normal, ROW_BYTES, ROW_BYTES, TOP_K)
    yield "shared_wide", SharedDispatcher(normal, ROW_BYTES, 2 * ROW_BYTES, TOP_K)
    with patch("os.getpid", return_value=0):  # as a rank in another container would say it: nobody finds that process
        yield "not_shared", SharedDispatcher(normal, ROW_BYTES, ROW_BYTES, TOP_K)


def node_layouts(size):
    """Form -> the node of each rank. Halves are two nodes; in the last form, the first rank has one for itself."""
    halves = tuple(rank * 2 // size for rank in range(size))
    return {"all_to_all": halves, "by_node": halves, "by_uneven_node": (0,) + (1,) * (size - 1)}


def one_round(dispatcher, x, slots, first_slot, result, exchanges):
    dispatcher.begin_step(len(slots))
    before = exchanges.number
    dispatched = dispatcher.dispatch(x, slots).wait()
    to_dispatch = exchanges.number - before
    own_slots = torch.arange(first_slot, first_slot + len(dispatched.counts))
    slot_of_row = own_slots.repeat_interleave(torch.tensor(dispatched.counts))
    rows = dispatched.rows_RD.clone()
    combined = dispatcher.combine((rows * (slot_of_row[:, None] + 1)).to(result), dispatched).wait()
    return {
        "rows": rows.numpy(),
        "combined": combined.rows_RD[combined.places].float().numpy(),
        "counts": np.array(dispatched.counts),
        "sent": np.array(dispatched.sent),
        "bytes": np.array(dispatcher.traffic.bytes_sent),
        "node_bytes": np.array(dispatcher.traffic.bytes_to_other_nodes),
        "exchanges": np.array([to_dispatch, exchanges.number - before - to_dispatch]),
    }


if __name__ == "__main__":
    fork_ranks(main, *map(int, sys.argv[1:4]), Path(sys.argv[4]))
