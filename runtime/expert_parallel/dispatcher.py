"""Dispatch and combine: every (token, choice) pair goes to the rank that holds its slot, is computed there, comes back.

    slots are numbered rank by rank: slot s lives on rank s // slots_per_rank
    dispatch   x [T, D], slots [T, K]  ->  rows [R, D] grouped by local slot, and how many each slot got
    combine    rows [R, D], computed   ->  each choice's output back at its token's rank, and where it lies there

Both begin an exchange and return at once; what comes of it is had by `wait()`. Between the two the caller may compute,
which is all that overlap is (`overlap.py`). Sizes and rows are one exchange, sizes first.

A token goes to a rank once, however many of its slots are there. Worked example: slots 0-2 on rank 0, 3-5 on rank 1. A
token of rank 0 wants slots 4, 1 and 5: rank 1 gets one row, "4 1 5" and the activations, and makes two of it; rank 0
keeps one. Back come two rows, the outputs of slots 4 and 5.

The weighted sum over a token's choices is the caller's, in the order of the choices, so that it does not depend on
the layout. `LocalDispatcher` is the reference; `AllToAllDispatcher` and the forms of it must equal it.
A rank without tokens still takes part: the collectives are a group's, not a token's.

Models: torchtitan's `TokenDispatcher` (one interface, Local and AllToAll), DeepEP (vocabulary).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from runtime.expert_parallel.group import Group
from runtime.kernels.cpu import kernels as cpu_kernels

__all__ = [
    "SLOT_BYTES",
    "AllToAllDispatcher",
    "Combined",
    "Dispatched",
    "ExchangeTime",
    "LocalDispatcher",
    "Pending",
    "PlainRows",
    "RowFormat",
    "TokenDispatcher",
    "Traffic",
    "sort_by_slot",
]

SLOT_BYTES = 4  # torch.int32: of one of the slots in front of a row

T = TypeVar("T")


@dataclass(frozen=True)
class Pending(Generic[T]):
    """An exchange that has begun. `arrive` waits for what comes, `finish` makes the result of it."""

    arrive: Callable[[], Any]
    finish: Callable[[Any], T]

    def wait(self) -> T:
        """The result; once. Raises PeerLost."""
        return self.finish(self.arrive())


@dataclass(frozen=True)
class Dispatched:
    """Rows at this rank, grouped by local slot, and the way back."""

    rows_RD: Tensor
    counts: list[int]  # rows of each local slot, in order
    sent: list[int]  # this rank's pairs for each rank
    way_back: Any  # what the dispatcher itself needs in combine


@dataclass(frozen=True)
class Combined:
    """What the experts made of this rank's tokens: a row for each (token, choice) pair, not in the pairs' order."""

    rows_RD: Tensor
    places: Tensor  # [T x K]: the row of each pair


class RowFormat(Protocol):
    """How a token's activations travel: rows of bytes, because they may be of several types (codes and scales)."""

    def encode(self, x_TD: Tensor) -> Tensor:
        """[T, bytes], uint8."""

    def decode(self, bytes_RB: Tensor) -> Tensor:
        """Of rows that `encode` gave, what the experts take: [R, ...]."""


class PlainRows:
    """As they are."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def encode(self, x_TD: Tensor) -> Tensor:
        """The same memory."""
        assert x_TD.dtype == self.dtype
        return x_TD.contiguous().view(torch.uint8)

    def decode(self, bytes_RB: Tensor) -> Tensor:
        """The same memory."""
        return bytes_RB.view(self.dtype)


@dataclass
class ExchangeTime:
    """How many exchanges there were, and how long they took from their beginning to the arrival of the rows."""

    count: int = 0
    seconds: float = 0.0

    def timed(self, exchange: Callable[[], T]) -> Callable[[], T]:
        """`exchange`, which begins now."""
        began = time.monotonic()

        def until_here() -> T:
            result = exchange()
            self.add(time.monotonic() - began)
            return result

        return until_here

    def add(self, seconds: float) -> None:
        """One more exchange, which took so long."""
        self.count += 1
        self.seconds += seconds


@dataclass
class Traffic:
    """What was exchanged so far. Bytes are those of dispatch, without combine."""

    bytes_sent: int = 0  # to other ranks
    bytes_to_other_nodes: int = 0  # part of them
    dispatch: ExchangeTime = field(default_factory=ExchangeTime)
    combine: ExchangeTime = field(default_factory=ExchangeTime)


class TokenDispatcher(Protocol):
    """The seam: Local, AllToAll, Node (`hierarchical.py`), Shared (`shared_memory/dispatcher.py`), later DeepEP."""

    traffic: Traffic

    def begin_step(self, num_tokens: int) -> None:
        """This rank has at most so many tokens in a dispatch of this step. A collective."""

    def dispatch(self, x_TD: Tensor, slots_TK: Tensor) -> Pending[Dispatched]:
        """Bring each pair's row to its slot."""

    def combine(self, rows_RD: Tensor, dispatched: Dispatched) -> Pending[Combined]:
        """Bring results back."""


