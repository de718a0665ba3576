"""Dispatch and combine: every (token, choice) pair goes to the rank that holds its slot, is computed there, comes back.

    slots are numbered rank by rank: slot s lives on rank s // slots_per_rank
    dispatch   x [T, D], slots [T, K]  ->  rows [R, D] grouped by local slot, and how many each slot got
    combine    rows [R, D], computed   ->  y [T x K, D], each choice's output back in its token's place

The weighted sum over a token's choices is the caller's, in the order of the choices, so that it does not depend on
the layout. `LocalDispatcher` is the reference; `AllToAllDispatcher` must equal it. Sizes are exchanged before the data.
A rank without tokens still takes part: the collectives are a group's, not a token's.

Models: torchtitan's `TokenDispatcher` (one interface, Local and AllToAll), DeepEP (vocabulary).
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from runtime.parallel import Group

__all__ = ["AllToAllDispatcher", "Dispatched", "LocalDispatcher", "TokenDispatcher"]


@dataclass(frozen=True)
class Dispatched:
    """Rows at this rank, grouped by local slot, and the way back."""

    rows_RD: Tensor
    counts: list[int]  # rows of each local slot, in order
    pair_order: Tensor  # [T x K]: the (token, choice) pair that was sent in each place
    sent: list[int]  # rows given to each rank
    received: list[int]  # rows got from each rank
    grouping: Tensor  # [R]: the received row that stands in each place of rows_RD


class TokenDispatcher(Protocol):
    """The seam: Local, AllToAll, later DeepEP."""

    bytes_sent: int  # dispatched to other ranks so far

    def dispatch(self, x_TD: Tensor, slots_TK: Tensor) -> Dispatched:
        """Bring each pair's row to its slot."""

    def combine(self, rows_RD: Tensor, dispatched: Dispatched) -> Tensor:
        """Bring results back: [T x K, D], in the order of the pairs."""


class LocalDispatcher:
    """All slots are here: sorting is all there is to do."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.bytes_sent = 0

    def dispatch(self, x_TD: Tensor, slots_TK: Tensor) -> Dispatched:
        """Sort the pairs by slot."""
        pair_order = slots_TK.flatten().argsort(stable=True)
        rows_RD = x_TD[pair_order // slots_TK.shape[1]]
        counts = slots_TK.flatten().bincount(minlength=self.num_slots).tolist()
        return Dispatched(rows_RD, counts, pair_order, [len(rows_RD)], [len(rows_RD)], torch.arange(len(rows_RD)))

    def combine(self, rows_RD: Tensor, dispatched: Dispatched) -> Tensor:
        """Undo the sort."""
        return _scattered(rows_RD, dispatched.pair_order)


class AllToAllDispatcher:
    """Slots over the ranks of a group: two variable-size all-to-alls, and one before them for the sizes."""

    def __init__(self, group: Group, slots_per_rank: int) -> None:
        self.group = group
        self.slots_per_rank = slots_per_rank
        self.bytes_sent = 0

    def dispatch(self, x_TD: Tensor, slots_TK: Tensor) -> Dispatched:
        """Sort by slot, which is by rank too; exchange sizes, then rows; group what came by slot."""
        pair_order = slots_TK.flatten().argsort(stable=True)
        rows_to_send = x_TD[pair_order // slots_TK.shape[1]]
        sizes_sent, sizes_received = self._exchange_sizes(slots_TK)
        sent, received = sizes_sent.sum(1).tolist(), sizes_received.sum(1).tolist()
        rows = self.group.all_to_all(rows_to_send, sent, received)
        grouping = _group_by_slot(sizes_received)
        self._count_bytes(rows_to_send, sent)
        return Dispatched(rows[grouping], sizes_received.sum(0).tolist(), pair_order, sent, received, grouping)

    def combine(self, rows_RD: Tensor, dispatched: Dispatched) -> Tensor:
        """The same way back."""
        in_arrival_order = _scattered(rows_RD, dispatched.grouping)
        returned = self.group.all_to_all(in_arrival_order, dispatched.received, dispatched.sent)
        return _scattered(returned, dispatched.pair_order)

    def _exchange_sizes(self, slots_TK: Tensor) -> tuple[Tensor, Tensor]:
        """Rows for each slot of each rank, as sent and as received: [ranks, slots_per_rank] each."""
        num_slots = self.group.size * self.slots_per_rank
        sent = slots_TK.flatten().bincount(minlength=num_slots).unflatten(0, (self.group.size, self.slots_per_rank))
        one_row_each = [1] * self.group.size
        return sent, self.group.all_to_all(sent, one_row_each, one_row_each)

    def _count_bytes(self, rows: Tensor, sent: list[int]) -> None:
        rows_to_others = sum(sent) - sent[self.group.rank]
        self.bytes_sent += rows_to_others * rows.shape[1] * rows.element_size()


def _group_by_slot(sizes_received: Tensor) -> Tensor:
    """Rows arrive by source rank, then slot: the order that puts each slot's rows together, sources in order."""
    num_ranks, num_slots = sizes_received.shape
    slot_of_row = torch.arange(num_slots).repeat(num_ranks).repeat_interleave(sizes_received.flatten())
    return slot_of_row.argsort(stable=True)


def _scattered(rows: Tensor, places: Tensor) -> Tensor:
    """Row i goes to `places[i]`."""
    result = torch.empty_like(rows)
    result[places] = rows
    return result
