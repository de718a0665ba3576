"""How long one rank computes, of the decode unit and the prefill unit of `deepseek-h800.yaml`, at real sizes.

    python -m tests.gpu.one_rank decode|prefill [--layers N] [-o calibration.json]

One GPU is enough: the other ranks are played by a dispatcher that brings as many rows as an even unit would, and
nothing travels. So what is printed is the compute of a step without its links, of weights that mean nothing:

    tokens/s a GPU     tokens of a step over its time, with all 61 layers counted from those that were run
    stages             attention 1, attention 2, gate, shared expert, experts, mlp, head: median of the layers
    share of a limit   in decode of what the weights and the KV take to be read, in prefill of what the matmuls take, at
                       the rates that this GPU reaches in a copy and in a matmul of BF16, measured in the same run. FP8
                       may multiply at twice that rate, and so reach 200 %.

`-o` writes the stages' seconds as JSON, with the GPU's name: a calibration. Nothing reads it yet. Not yet run by us.
"""

import argparse
import json
import statistics
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from runtime.expert_parallel.deep_ep import Summed
from runtime.expert_parallel.dispatcher import ContiguousRows, Dispatched, MaskedRows, Pending, WeightsApplied
from runtime.expert_parallel.group import SoloGroup
from runtime.expert_parallel.overlap import OVERLAPS
from runtime.expert_parallel.traffic import Traffic
from runtime.kernels.backend import Backend, choose_backend
from runtime.kernels.batch_invariant import Batched
from runtime.kernels.device import describe, use_device
from runtime.kernels.fp8 import E4M3, Quantised, num_blocks
from runtime.kv.cache import LatentCache
from runtime.model import deepseek, moe
from runtime.model.deepseek import DeepseekV3
from tests.runtime.fake_device.deployments import deployed

STEPS, WARM_UP = 10, 3
ALIGNED = 128


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=["decode", "prefill"])
    parser.add_argument("--layers", type=int, default=61, help="of which 3 are dense; fewer need less memory")
    parser.add_argument("-o", type=Path, dest="output")
    arguments = parser.parse_args()
    device = use_device("cuda", 0)
    clock = EventClock(device)
    deployment = deployed("deepseek-h800.yaml", arguments.phase)
    rank = Rank(deployment, choose_backend(device, E4M3, deterministic=False).ops, clock, arguments.layers)
    with torch.inference_mode():
        step_s = [clock.seconds(rank.step) for _ in range(WARM_UP + STEPS)][WARM_UP:]
    stages = {name: statistics.median(seconds) for name, seconds in clock.of_stages().items()}
    print(f"{describe(device)}, {arguments.phase}, {arguments.layers} layers: not compared with anything yet")
    for name, seconds in stages.items():
        print(f"  {name:16}{seconds * 1e6:10.1f} us a layer")
    whole = rank.seconds_of_all_layers(statistics.median(step_s), stages)
    print(f"  {rank.num_tokens / whole:,.0f} tokens/s a GPU, without links; a step of 61 layers {whole * 1e3:.1f} ms")
    print(f"  {rank.least_seconds(*rates(device)) / whole:.0%} of the limit")
    if arguments.output:
        calibration = {"gpu": torch.cuda.get_device_name(device), "phase": arguments.phase, "stage_seconds": stages}
        arguments.output.write_text(json.dumps(calibration, indent=1))


class EventClock:
    """Times on the device, by events; the spans of a model are its stages."""

    def __init__(self, device):
        self._device, self._spans = device, defaultdict(list)

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


