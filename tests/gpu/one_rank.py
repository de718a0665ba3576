"""How long one rank computes, of the decode unit and the prefill unit of `deepseek-h800.yaml`, at real sizes.

    python -m tests.gpu.one_rank decode|prefill [--layers N] [--kv-tokens N | --prompt-tokens N] [-o measured.json]

One GPU is enough: the other ranks are played (`lone_rank.py`), and nothing travels. So what is printed is the compute
of a step without its links, of weights that mean nothing, beside what the planner says of this GPU:

    stages             attention 1, attention 2, gate, shared expert, experts, mlp, head: median of the layers
    busy               time in kernels; the rest of a step the GPU waits for the host to launch them
    replayed           decode's step as its unit takes it, recorded as a CUDA graph
    tokens/s a GPU     tokens of a step over its time, with all 61 layers counted from those that were run
    share of a limit   in decode of what the weights and the KV take to be read, in prefill of what the matmuls take, at
                       the rates that this GPU reaches in a copy and in a matmul of BF16, measured in the same run. FP8
                       may multiply at twice that rate, and so reach 200 %.
    memory             what torch allocated beside the planner's ledger

`-o` writes it all as JSON.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from planner.estimate.case import case_of
from planner.estimate.throughput.point import OperatingPoint
from planner.estimate.throughput.stages import Exchange, decode_spans, mlp_spans, prompt_spans
from runtime.kernels.backend import choose_backend
from runtime.kernels.device import CudaRecorder, describe, use_device
from runtime.kernels.fp8 import E4M3
from runtime.model.forward_batch import Chunk
from runtime.protocol.counting import PAGE_TOKENS
from tests.gpu.lone_rank import LoneRank
from tests.runtime.fake_device.deployments import deployed

REPLAYS, WARM_UP = 10, 2
KNOWN = ("h100", "h200", "b200")  # of the catalog, by what the driver calls a GPU
SHOWN_KERNELS = 12
OTHER_STEPS = ((128, 4096), (64, 4096), (1, 4096))  # requests, tokens of KV of each


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=["decode", "prefill"])
    parser.add_argument("--layers", type=int, default=61, help="of which 3 are dense; fewer need less memory")
    parser.add_argument("--steps", type=int, default=10, help="to take the median of")
    parser.add_argument("--kv-tokens", type=int, help="of each request of decode (default: as many as fit)")
    parser.add_argument("--prompt-tokens", type=int, help="of whole prompts (default: the end of a longest one)")
    parser.add_argument("-o", type=Path, dest="output")
    arguments = parser.parse_args()
    device = use_device("cuda", 0)
    deployment = deployed("deepseek-h800.yaml", arguments.phase, catalog_name(device))
    step = step_of(deployment, arguments.kv_tokens, arguments.prompt_tokens)
    measured = measure(device, deployment, step, arguments.layers, arguments.steps)
    print(f"{describe(device)}, {arguments.phase}, {arguments.layers} layers")
    show(measured)
    if arguments.output:
        arguments.output.write_text(json.dumps(measured, indent=1))


def catalog_name(device):
    """Return what the planner's catalog calls this GPU."""
    called = torch.cuda.get_device_name(device).lower()
    return next((name for name in KNOWN if name in called), None)


