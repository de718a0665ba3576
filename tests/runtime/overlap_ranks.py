"""The ranks of the overlap test: `overlap_ranks.py SIZE PORT CHECKPOINT FOLDER`.

Each reads `FOLDER/prompts.json`, takes every SIZE-th prompt, and computes them under each overlap: logits and
latents of one prefill step, then the logits of a few decode steps. Writes `FOLDER/RANK.npz`
(`OVERLAP_WHAT`, by own requests).
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from runtime.expert_parallel.factory import new_group
from runtime.expert_parallel.overlap import OVERLAPS
from runtime.expert_parallel.rendezvous import MeetingPoint
from runtime.model.engine import Engine, EngineConfig
from runtime.model.forward_batch import Chunk
from tests.runtime.rank_processes import fork_ranks

ADDRESS = "127.0.0.1"
DECODE_STEPS = 3
MAX_REQUEST_TOKENS = 64


def main(rank, size, port, checkpoint, folder):
    group = new_group(rank, size, [rank * 2 // size for rank in range(size)])  # two nodes
    engine = Engine(EngineConfig(checkpoint, contiguous_map(checkpoint), torch.float32, deterministic=True), group)
    group.join(MeetingPoint(ADDRESS, port, rank == 0, ADDRESS))
    share = json.loads((folder / "prompts.json").read_text())[rank::size]
    results = {}
    for overlap in OVERLAPS:
        engine.model.overlap = OVERLAPS[overlap]
        for what, value in compute_all(engine, share).items():
            results[f"{overlap}_{what}"] = value.numpy()
    np.savez(folder / f"{rank}.npz", **results)
    group.any(False)  # nobody leaves while a peer still exchanges


def compute_all(engine, prompts):
    """Return `prefill` [prompts, vocab], `latents` [layers, tokens, C] and `decode` [steps, prompts, vocab]."""
    logits, latents = engine.prefill(prompts)
    cache = engine.new_cache(len(prompts) * MAX_REQUEST_TOKENS)
    tables = [[] for _ in prompts]
    for table, latent in zip(tables, latents, strict=True):
        cache.allocate(table, MAX_REQUEST_TOKENS)
        cache.swap_in(table, latent)
    steps, ends = [logits], [len(prompt) for prompt in prompts]
    for number in range(DECODE_STEPS):
        last = steps[-1].argmax(-1).tolist()
        tokens = [Chunk([token], end + number, table) for token, end, table in zip(last, ends, tables, strict=True)]
        steps.append(engine.step([], tokens, cache))
    return {
        "prefill": logits,
        "latents": torch.cat(latents, 1) if latents else torch.empty(0),
        "decode": torch.stack(steps[1:]),
    }


def contiguous_map(checkpoint):
    """Return the experts in order, one slot each."""
    config = json.loads((checkpoint / "config.json").read_text())
    return [list(range(config["n_routed_experts"]))] * (config["num_hidden_layers"] - config["first_k_dense_replace"])


if __name__ == "__main__":
    fork_ranks(main, *map(int, sys.argv[1:3]), *map(Path, sys.argv[3:5]))
