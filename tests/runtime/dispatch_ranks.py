"""The ranks of the dispatch test: `dispatch_ranks.py SIZE PORT SLOTS_PER_RANK FOLDER`.

Each reads `FOLDER/input.npz` (`x_ROUND_RANK` [T, D] and `slots_ROUND_RANK` [T, K]), dispatches each round, computes an
"expert" that depends on the slot, combines, and writes `FOLDER/RANK.npz`.
"""

import itertools
import sys
from pathlib import Path

import numpy as np
import torch

from runtime.dispatch import AllToAllDispatcher, PlainRows
from runtime.parallel import GlooGroup, MeetingPoint
from tests.runtime.rank_processes import fork_ranks

ADDRESS = "127.0.0.1"


def main(rank, size, port, slots_per_rank, folder):
    group = GlooGroup(rank, size)
    group.join(MeetingPoint(ADDRESS, port, rank == 0, ADDRESS))
    dispatcher = AllToAllDispatcher(group, slots_per_rank, PlainRows(torch.float32))
    results = {}
    with np.load(folder / "input.npz", allow_pickle=False) as inputs:
        for number in itertools.count():
            if f"x_{number}_{rank}" not in inputs:
                break
            x, slots = (torch.from_numpy(inputs[f"{name}_{number}_{rank}"]) for name in ("x", "slots"))
            dispatched = dispatcher.dispatch(x, slots).wait()
            own_slots = torch.arange(rank * slots_per_rank, (rank + 1) * slots_per_rank)
            slot_of_row = own_slots.repeat_interleave(torch.tensor(dispatched.counts))
            combined = dispatcher.combine(dispatched.rows_RD * (slot_of_row[:, None] + 1), dispatched).wait()
            results[f"combined_{number}"] = combined.rows_RD[combined.places].numpy()
            results[f"counts_{number}"] = np.array(dispatched.counts)
            results[f"bytes_{number}"] = np.array(dispatcher.bytes_sent)
    np.savez(folder / f"{rank}.npz", **results)
    group.any(False)  # nobody leaves while a peer still exchanges


if __name__ == "__main__":
    fork_ranks(main, *map(int, sys.argv[1:4]), Path(sys.argv[4]))
