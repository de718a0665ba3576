"""What deterministic mode costs: the bundled demo model with and without it, turn about in one run.

    python tests/benchmarks/deterministic.py

Prints tokens per second of prefill (4 prompts of 512 tokens in a step) and of decode (1 and 8 requests with 200 tokens
of KV), the median of `REPEATS` steps each, and how many times as long a step takes in the mode. One thread, one rank.
"""

import statistics
import time

import torch

from runtime.checkpoint import resolve
from runtime.expert_parallel.group import SoloGroup
from runtime.model.config import read_model_config
from runtime.model.engine import Engine, EngineConfig
from runtime.model.forward_batch import Chunk

REPEATS = 15


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    for dtype in (torch.float32, torch.bfloat16):
        engines = [_engine(dtype, deterministic) for deterministic in (False, True)]
        for name, num_tokens, steps in (
            ("prefill 4 x 512", 2048, [_prefill(engine) for engine in engines]),
            ("decode 1", 1, [_decode(engine, 1) for engine in engines]),
            ("decode 8", 8, [_decode(engine, 8) for engine in engines]),
        ):
            fast, exact = _medians(steps)
            rates = f"{num_tokens / fast:8,.0f} -> {num_tokens / exact:8,.0f} tokens/s"
            print(f"{str(dtype).removeprefix('torch.'):9} {name:16} {rates}   x {exact / fast:.2f}")


def _engine(dtype, deterministic):
    folder = resolve("bundled:demo")
    config = read_model_config(folder)
    expert_map = [list(range(config.n_routed_experts))] * config.num_moe_layers
    return Engine(EngineConfig(folder, expert_map, dtype, deterministic), SoloGroup())


def _prefill(engine):
    prompts = _prompts(4, 512)
    return lambda: engine.prefill(prompts)


def _decode(engine, num_requests):
    cache = engine.new_cache(num_requests * 256)
    tokens = [Chunk([5], 200, []) for _ in range(num_requests)]
    for token, latents in zip(tokens, engine.prefill(_prompts(num_requests, 200))[1], strict=True):
        cache.allocate(token.table, 201)
        cache.swap_in(token.table, latents)
    return lambda: engine.step([], tokens, cache)


def _prompts(count, length):
    return torch.randint(4096, (count, length), generator=torch.Generator().manual_seed(0)).tolist()


def _medians(steps):
    """Seconds of each step, the steps taken in turn so that the machine's moods meet all of them."""
    seconds = [[] for _ in steps]
    for _ in range(REPEATS + 1):
        for step, taken in zip(steps, seconds, strict=True):
            start = time.perf_counter()
            step()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken[1:]) for taken in seconds]  # the first warms up


if __name__ == "__main__":
    main()
