"""The ranks of the dispatch test: `dispatch_ranks.py SIZE PORT SLOTS_PER_RANK FOLDER`.

Each reads `FOLDER/input.npz` (`x_ROUND_RANK` [T, D], `slots_ROUND_RANK` and `weights_ROUND_RANK` [T, K]), dispatches
each round by each form, computes an "expert" that depends on the slot, combines, and writes `FOLDER/RANK.npz`
(`FORM_WHAT_ROUND`).
"""

import itertools
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from runtime.expert_parallel.dispatcher import AllToAllDispatcher, MaskedRows, PlainRows
from runtime.expert_parallel.factory import new_dispatcher
from runtime.expert_parallel.group import GlooGroup
from runtime.expert_parallel.hierarchical import NodeDispatcher
from runtime.expert_parallel.masked import MaskedDispatcher
from runtime.expert_parallel.rendezvous import MeetingPoint
from runtime.expert_parallel.shared_memory.dispatcher import SharedDispatcher
from runtime.expert_parallel.shared_memory.pipes import Pipes
from tests.runtime.on_cpu import TORCH_OPS, backend
from tests.runtime.rank_processes import fork_ranks

ADDRESS = "127.0.0.1"
HIDDEN = 16
ROW_BYTES = HIDDEN * 4
TOP_K = 3
MOST_PAIRS = 120  # that a rank has in a round: all may want one slot


def main(rank, size, port, slots_per_rank, folder):
    group = GlooGroup(rank, size)
    group.join(MeetingPoint(ADDRESS, port, rank == 0, ADDRESS))
    exchanges = Counter()
    group.all_to_all, Pipes.signal = map(exchanges.count_calls, (group.all_to_all, Pipes.signal))
    results = {}
    with np.load(folder / "input.npz", allow_pickle=False) as inputs:
        for form, dispatcher in forms(group, slots_per_rank):
            for number in itertools.count():
                if f"x_{number}_{rank}" not in inputs:
                    break
                names = ("x", "slots", "weights")
                step = [torch.from_numpy(inputs[f"{name}_{number}_{rank}"]) for name in names]
                result = torch.float64 if form == "shared_wide" else torch.float32
                found = one_round(dispatcher, step, rank * slots_per_rank, result, exchanges)
                results |= {f"{form}_{what}_{number}": value for what, value in found.items()}
    np.savez(folder / f"{rank}.npz", **results)
    group.any(False)  # nobody leaves while a peer still exchanges


class Counter:
    """Counts the calls of functions."""

    number = 0

    def count_calls(self, function):
        """Return the function with its calls counted."""

        def call(*arguments):
            self.number += 1
            return function(*arguments)

        return call


def forms(group, slots_per_rank):
    """Yield (name, dispatcher), one after another, because each sets the ranks' nodes."""
    rows = PlainRows(torch.float32)
    for form, nodes in node_layouts(group.size).items():
        group.nodes = nodes
        form_of_layout = NodeDispatcher if form.startswith("by") else AllToAllDispatcher
        yield form, form_of_layout(group, slots_per_rank, rows, TORCH_OPS)
    group.nodes = tuple(range(group.size))
    yield "each_alone", new_dispatcher(group, slots_per_rank, TOP_K, rows, torch.zeros(1, HIDDEN), backend())
    yield "masked", MaskedDispatcher(group, slots_per_rank, MOST_PAIRS, rows, TORCH_OPS)
    normal = AllToAllDispatcher(group, slots_per_rank, rows, TORCH_OPS)
    yield "shared", SharedDispatcher(normal, ROW_BYTES, ROW_BYTES, TOP_K)
    yield "shared_wide", SharedDispatcher(normal, ROW_BYTES, 2 * ROW_BYTES, TOP_K)
    with patch("os.getpid", return_value=0):  # as a rank in another container would say it: nobody finds that process
        yield "not_shared", SharedDispatcher(normal, ROW_BYTES, ROW_BYTES, TOP_K)


def node_layouts(size):
    """Return form -> the node of each rank.

    Halves are two nodes; in the last form the first rank is alone on a node.
    """
    halves = tuple(rank * 2 // size for rank in range(size))
    return {"all_to_all": halves, "by_node": halves, "by_uneven_node": (0,) + (1,) * (size - 1)}


def one_round(dispatcher, step, first_slot, result, exchanges):
    dispatcher.begin_step(len(step[0]))
    before = exchanges.number
    dispatched = dispatcher.dispatch(*step).wait()
    to_dispatch = exchanges.number - before
    counts = dispatched.rows.counts_M
    slots = torch.arange(first_slot, first_slot + len(counts))
    if isinstance(dispatched.rows, MaskedRows):
        rooms = dispatched.rows.rows_MZD
        rows = torch.cat([room[:count] for room, count in zip(rooms, counts, strict=True)])
        results = rooms * (slots[:, None, None] + 1)
    else:
        rows = dispatched.rows.rows_RD.clone()
        results = rows * (slots.repeat_interleave(counts)[:, None] + 1)
        assert dispatched.rows.counts == counts.tolist()
    combined = dispatcher.combine(results.to(result), dispatched).wait()
    return {
        "rows": rows.numpy(),
        "combined": combined.rows_RD[combined.row_of_pair_TK].float().numpy(),
        "sums": combined.sum().float().numpy(),
        "counts": counts.numpy(),
        "sent": dispatched.sent_W.numpy(),
        "bytes": np.array(dispatcher.traffic.bytes_sent),
        "node_bytes": np.array(dispatcher.traffic.bytes_to_other_nodes),
        "exchanges": np.array([to_dispatch, exchanges.number - before - to_dispatch]),
    }


if __name__ == "__main__":
    fork_ranks(main, *map(int, sys.argv[1:4]), Path(sys.argv[4]))
