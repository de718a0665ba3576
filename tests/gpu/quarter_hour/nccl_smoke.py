"""Rows that several ranks on one GPU exchange over NCCL: all arrive, to the bit, issued one by one and replayed.

    all_to_all    `NcclGroup`'s, of sizes that differ by rank and round, 0 among them, in bytes and in BF16; every
                  other one beside the computation
    replayed      dispatch and combine of `MaskedDispatcher`, recorded once as a CUDA graph; a rank has no tokens
    latency       of one small exchange, issued and replayed

It tries the order of exchanges, layouts and captures. Nothing here crosses a link, so its times say nothing of links.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from runtime.expert_parallel.dispatcher import LocalDispatcher, MaskedRows, PlainRows
from runtime.expert_parallel.factory import new_group
from runtime.expert_parallel.group import Group
from runtime.expert_parallel.masked import MaskedDispatcher
from runtime.kernels.device import CudaRecorder
from runtime.kernels.ops import Ops
from tests.gpu.quarter_hour import one_gpu
from tests.runtime.recorders import Recorder

ROUNDS, MOST_ROWS = 60, 300
TYPES = {torch.uint8: 7392, torch.bfloat16: 7168}  # a row of FP8 codes and scales, and one of results
TOKENS = (8, 0, 5, 1)  # of each rank, when a step is replayed
SLOTS_PER_RANK, TOP_K, HIDDEN, REPLAYS = 8, 4, 7168, 20
TIMED = 100
SECONDS = 60


def main(arguments: argparse.Namespace) -> int:
    """Run a unit of each size, and keep what its first rank says."""
    figures, right = one_gpu.Figures(arguments.output), True
    for size in arguments.ranks:
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = one_gpu.run_ranks(__spec__.name, size, Path(folder), arguments.device, SECONDS)
            except one_gpu.RanksFailed as failed:
                right = False
                figures.add(**{f"{size} ranks": str(failed)})
            else:
                figures.add(**{f"{size} ranks": found[0]})
    print("all rows arrived, to the bit" if right else "not all is right")
    return 0 if right else 1


def rank(arguments: argparse.Namespace) -> None:
    """Exchange, as one rank of a unit."""
    began = time.monotonic()
    device = one_gpu.device(arguments)
    group = one_gpu.join(new_group(arguments.rank, arguments.size, None, device), arguments.port)
    found = {"nccl": one_gpu.nccl_version(device), "mps": "CUDA_MPS_PIPE_DIRECTORY" in os.environ}
    found["joined_s"] = round(time.monotonic() - began, 2)
    for number in range(ROUNDS):
        exchange_and_compare(group, device, number)
    found["rounds"] = ROUNDS
    found |= latency(group, device)
    found |= replayed(group, device)
    found["seconds"] = round(time.monotonic() - began, 2)
    (arguments.folder / f"{arguments.rank}.json").write_text(json.dumps(found))
    group.any(False)  # nobody leaves while a peer still exchanges


def exchange_and_compare(group: Group, device: torch.device, number: int) -> None:
    """Do one exchange of sizes that all ranks know, and compare what came with what was sent."""
    drawn = random.Random(number)
    sizes = [
        [drawn.choice((0, 0, 1, drawn.randrange(MOST_ROWS))) for _ in range(group.size)] for _ in range(group.size)
    ]
    kind, width = list(TYPES.items())[number % len(TYPES)]
    send, receive = sizes[group.rank], [sizes[peer][group.rank] for peer in range(group.size)]
    rows = torch.cat([_rows(group.rank, to, count, kind, width, device) for to, count in enumerate(send)])
    expected = torch.cat([_rows(peer, group.rank, count, kind, width, device) for peer, count in enumerate(receive)])
    if number % 2:
        found = group.begin(lambda: group.all_to_all(rows, send, receive)).result()
    else:
        found = group.all_to_all(rows, send, receive)
    assert torch.equal(found, expected), f"rank {group.rank}, round {number}, {kind}: other rows came than were sent"


def latency(group: Group, device: torch.device) -> dict[str, float]:
    """Return how long an exchange of one row for each rank takes, when many are issued at once, and one by one."""
    rows, each = torch.zeros(group.size, HIDDEN, dtype=torch.bfloat16, device=device), [1] * group.size
    found = {}
    for name, waits in {"exchange_us": False, "exchange_awaited_us": True}.items():
        one_gpu.finish(device)
        began = time.monotonic()
        for _ in range(TIMED):
            group.all_to_all(rows, each, each)
            if waits:
                one_gpu.finish(device)
        one_gpu.finish(device)
        found[name] = round((time.monotonic() - began) / TIMED * 1e6, 1)
    return found


@torch.inference_mode()
def replayed(group: Group, device: torch.device) -> dict[str, float]:
    """Replay a dispatch and its combine with other tokens each time, and compare with a rank that holds all slots."""
    exchanges, ops = Exchanges(group, device), Ops(device)
    whole = LocalDispatcher(exchanges.num_slots, PlainRows(torch.bfloat16), ops)
    exchanges.compute()  # NCCL connects in the first exchange, which cannot be recorded
    recorder = CudaRecorder(device) if device.type == "cuda" else Recorder()
    recording, result = recorder.record(exchanges.compute)
    for number in range(REPLAYS):
        exchanges.draw(number)
        recording.replay()
        dispatched = whole.dispatch(*exchanges.inputs).wait()
        slots = torch.arange(exchanges.num_slots, device=device).repeat_interleave(dispatched.rows.counts_M)
        expected = whole.combine(dispatched.rows.rows_RD * _factors(slots)[:, None], dispatched).wait().sum()
        assert torch.equal(result, expected), f"rank {group.rank}, replay {number}: other sums than of one rank"
    one_gpu.finish(device)
    began = time.monotonic()
    for _ in range(REPLAYS):
        recording.replay()
    one_gpu.finish(device)
    return {"replays": REPLAYS, "replayed_layer_us": round((time.monotonic() - began) / REPLAYS * 1e6, 1)}


class Exchanges:
    """One layer's dispatch and combine, of tokens that lie at the same place in every step."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self.group, self.device = group, device
        self.num_slots = SLOTS_PER_RANK * group.size
        rows = PlainRows(torch.bfloat16)
        self.dispatcher = MaskedDispatcher(group, SLOTS_PER_RANK, max(TOKENS), rows, Ops(device))
        tokens = TOKENS[group.rank % len(TOKENS)]
        self.inputs = (
            torch.zeros(tokens, HIDDEN, dtype=torch.bfloat16, device=device),
            torch.arange(TOP_K, device=device).repeat(tokens, 1),
            torch.ones(tokens, TOP_K, device=device),
        )

    def draw(self, number: int) -> None:
        """Put other tokens, slots and weights in."""
        generator = torch.Generator().manual_seed(number * self.group.size + self.group.rank)
        x_TD, slots_TK, weights_TK = self.inputs
        x_TD.copy_(torch.randn(x_TD.shape, generator=generator))
        slots_TK.copy_(torch.rand(len(x_TD), self.num_slots, generator=generator).argsort(1)[:, :TOP_K])
        weights_TK.copy_(torch.rand(weights_TK.shape, generator=generator))

    def compute(self) -> Tensor:
        """Dispatch, multiply each row that came by a number of its slot, and combine."""
        dispatched = self.dispatcher.dispatch(*self.inputs).wait()
        assert isinstance(dispatched.rows, MaskedRows)
        first = self.group.rank * SLOTS_PER_RANK
        slots = torch.arange(first, first + SLOTS_PER_RANK, device=self.device)
        results = dispatched.rows.rows_MZD * _factors(slots)[:, None, None]
        is_room_MZ = torch.arange(results.shape[1], device=self.device) >= dispatched.rows.counts_M[:, None]
        results.masked_fill_(is_room_MZ[..., None], torch.nan)
        return self.dispatcher.combine(results, dispatched).wait().sum()


def _factors(slots: Tensor) -> Tensor:
    """Return a number of each slot by which BF16 is multiplied exactly."""
    return (2.0 ** (slots % 5 - 2)).bfloat16()


def _rows(source: int, to: int, count: int, kind: torch.dtype, width: int, device: torch.device) -> Tensor:
    """Return rows of which no two ranks send the same."""
    rows, columns = torch.arange(count, device=device)[:, None], torch.arange(width, device=device)
    return ((source * 31 + to * 57 + rows * 3 + columns) % 251).to(kind)


if __name__ == "__main__":
    sys.exit(one_gpu.part(main, rank, __doc__))