class LocalDispatcher:
    """All slots are here: sorting is all there is to do."""

    def __init__(self, num_slots: int, row_format: RowFormat) -> None:
        self.num_slots = num_slots
        self.row_format = row_format
        self.traffic = Traffic()

    def begin_step(self, num_tokens: int) -> None:
        """There is nobody to agree with."""

    def dispatch(self, x_TD: Tensor, slots_TK: Tensor) -> Pending[Dispatched]:
        """Sort the pairs by slot."""
        counts, pair_order, places = sort_by_slot(x_TD, slots_TK, self.num_slots)
        rows = self.row_format.encode(x_TD).index_select(0, pair_order // slots_TK.shape[1])
        rows_RD = self.row_format.decode(rows)
        return _here(Dispatched(rows_RD, counts, [len(rows_RD)], places))

    def combine(self, rows_RD: Tensor, dispatched: Dispatched) -> Pending[Combined]:
        """They are here, sorted."""
        return _here(Combined(rows_RD, dispatched.way_back))


@dataclass(frozen=True)
class _WayBack:
    received: list[int]  # pairs of each rank that have their slots here
    grouping: Tensor  # [R]: which of them, in the order of arrival, stands in each place of rows_RD
    places: Tensor  # [T x K]: where the result of each of this rank's own pairs will lie


class AllToAllDispatcher:
    """Slots over the ranks of a group. A token's row goes to each rank that it wants once, with all its slots in front.

    Results come back pair by pair: they are different rows, and summed in the order of the choices.
    """

    def __init__(self, group: Group, slots_per_rank: int, row_format: RowFormat) -> None:
        self.group = group
        self.slots_per_rank = slots_per_rank
        self.row_format = row_format
        self.traffic = Traffic()

    def begin_step(self, num_tokens: int) -> None:
        """Any number is dispatched alike."""

    def dispatch(self, x_TD: Tensor, slots_TK: Tensor) -> Pending[Dispatched]:
        """Put the slots in front of each row; exchange; make of what came a row for each slot that is here."""
        sent = self.sizes(slots_TK).sum(1).tolist()
        places = _inverse((slots_TK // self.slots_per_rank).flatten().argsort(stable=True))
        exchange = self.exchange(self.addressed(self.row_format.encode(x_TD), slots_TK), slots_TK)

        def group_by_slot(arrived: tuple[Tensor, Tensor]) -> Dispatched:
            from_each, rows_NX = arrived
            slots_NK = self.slots_of(rows_NX, slots_TK.shape[1])
            row, choice = (slots_NK // self.slots_per_rank == self.group.rank).nonzero(as_tuple=True)
            slots = slots_NK[row, choice] - self.group.rank * self.slots_per_rank
            grouping = slots.argsort(stable=True)
            bytes_RB = rows_NX[:, slots_TK.shape[1] * SLOT_BYTES :].index_select(0, row[grouping])
            sources = torch.arange(self.group.size).repeat_interleave(from_each)[row]
            received = sources.bincount(minlength=self.group.size).tolist()
            counts = slots.bincount(minlength=self.slots_per_rank).tolist()
            return Dispatched(self.row_format.decode(bytes_RB), counts, sent, _WayBack(received, grouping, places))

        return Pending(self.group.begin(self.traffic.dispatch.timed(exchange)).result, group_by_slot)

    def addressed(self, bytes_TB: Tensor, slots_TK: Tensor) -> Tensor:
        """Rows as they travel, [T, X] bytes: the token's slots, then its activations."""
        return torch.cat((slots_TK.int().view(torch.uint8), bytes_TB), 1)

    def slots_of(self, rows_NX: Tensor, top_k: int) -> Tensor:
        """The slots in front of such rows, [N, K]."""
        return rows_NX[:, : top_k * SLOT_BYTES].contiguous().view(torch.int32).long()

    def exchange(self, rows_TX: Tensor, slots_TK: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
        """What brings every row to its ranks: how many came from each, and they, sources in order. Sizes, then rows."""
        rows, sizes = self.for_each(rows_TX, self.among(slots_TK // self.slots_per_rank))

        def sizes_then_rows() -> tuple[Tensor, Tensor]:
            one_each = [1] * self.group.size
            from_each = self.group.all_to_all(sizes, one_each, one_each)
            return from_each, self.give(rows, sizes.tolist(), from_each.tolist())

        return sizes_then_rows

    def for_each(self, rows_NX: Tensor, is_for_NG: Tensor) -> tuple[Tensor, Tensor]:
        """The rows for each rank, rank by rank, a row that is for several once for each; and how many each gets."""
        _, rows = is_for_NG.T.nonzero(as_tuple=True)
        return rows_NX.index_select(0, rows), is_for_NG.sum(0)

    def among(self, ranks_NK: Tensor) -> Tensor:
        """[N, G], whether each rank is one of a row's."""
        is_among_NG = torch.zeros(len(ranks_NK), self.group.size, dtype=torch.bool)
        return is_among_NG.scatter_(1, ranks_NK, True)

    def give(self, rows: Tensor, send: list[int], receive: list[int]) -> Tensor:
        """One all-to-all of rows of bytes, counted."""
        self.count(send, rows.shape[1])
        return self.group.all_to_all(rows, send, receive)

    def count(self, send: list[int], row_bytes: int) -> None:
        """So many rows go to each rank: add them to the traffic by the links that they take."""
        for rank, number in enumerate(send):
            if rank != self.group.rank:
                self.traffic.bytes_sent += number * row_bytes
            if self.group.nodes[rank] != self.group.nodes[self.group.rank]:
                self.traffic.bytes_to_other_nodes += number * row_bytes

    def combine(self, rows_RD: Tensor, dispatched: Dispatched) -> Pending[Combined]:
        """Each pair's result goes to its token's rank."""
        way: _WayBack = dispatched.way_back
        rows = rows_RD.index_select(0, _inverse(way.grouping))
        exchange = partial(self.group.all_to_all, rows, way.received, dispatched.sent)
        arrival = self.group.begin(self.traffic.combine.timed(exchange))
        return Pending(arrival.result, lambda returned: Combined(returned, way.places))

    def sizes(self, slots_TK: Tensor) -> Tensor:
        """Pairs for each slot of each rank, [ranks, slots_per_rank]."""
        num_slots = self.group.size * self.slots_per_rank
        return slots_TK.flatten().bincount(minlength=num_slots).unflatten(0, (self.group.size, self.slots_per_rank))


def sort_by_slot(x_TD: Tensor, slots_TK: Tensor, num_slots: int) -> tuple[list[int], Tensor, Tensor]:
    """How many pairs each slot has; the pair that stands in each place, slot after slot; the place of each pair."""
    if cpu_kernels.suits(x_TD):
        return cpu_kernels.sort_by_slot(slots_TK, num_slots)
    slots = slots_TK.flatten()
    pair_order = slots.argsort(stable=True)
    return slots.bincount(minlength=num_slots).tolist(), pair_order, _inverse(pair_order)


def _here(value: T) -> Pending[T]:
    """Nothing is under way."""
    return Pending(lambda: value, lambda arrived: arrived)


def _inverse(order: Tensor) -> Tensor:
    """Where each element stands in `order`, a permutation."""
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    return places
