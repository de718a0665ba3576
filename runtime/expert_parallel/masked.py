"""All-to-all dispatch without a wait for sizes: every slot has room for all rows that can come.

    capacity   the most tokens that a rank dispatches at once; a token wants a slot at most once
    sent       [W, M, capacity]: to each rank, for each of its slots, this rank's rows, and rows of zeros after them
    rows       [M, Z], Z = W x capacity: the rows that came for each slot, without gaps, and after them invalid rows

All shapes are known before the step begins, so the host runs ahead of the device, and a step can be captured as a
graph. The price is memory and traffic: every slot has room for the whole unit's tokens. So this form is for decode on
devices, where a rank has few tokens. On a CPU the host itself computes, so it gains nothing.

Worked example: 144 ranks with 2 slots each and a capacity of 64. A slot has room for 9,216 rows, and gets 256 of them
on average, when each token of the unit chooses 8 of 288 slots.

It sends all the room, empty or not. DeepEP's low-latency kernels have the same form of rows, but write only the rows
that exist, straight into the peers' memory.

Source of the form: DeepEP (github.com/deepseek-ai/DeepEP), "Inference decoding": `packed_recv_x`, `packed_recv_count`.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from runtime.expert_parallel.dispatcher import (
    ChoiceRows,
    CombinedResults,
    DispatchedRows,
    DispatchHandle,
    MaskedRows,
    Pending,
    RowFormat,
    WeightsApplied,
    planned_rows,
)
from runtime.expert_parallel.group import Group
from runtime.expert_parallel.traffic import Traffic
from runtime.kernels.ops import Ops

__all__ = ["MaskedDispatcher"]


@dataclass(frozen=True)
class _ReturnRoute:
    arrival_of_row: Tensor  # [M x Z]: the position of each row in what came
    row_of_pair_TK: Tensor  # the future row of each own pair's result
    weights_TK: Tensor


class MaskedDispatcher:
    """Dispatches to slots that have room for `capacity` rows from each rank of the group."""

    weights_applied = WeightsApplied.BY_COMBINE
    sums_in_order = True

    def __init__(self, group: Group, slots_per_rank: int, capacity: int, row_format: RowFormat, ops: Ops) -> None:
        self.group, self.slots_per_rank, self.capacity = group, slots_per_rank, capacity
        self.row_format, self.ops = row_format, ops
        self.traffic = Traffic()
        self._rows_per_rank = [slots_per_rank * capacity] * group.size

    def begin_step(self, num_tokens: int) -> None:
        """Assert that there is room for this many tokens: more would break the launch file's limits."""
        assert num_tokens <= self.capacity

    def dispatch(self, x_TD: Tensor, slots_TK: Tensor, weights_TK: Tensor) -> Pending[DispatchedRows]:
        """Copy each pair's row into the room of its slot, and exchange all rooms."""
        pairs_S, pair_of_row, row_of_pair = self.ops.sort_by_slot(slots_TK, self.group.size * self.slots_per_rank)
        pairs_WM = pairs_S.view(self.group.size, self.slots_per_rank)
        slots = slots_TK.flatten()
        place_of_pair = slots * self.capacity + row_of_pair - (pairs_S.cumsum(0) - pairs_S)[slots]
        bytes_RX = self.row_format.encode(x_TD).index_select(0, pair_of_row // slots_TK.shape[1])
        room = bytes_RX.new_zeros(self.group.size * self._rows_per_rank[0], bytes_RX.shape[1])
        exchange = partial(self._exchange, pairs_WM, room.index_copy_(0, place_of_pair[pair_of_row], bytes_RX))

        def close_gaps(arrived: tuple[Tensor, Tensor]) -> DispatchedRows:
            counts_WM, came_RX = arrived
            arrival_of_row = self._arrival_order(counts_WM)
            rows_MZX = came_RX.index_select(0, arrival_of_row).unflatten(0, (self.slots_per_rank, -1))
            decoded = self.row_format.decode(rows_MZX)
            return_route = _ReturnRoute(arrival_of_row, place_of_pair.view(slots_TK.shape), weights_TK)
            expected_rows = planned_rows(self.capacity, slots_TK.shape[1], self.slots_per_rank)
            rows = MaskedRows(decoded, counts_WM.sum(0), expected_rows=expected_rows)
            return DispatchedRows(rows, pairs_WM.sum(1), return_route)

        arrival = self.group.begin(self.traffic.dispatch.time_exchange(exchange))
        return Pending(self.traffic.time_wait(arrival.result), close_gaps)

    def combine(self, results: Tensor, dispatched: DispatchHandle | DispatchedRows) -> Pending[CombinedResults]:
        """Begin to send the results back to the ranks from which their rows came."""
        way: _ReturnRoute = dispatched.return_route
        rows_RD = results.flatten(0, 1)
        room = torch.empty_like(rows_RD).index_copy_(0, way.arrival_of_row, rows_RD)
        exchange = partial(self.group.all_to_all, room, self._rows_per_rank, self._rows_per_rank)
        arrival = self.group.begin(self.traffic.combine.time_exchange(exchange))
        return Pending(
            self.traffic.time_wait(arrival.result),
            lambda returned: ChoiceRows(returned, way.row_of_pair_TK, way.weights_TK, self.ops),
        )

    def _exchange(self, pairs_WM: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
        """Return the number of rows from each rank for each slot here, and the rows with all their room."""
        self.traffic.count(self.group, self._rows_per_rank, room.shape[1])
        one_each = [1] * self.group.size
        counts_WM = self.group.all_to_all(pairs_WM, one_each, one_each)
        return counts_WM, self.group.all_to_all(room, self._rows_per_rank, self._rows_per_rank)

    def _arrival_order(self, counts_WM: Tensor) -> Tensor:
        """Return for each row of the slots, `[M * Z]`, where it lies among the received rows, `[W, M, capacity]`.

        Z is W * capacity. In each slot, rows that exist come first, in the order of the ranks that sent them.
        """
        place_Z = torch.arange(self.group.size * self.capacity, device=counts_WM.device)
        source_Z, number_Z = place_Z // self.capacity, place_Z % self.capacity
        is_room_MZ = number_Z >= counts_WM.T[:, source_Z]
        order_MZ = is_room_MZ.int().argsort(dim=1, stable=True)
        first_M = torch.arange(self.slots_per_rank, device=counts_WM.device) * self.capacity
        arrival_MZ = source_Z[order_MZ] * self._rows_per_rank[0] + first_M[:, None] + number_Z[order_MZ]
        return arrival_MZ.flatten()