class Rank:
    """One rank of a deployment, with random weights and a cache as large as its step needs."""

    def __init__(self, deployment, ops, clock, layers):
        self.prefilling, self.decoding = deployment.largest_step()
        self.num_tokens = sum(len(chunk.token_ids) for chunk in (*self.prefilling, *self.decoding))
        self.config, self.unit = replace(deployment.config, num_hidden_layers=layers), deployment.unit
        self.all_layers = deployment.config.num_hidden_layers
        slots = self.unit.num_slots // self.unit.ep_size
        experts = [slot % self.config.n_routed_experts for slot in range(self.config.n_routed_experts)]
        deepseek.span = moe.span = clock.span
        backend = Backend(E4M3, ops, Batched())
        maps = [experts] * self.config.num_moe_layers
        self.model = _with_slots(DeepseekV3, slots)(
            self.config, maps, SoloGroup(), backend, OVERLAPS[self.unit.overlap]
        )
        self.model.dispatcher = Alone(self.unit, slots, self.config, ops, decodes=bool(self.decoding))
        for module in self.model.modules():
            if isinstance(module, moe.MixtureOfExperts):
                module.dispatcher = self.model.dispatcher
        fill(self.model)
        pages = 1 + max(page for chunk in (*self.prefilling, *self.decoding) for page in chunk.table)
        kv = self.config.num_hidden_layers, self.config.latent_dim, pages * 64
        self.cache = LatentCache(*kv, torch.bfloat16, ops.device)
        self.kv_bytes = sum(chunk.end for chunk in self.decoding) * self.config.latent_dim * 2 * self.all_layers

    def step(self):
        """Compute one step."""
        return self.model.next_logits(self.prefilling, self.decoding, self.cache)

    def seconds_of_all_layers(self, step_s, stages):
        """Add the layers that were not run, each as long as the mean of those that were."""
        head = stages.get("head", 0.0)
        return head + (step_s - head) * self.all_layers / self.config.num_hidden_layers

    def least_seconds(self, bytes_per_s, flop_per_s):
        """What the step takes at the least: reading in decode, multiplying in prefill."""
        matrices = sum(values.numel() for values in self.model.parameters() if values.dtype == E4M3)
        scale = self.all_layers / self.config.num_hidden_layers
        if self.decoding:
            return (matrices * scale + self.kv_bytes) / bytes_per_s
        experts = sum(values.numel() for name, values in self.model.named_parameters() if ".experts." in name)
        share = self.config.num_experts_per_tok * self.unit.ep_size / self.unit.num_slots  # of a token, in a slot here
        dense = sum(v.numel() for v in self.model.parameters() if v.dtype == E4M3) - experts
        return 2 * self.num_tokens * (dense + experts * share) * scale / flop_per_s


class Alone:
    """Brings as many rows as an even unit would, from nowhere."""

    weights_applied, sums_in_order = WeightsApplied.BY_COMBINE, False

    def __init__(self, unit, slots, config, ops, decodes):
        self.unit, self.slots, self.config, self.ops, self.decodes = unit, slots, config, ops, decodes
        self.traffic = Traffic()

    def begin_step(self, num_tokens):
        """There is nobody."""

    def dispatch(self, x_TD, slots_TK, weights_TK):
        """Make rows of ones: as many pairs as this rank's tokens have, spread over its slots."""
        per_slot, hidden = slots_TK.numel() // self.slots, x_TD.shape[1]
        counts_M = torch.full((self.slots,), per_slot, device=self.ops.device)
        sent_W = counts_M.sum(0, keepdim=True)
        if self.decodes:
            room = len(x_TD) * self.unit.ep_size
            rows = MaskedRows(_ones(self.ops, self.slots, room, hidden), counts_M, expected_rows=max(1, per_slot))
        else:
            counts = [-(-per_slot // ALIGNED) * ALIGNED] * self.slots
            rows = ContiguousRows(_ones(self.ops, sum(counts), hidden), counts_M, counts)
        dispatched = Dispatched(rows, sent_W, x_TD)
        return Pending(lambda: None, lambda _: dispatched)

    def combine(self, results, dispatched):
        """Give the tokens' own activations back."""
        return Pending(lambda: None, lambda _: Summed(torch.empty_like(dispatched.way_back).copy_(dispatched.way_back)))


def _ones(ops, *shape):
    codes = torch.empty(shape, dtype=torch.uint8, device=ops.device).fill_(0x38).view(E4M3)
    scales = torch.ones(*shape[:-1], num_blocks(shape[-1]), device=ops.device)
    return Quantised(codes, scales)


def _with_slots(model, slots):
    """A model whose layers hold so many experts, although its unit is one rank and its gate chooses among all."""

    class WithSlots(model):
        def _feed_forward(self, layer, expert_map, rank):
            self.load.rows = self.load.rows[:, :slots]
            self.load.local_experts = self.load.local_experts[:, :slots]
            self.load._rows_of_layer = list(self.load.rows)
            return super()._feed_forward(layer, expert_map, rank)

    return WithSlots


def fill(model):
    """Random codes, small scales, and ones: numbers that stay finite."""
    for name, values in model.named_parameters():
        if values.dtype == E4M3:
            values.data.view(torch.uint8).random_(0, 0x38)  # from 0 to 1
        elif "scale" in name:
            values.data.fill_(2**-10)
        else:
            values.data.normal_(0, 0.02)


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
