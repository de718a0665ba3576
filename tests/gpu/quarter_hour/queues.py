"""What the device alone shows of its queues: tiles for a full unit, latents beside steps, sleeping waits, pinning."""

import argparse
import json
import sys
import threading
import time
from pathlib import Path

import torch

from runtime.kernels.device import HostLink, PinnedLink
from runtime.kernels.fp8 import E4M3, Quantised
from runtime.kernels.gpu.ops import GpuOps
from runtime.kernels.gpu.packages import find_packages
from runtime.kv.cache import LatentCache
from tests.gpu import test_queues
from tests.gpu.quarter_hour.parts import MISSING

SLOTS, ROOM = 2, 9216  # of a rank of EP144, with room for 64 tokens of each rank
MATRICES = {"gate and up": (4096, 7168), "down": (7168, 2048)}  # of an expert of DeepSeek-V3
LAYERS, TOKENS, LATENT = 61, 5000, 576
ROUNDS = 20


def main() -> int:
    """Print each figure as it is found, and write all of them as JSON. With `--device cpu` only the copies run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", type=Path, dest="output", required=True)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("no GPU")
        return MISSING
    device = torch.device(arguments.device, 0 if arguments.device == "cuda" else None)
    found: dict[str, object] = {}
    for figure in (steps_with_arrivals,) if device.type == "cpu" else (checks, tiles, steps_with_arrivals, waits, pins):
        try:
            found[figure.__name__] = figure(device)
        except (AssertionError, RuntimeError, ImportError) as error:  # the next figure does not need this one
            found[figure.__name__] = f"failed: {type(error).__name__}: {error}"
        print(figure.__name__, json.dumps(found[figure.__name__]), flush=True)
        arguments.output.write_text(json.dumps(found))
    failed = [name for name, value in found.items() if isinstance(value, str) and value.startswith("failed")]
    print(f"wrong: {', '.join(failed)}" if failed else "all is right")
    return int(bool(failed))


def checks(device):
    """Run the tests of queues, and return their names."""
    tests = [getattr(test_queues, name) for name in dir(test_queues) if name.startswith("test_")]
    for test in tests:
        test(device)
    return [test.__name__ for test in tests]


def tiles(device):
    """Return ms of a masked matmul by rows that come and rows that DeepGEMM is told to expect."""
    packages = find_packages(device)
    if packages.deep_gemm is None:
        return "deep_gemm cannot be used"
    ops, took = GpuOps(device, packages), {}
    for name, (outputs, channels) in MATRICES.items():
        by_columns = torch.ones(SLOTS, channels // 128, ROOM, device=device).transpose(1, 2)  # as DeepEP brings them
        x = Quantised(codes(device, SLOTS, ROOM, channels), by_columns)
        scales = torch.ones(SLOTS, outputs // 128, channels // 128, device=device)
        w = Quantised(codes(device, SLOTS, outputs, channels), scales)
        for rows in (16, 256):
            counts = torch.full((SLOTS,), rows, dtype=torch.int32, device=device)
            for told in (1, 16, 256):
                step = lambda x=x, w=w, counts=counts, told=told: ops._masked_matmul(x, w, counts, told)  # noqa: E731
                took[f"{name}, {rows} rows come, {told} expected"] = milliseconds(step)
    return took


def codes(device, *shape):
    """Return codes of numbers from 0 to 1."""
    return torch.empty(shape, dtype=torch.uint8, device=device).random_(0, 0x38).view(E4M3)


def steps_with_arrivals(device):
    """Return ms of a step alone, with a prompt's latents copied by it, and beside it."""
    on_gpu = device.type == "cuda"
    layers, tokens, size = (LAYERS, TOKENS, 8192) if on_gpu else (2, 100, 64)
    x = torch.ones(size, size, dtype=torch.bfloat16, device=device)
    took = {"alone": milliseconds(lambda: x @ x, rounds=1)}
    for name, link in {"by it": HostLink(), "beside it": PinnedLink(device) if on_gpu else HostLink()}.items():
        cache = LatentCache(layers, LATENT, tokens, torch.bfloat16, device, link)
        memory = (PinnedLink(device) if on_gpu else HostLink()).empty((layers, tokens, LATENT), torch.bfloat16)
        table, latents = [], memory.zero_()
        cache.allocate(table, tokens)

        def step(cache=cache, table=table, latents=latents):
            arrival = cache.swap_in(table, latents)
            for _ in range(ROUNDS):
                x @ x
            return arrival

        took[name] = milliseconds(step, rounds=3)
    took["alone"] *= ROUNDS
    return took


def waits(device):
    """Return CPU seconds of a wait of 200 ms, and ms of a wait for a kernel of about 1 ms, spinning and sleeping."""
    took = {}
    for name, blocking in {"spins": False, "sleeps": True}.items():
        event = torch.cuda.Event(blocking=blocking)
        for cycles, rounds in ((2 * 10**6, ROUNDS), (4 * 10**8, 1)):
            began, cpu = time.perf_counter(), time.thread_time()
            for _ in range(rounds):
                torch.cuda._sleep(cycles)
                event.record()
                event.synchronize()
            seconds = (time.perf_counter() - began) / rounds
            took[f"{name}, {cycles:.0e} cycles"] = {"ms": 1000 * seconds, "cpu_s": time.thread_time() - cpu}
    return took


def pins(device):
    """Return seconds of pinning a gigabyte, fresh and again, and the longest that a launch waited meanwhile."""
    link, x, took = PinnedLink(device), torch.ones(1, device=device), {}
    for name in ("fresh", "again"):
        longest, began = 0.0, time.perf_counter()
        thread = threading.Thread(target=link.empty, args=((2**29,), torch.bfloat16))
        thread.start()
        while thread.is_alive():
            launched = time.perf_counter()
            x.add_(1)
            longest = max(longest, time.perf_counter() - launched)
            time.sleep(0.001)
        took[name] = {"s": time.perf_counter() - began, "longest_launch_s": longest}
    return took


def milliseconds(step, rounds=ROUNDS):
    """Return the mean of `rounds`, after one that compiles."""
    step()
    synchronise()
    began = time.perf_counter()
    for _ in range(rounds):
        step()
    synchronise()
    return 1000 * (time.perf_counter() - began) / rounds


def synchronise():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
