"""One rank of a shipped unit at real sizes on one GPU, with random weights and nobody to exchange rows with.

A dispatcher plays the other ranks: it brings as many rows as an even unit would send, and nothing travels.
"""

from dataclasses import replace

import torch

from runtime.expert_parallel.deep_ep import Summed
from runtime.expert_parallel.dispatcher import (
    ContiguousRows,
    Dispatched,
    MaskedRows,
    Pending,
    WeightsApplied,
    planned_rows,
)
from runtime.expert_parallel.group import SoloGroup
from runtime.expert_parallel.overlap import OVERLAPS
from runtime.expert_parallel.traffic import Traffic
from runtime.kernels.backend import Backend
from runtime.kernels.batch_invariant import Batched
from runtime.kernels.fp8 import E4M3, Quantised, num_blocks
from runtime.kernels.gpu.quantise import _empty_scales
from runtime.kv.cache import LatentCache
from runtime.model import deepseek, moe
from runtime.model.captured_steps import CapturedSteps
from runtime.model.deepseek import DeepseekV3
from runtime.protocol.counting import PAGE_TOKENS

__all__ = ["LoneRank"]

ALIGNED = 128  # rows that each expert's begin at a multiple of, as DeepEP brings them to DeepGEMM
ONE = 0x38  # in E4M3; the codes below it are the numbers from 0 to 1


class LoneRank:
    """A rank of a deployment, with `layers` of the model's, and a cache as large as its step needs."""

    def __init__(self, deployment, step, ops, clock, layers):
        self.prefilling, self.decoding = step
        self.num_tokens = sum(len(chunk.token_ids) for chunk in (*self.prefilling, *self.decoding))
        self.config, self.unit = replace(deployment.config, num_hidden_layers=layers), deployment.unit
        self.all_layers = deployment.config.num_hidden_layers
        self.overlap = OVERLAPS[self.unit.overlap]
        slots = self.unit.num_slots // self.unit.ep_size
        experts = [slot % self.config.n_routed_experts for slot in range(self.config.n_routed_experts)]
        maps = [experts] * self.config.num_moe_layers
        deepseek.span = moe.span = clock.span
        backend = Backend(E4M3, ops, Batched())
        self.model = _with_slots(DeepseekV3, slots)(self.config, maps, SoloGroup(), backend, self.overlap)
        capacity = max(self.overlap.shares(len(self.decoding))) if self.decoding else None
        self.model.dispatcher = Alone(self.unit, slots, self.config.hidden_size, ops, capacity)
        for module in self.model.modules():
            if isinstance(module, moe.MixtureOfExperts):
                module.dispatcher = self.model.dispatcher
        fill(self.model)
        pages = 1 + max(page for chunk in (*self.prefilling, *self.decoding) for page in chunk.table)
        self.kv_tokens = pages * PAGE_TOKENS
        kv = self.config.num_hidden_layers, self.config.latent_dim, self.kv_tokens
        self.cache = LatentCache(*kv, torch.bfloat16, ops.device)

    def step(self):
        """Compute one step, and return its logits."""
        return self.model.next_logits(self.prefilling, self.decoding, self.cache)

    def captured(self, recorder):
        """Return its decode steps as recordings."""
        longest = max(chunk.end for chunk in self.decoding)
        return CapturedSteps(self.model, self.cache, recorder, len(self.decoding), longest)

    @property
    def weight_bytes(self):
        """Bytes of all parameters of the layers that were made."""
        return sum(values.nbytes for values in self.model.parameters())

    @property
    def kv_bytes(self):
        """Bytes of the cache."""
        return self.cache._pages.nbytes

    def seconds_of_all_layers(self, step_s, head_s):
        """Add the layers that were not run, each as long as the mean of those that were."""
        return head_s + (step_s - head_s) * self.all_layers / self.config.num_hidden_layers

    def least_seconds(self, bytes_per_s, flop_per_s):
        """What the step takes at the least: reading in decode, multiplying in prefill."""
        matrices = sum(values.numel() for values in self.model.parameters() if values.dtype == E4M3)
        scale = self.all_layers / self.config.num_hidden_layers
        if self.decoding:
            kv_bytes = sum(chunk.end for chunk in self.decoding) * self.config.latent_dim * 2 * self.all_layers
            return (matrices * scale + kv_bytes) / bytes_per_s
        experts = sum(values.numel() for name, values in self.model.named_parameters() if ".experts." in name)
        share = self.config.num_experts_per_tok * self.unit.ep_size / self.unit.num_slots  # of a token, in a slot here
        dense = sum(v.numel() for v in self.model.parameters() if v.dtype == E4M3) - experts
        return 2 * self.num_tokens * (dense + experts * share) * scale / flop_per_s


class Alone:
    """Brings as many rows as an even unit would, from memory that it made once."""

    weights_applied, sums_in_order = WeightsApplied.BY_COMBINE, False

    def __init__(self, unit, slots, hidden, ops, capacity):
        self.slots, self.ops, self.capacity = slots, ops, capacity
        self.traffic, self._rows, self._brought = Traffic(), {}, []
        self._room = None if capacity is None else self._random(slots, capacity * unit.ep_size, hidden)

    def begin_step(self, num_tokens):
        """There is nobody."""

    def dispatch(self, x_TD, slots_TK, weights_TK):
        """Bring as many pairs as this rank's tokens have, spread over its slots."""
        if len(x_TD) not in self._rows:
            self._rows[len(x_TD)] = self._make(*slots_TK.shape, x_TD.shape[1])
        rows, sent_W = self._rows[len(x_TD)]
        dispatched = Dispatched(rows, sent_W, x_TD)
        return Pending(lambda: None, lambda _: dispatched)

    def combine(self, results, dispatched):
        """Give the tokens' own activations back."""
        return Pending(lambda: None, lambda _: Summed(dispatched.way_back.clone()))

    @property
    def num_bytes(self):
        """Bytes of the rows that it brings."""
        return sum(rows.codes.nbytes + rows.scales.nbytes for rows in self._brought)

    def _make(self, num_tokens, top_k, hidden):
        per_slot = num_tokens * top_k // self.slots
        counts_M = torch.full((self.slots,), per_slot, device=self.ops.device)
        sent_W = counts_M.sum(0, keepdim=True)
        if self._room is not None:
            planned = planned_rows(self.capacity, top_k, self.slots)
            return MaskedRows(self._room, counts_M, expected_rows=planned), sent_W
        counts = [-(-per_slot // ALIGNED) * ALIGNED] * self.slots
        return ContiguousRows(self._random(sum(counts), hidden), counts_M, counts), sent_W

    def _random(self, *shape):
        """Rows as they come out of DeepEP: of its low-latency form, with scales column by column."""
        codes = torch.empty(shape, dtype=torch.uint8, device=self.ops.device).random_(0, ONE).view(E4M3)
        scales = _empty_scales(shape[:-1], num_blocks(shape[-1]), len(shape) == 3, self.ops.device).fill_(1)
        self._brought.append(Quantised(codes, scales))
        return self._brought[-1]


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
    """Random codes, small scales, and small numbers: values that stay finite."""
    for name, values in model.named_parameters():
        if values.dtype == E4M3:
            values.data.view(torch.uint8).random_(0, ONE)
        elif "scale" in name:
            values.data.fill_(2**-10)
        else:
            values.data.normal_(0, 0.02)
