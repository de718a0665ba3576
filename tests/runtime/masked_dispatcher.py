"""A slow reference of low-latency dispatch: one rank, whose slots have room for the same number of rows.

DeepEP's low-latency kernels give rows in this form and weigh them in combine; a combine that only adds wants the
experts' results weighed before. Nothing here waits for a value, so it runs on fake tensors too.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.expert_parallel.dispatcher import ChoiceRows, DispatchedRows, MaskedRows, Pending, WeightsApplied
from runtime.expert_parallel.traffic import Traffic


@dataclass(frozen=True)
class AddedRows:
    """Rows whose weights have been applied."""

    results_TKD: Tensor

    def sum(self):
        return self.results_TKD.sum(1)


class MaskedDispatcher:
    """A dispatcher with all slots here and room for `capacity` rows in each."""

    def __init__(self, num_slots, capacity, row_format, ops, weights_applied):
        self.num_slots, self.capacity, self.row_format, self.ops = num_slots, capacity, row_format, ops
        self.weights_applied, self.sums_in_order = weights_applied, weights_applied is WeightsApplied.BY_COMBINE
        self.traffic = Traffic()

    def begin_step(self, num_tokens):
        assert num_tokens <= self.capacity

    def dispatch(self, x_TD, slots_TK, weights_TK):
        slots = slots_TK.flatten()
        is_in_slot_XM = slots[:, None] == torch.arange(self.num_slots, device=slots.device)
        row_of_pair = slots * self.capacity + (is_in_slot_XM.cumsum(0) * is_in_slot_XM).sum(1) - 1
        rows_MZX = self._spread(self.row_format.encode(x_TD).repeat_interleave(slots_TK.shape[1], 0), row_of_pair)
        is_weighed_here = self.weights_applied is WeightsApplied.BY_EXPERTS
        weights_MZ = self._spread(weights_TK.flatten(), row_of_pair) if is_weighed_here else None
        counts_M = is_in_slot_XM.sum(0)
        rows = MaskedRows(self.row_format.decode(rows_MZX), counts_M, weights_MZ)
        return _ready_result(
            DispatchedRows(rows, counts_M.sum(0, keepdim=True), (row_of_pair.view_as(slots_TK), weights_TK))
        )

    def combine(self, results, dispatched):
        row_of_pair_TK, weights_TK = dispatched.return_route
        if self.weights_applied is WeightsApplied.BY_EXPERTS:
            return _ready_result(AddedRows(results.flatten(0, 1)[row_of_pair_TK]))
        return _ready_result(ChoiceRows(results.flatten(0, 1), row_of_pair_TK, weights_TK, self.ops))

    def _spread(self, rows, row_of_pair):
        """Copy rows to their places in all slots, with 0 elsewhere."""
        everywhere = rows.new_zeros(self.num_slots * self.capacity, *rows.shape[1:])
        return everywhere.index_copy_(0, row_of_pair, rows).unflatten(0, (self.num_slots, self.capacity))


def use_masked_dispatch(model, capacity, weights_applied=WeightsApplied.BY_COMBINE):
    """Let `model`, which has one rank, use this dispatcher."""
    old = model.dispatcher
    new = MaskedDispatcher(old.num_slots, capacity, old.row_format, old.ops, weights_applied)
    for module in model.modules():
        if getattr(module, "dispatcher", None) is old:
            module.dispatcher = new
    return model


def _ready_result(value):
    return Pending(lambda: value, lambda arrived: arrived)