def step_of(deployment, kv_tokens, prompt_tokens):
    """Return (prefilling, decoding): the largest step of the phase, or one of requests that are so long."""
    if kv_tokens is not None:
        return [], [Chunk([7], kv_tokens - 1, table) for table in _tables(deployment.limits.max_requests, kv_tokens)]
    if prompt_tokens is not None:
        tables = _tables(deployment.limits.max_batch_tokens // prompt_tokens, prompt_tokens)
        return [Chunk([7] * prompt_tokens, 0, table) for table in tables], []
    return deployment.largest_step()


def _tables(number, num_tokens):
    pages = -(-num_tokens // PAGE_TOKENS)
    return [list(range(first * pages, (first + 1) * pages)) for first in range(number)]


def measure(device, deployment, step, layers, steps):
    """Run the steps, and return everything that is printed."""
    before = torch.cuda.memory_allocated(device)
    clock = EventClock(device)
    rank = LoneRank(deployment, step, choose_backend(device, E4M3, deterministic=False).ops, clock, layers)
    with torch.inference_mode():
        for _ in range(WARM_UP):
            rank.step()
        torch.cuda.synchronize(device)
        held = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step_s = [clock.seconds(rank.step) for _ in range(steps)]
        stages = {name: statistics.median(seconds) for name, seconds in clock.of_stages().items()}
        peak = torch.cuda.max_memory_allocated(device)
        busy_s, kernels = kernels_of(rank.step)
        replayed_s, recording_bytes, recording_s = replayed(clock, rank, device) if rank.decoding else (None, 0, 0)
    copied, multiplied = rates(device)
    head_s = stages.get("head", 0.0)
    best_s = statistics.median(step_s) if replayed_s is None else replayed_s
    return {
        "gpu": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "phase": deployment.ledger.phase,
        "layers": layers,
        "tokens": rank.num_tokens,
        "context": (*rank.prefilling, *rank.decoding)[0].end,
        "step_s": step_s,
        "busy_s": busy_s,
        "replayed_s": replayed_s,
        "recording_s": recording_s,
        "stages_s": stages,
        "planned_s": planned_stages(deployment, rank),
        "whole_step_s": rank.seconds_of_all_layers(best_s, head_s),
        "least_s": rank.least_seconds(copied, multiplied),
        "copy_bytes_per_s": copied,
        "matmul_flop_per_s": multiplied,
        "kernels": kernels,
        "memory": {
            "weights": rank.weight_bytes,
            "kv": rank.kv_bytes,
            "others held": held - before - rank.weight_bytes - rank.kv_bytes - rank.model.dispatcher.num_bytes,
            "activations": peak - held,
            "recordings": recording_bytes,
        },
        "planned_memory": {
            "weights": deployment.ledger.weight_bytes,
            "kv": rank.kv_tokens * deployment.ledger.kv_bytes_per_token,
            "others held": 0,
            "activations": deployment.ledger.activations,
            "recordings": deployment.ledger.cuda_graphs,
        },
    }


def show(measured):
    """Print it as tables."""
    planned = measured["planned_s"]
    print(f"\n{'stage':18}{'us a layer':>12}{'planned':>10}")
    for name, seconds in measured["stages_s"].items():
        expected = f"{planned[name] * 1e6:10.1f}" if name in planned else ""
        print(f"  {name:16}{seconds * 1e6:12.1f}{expected}")
    step_s = statistics.median(measured["step_s"])
    print(
        f"\na step of {measured['layers']} layers {step_s * 1e3:.1f} ms, busy {measured['busy_s'] * 1e3:.1f} ms", end=""
    )
    print(f", replayed {measured['replayed_s'] * 1e3:.1f} ms" if measured["replayed_s"] else "")
    whole = measured["whole_step_s"]
    print(f"{measured['tokens'] / whole:,.0f} tokens/s a GPU, without links; a step of 61 layers {whole * 1e3:.1f} ms")
    print(
        f"{measured['least_s'] / whole:.0%} of the limit ({measured['copy_bytes_per_s'] / 1e12:.2f} TB/s copied,"
        f" {measured['matmul_flop_per_s'] / 1e12:.0f} TFLOP/s of BF16)"
    )
    print(f"\n{'memory, GB':18}{'allocated':>12}{'planned':>10}")
    for part, num_bytes in measured["memory"].items():
        print(f"  {part:16}{num_bytes / 1e9:12.3f}{measured['planned_memory'][part] / 1e9:10.3f}")
    print("\nkernels, ms of a step")
    for name, (seconds, calls) in list(measured["kernels"].items())[:SHOWN_KERNELS]:
        print(f"  {seconds * 1e3:8.2f} {calls:5}  {name[:90]}")


class EventClock:
    """Times on the device, by events; the spans of a model are its stages."""

    def __init__(self, device):
        self._device, self._spans, self.is_on = device, defaultdict(list), True

    def seconds(self, function):
        """Call it, and return how long the device worked."""
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._spans.clear()
        began.record()
        function()
        ended.record()
        torch.cuda.synchronize(self._device)
        return began.elapsed_time(ended) / 1e3

    @contextmanager
    def span(self, name, layer=None):
        """Take the place of `runtime.trace.span`."""
        if not self.is_on:
            yield
            return
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        yield
        ended.record()
        self._spans[name].append((began, ended))

    def of_stages(self):
        """Seconds of each stage of the last step, layer by layer."""
        return {
            name: [began.elapsed_time(ended) / 1e3 for began, ended in spans] for name, spans in self._spans.items()
        }


def kernels_of(step):
    """Return how long kernels run in a step, and (seconds, calls) of each, longest first."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        step()
        torch.cuda.synchronize()
    found = {each.key: (each.self_device_time_total / 1e6, each.count) for each in profiled.key_averages()}
    ordered = dict(sorted(found.items(), key=lambda item: -item[1][0]))
    return sum(seconds for seconds, _ in ordered.values()), ordered


def replayed(clock, rank, device):
    """Return the seconds of a recorded step, and the bytes and the seconds that recording all sizes took."""
    clock.is_on = False
    free, began = torch.cuda.mem_get_info(device)[0], time.monotonic()
    captured = rank.captured(CudaRecorder(device))
    torch.cuda.synchronize(device)
    took = free - torch.cuda.mem_get_info(device)[0], time.monotonic() - began

    def seconds_of(decoding):
        return statistics.median(clock.seconds(lambda: captured.next_logits(decoding)) for _ in range(REPLAYS))

    print(f"recorded in {took[1]:.1f} s; replayed, by requests and tokens of KV of each:")
    for requests, tokens in OTHER_STEPS:
        if requests <= len(rank.decoding) and tokens <= rank.decoding[0].end:
            shorter = [replace(chunk, start=tokens - 1) for chunk in rank.decoding[:requests]]
            print(f"  {requests:4} {tokens:6,} {seconds_of(shorter) * 1e3:8.1f} ms")
    seconds = seconds_of(rank.decoding)
    clock.is_on = True
    return seconds, *took


def planned_stages(deployment, rank):
    """Return the seconds that the planner says each stage of a micro-batch takes, of ranks that are equally full."""
    tokens = max(rank.overlap.shares(rank.num_tokens))
    case = case_of(deployment.spec, deployment.layout, OperatingPoint(), Exchange(0, 0))
    moe_layer = next(layer for layer in case.model.layers if layer.expert is not None)
    dense_layer = next(layer for layer in case.model.layers if layer.dense is not None)
    shared = case.machine, case.model
    engine = case.engine.overheads
    if rank.decoding:
        kv = rank.decoding[0].end
        spans = decode_spans(*shared, moe_layer, case.unit, case.imbalance, engine, tokens, kv)
        dense = mlp_spans(*shared, dense_layer, case.unit, engine, "decode", tokens, kv, 1)
    else:
        size = len(rank.prefilling[0].token_ids)
        context = rank.prefilling[0].end - size / 2
        spans = prompt_spans(
            *(*shared, moe_layer, case.unit, case.imbalance, engine, case.exchange, tokens, context, size), "none"
        )
        dense = mlp_spans(*shared, dense_layer, case.unit, engine, "prefill", tokens, context, size)
    return {name: float(seconds) for name, seconds in (dense | spans).items()}


def rates(device):
    """(bytes a second of a copy, counting both ways, FLOP a second of a matmul in BF16) that this GPU reaches."""
    clock = EventClock(device)
    source = torch.empty(2**30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    copy_s = min(clock.seconds(lambda: target.copy_(source)) for _ in range(5))
    matmul_s = min(clock.seconds(lambda: a @ b) for _ in range(5))
    return 2 * source.nbytes / copy_s, 2 * 8192**3 / matmul_s


if __name__ == "__main__":
    main()
