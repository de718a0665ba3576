"""The ranks of the slow link test: `slow_link_ranks.py SIZE PORT CHECKPOINT FOLDER`.

The link between the ranks takes LINK_S to move a batch's rows; each half of attention, the experts and the head take
STAGE_S longer than they do; half a batch takes half of it. All of it is slept, so that the proportions hold on a busy
machine; rows, exchanges, threads and trace are the real ones.

Writes `FOLDER/PHASE-OVERLAP-RANK.json`, a trace of STEPS steps each, `FOLDER/PHASE-late-RANK.json`, with overlap on a
link so slow that it does not hide, and `FOLDER/RANK.json`, when the link was busy:
[from, to] in the trace's microseconds. To: when it was done, not when a busy machine let its thread go on.
"""

import json
import sys
import time
from pathlib import Path

import torch

from runtime.expert_parallel.group import GlooGroup
from runtime.expert_parallel.overlap import OVERLAPS
from runtime.expert_parallel.rendezvous import MeetingPoint
from runtime.model.engine import Engine, EngineConfig
from runtime.model.forward_batch import Chunk
from runtime.trace import recording
from tests.runtime.overlap_ranks import contiguous_map
from tests.runtime.rank_processes import fork_ranks

ADDRESS = "127.0.0.1"
OVERLAP = {"prefill": "dual_batch", "decode": "five_stage"}
STAGE_S, LINK_S, LATE_LINK_S = 0.020, 0.012, 0.036
STEPS = 5
REQUESTS, TOKENS = 8, 8


class SlowGroup(GlooGroup):
    """A group with a slow link, in which each rank is on a node of its own."""

    def __init__(self, rank, size):
        super().__init__(rank, size, range(size))
        self.num_micro_batches = 1
        self.link_s = LINK_S
        self.busy_us = []

    def all_to_all(self, rows, send, receive):
        """Exchange rows slowly, and sizes, which are integers, at once."""
        if rows.dtype != torch.int64:
            began_us, takes_s = time.monotonic_ns() / 1000, self.link_s / self.num_micro_batches
            time.sleep(takes_s)
            self.busy_us.append((began_us, began_us + takes_s * 1e6))
        return super().all_to_all(rows, send, receive)


def main(rank, size, port, checkpoint, folder):
    group = SlowGroup(rank, size)
    engine = Engine(EngineConfig(checkpoint, contiguous_map(checkpoint), torch.float32), group)
    slow_down(engine.model, group)
    group.join(MeetingPoint(ADDRESS, port, rank == 0, ADDRESS))
    prompts = [[7 * place % 96 for place in range(REQUESTS * TOKENS)]]  # one: its halves hide each other's exchanges
    for phase, step in (("prefill", lambda: engine.prefill(prompts)), ("decode", decode_step(engine))):
        for overlap, name in (("none", "none"), (OVERLAP[phase], OVERLAP[phase]), (OVERLAP[phase], "late")):
            engine.model.overlap = OVERLAPS[overlap]
            group.num_micro_batches = engine.model.overlap.num_micro_batches
            group.link_s = LATE_LINK_S if name == "late" else LINK_S
            with recording(folder / f"{phase}-{name}-{rank}.json", rank):
                for _ in range(STEPS):
                    step()
    (folder / f"{rank}.json").write_text(json.dumps(group.busy_us))
    group.any(False)  # nobody leaves while a peer still exchanges


def slow_down(model, group):
    """Slow down attention's two halves, the experts and the head."""

    def slow(function):
        def slowed(*arguments):
            time.sleep(STAGE_S / group.num_micro_batches)
            return function(*arguments)

        return slowed

    model.lm_head.forward = slow(model.lm_head.forward)
    for layer in model.model.layers:
        layer.self_attn.begin, layer.self_attn.finish = slow(layer.self_attn.begin), slow(layer.self_attn.finish)
        if hasattr(layer.mlp, "experts"):
            layer.mlp.experts.forward = slow(layer.mlp.experts.forward)


def decode_step(engine):
    """Return one decoding token for each request, always the same."""
    cache = engine.new_cache(REQUESTS * 64)
    chunks = [Chunk([5 * number], TOKENS, []) for number in range(REQUESTS)]
    for chunk in chunks:
        cache.allocate(chunk.table, chunk.end)
    return lambda: engine.step([], chunks, cache)


if __name__ == "__main__":
    fork_ranks(main, *map(int, sys.argv[1:3]), *map(Path, sys.argv[3:5]))
