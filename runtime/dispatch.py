"""Dispatch and combine: every (token, choice) pair goes to the rank that holds its slot, is computed there, comes back.

    slots are numbered rank by rank: slot s lives on rank s // slots_per_rank
    dispatch   x [T, D], slots [T, K]  ->  rows [R, D] grouped by local slot, and how many each slot got
    combine    rows [R, D], computed   ->  each choice's output back at its token's rank, and where it lies there

Both begin an exchange and return at once; what comes of it is had by `wait()`. Between the two the caller may compute,
which is all that overlap is (`overlap.py`). Sizes and rows are one exchange, sizes first.

The weighted sum over a token's choices is the caller's, in the order of the choices, so that it does not depend on
the layout. `LocalDispatcher` is the reference; `AllToAllDispatcher` and the forms of it must equal it.
A rank without tokens still takes part: the collectives are a group's, not a token's.

Models: torchtitan's `TokenDispatcher` (one interface, Local and AllToAll), DeepEP (vocabulary).
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from runtime.model import cpu_kernels
from runtime.parallel import Group

__all__ = [
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
    "inverse",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Pending(Generic[T]):
    """An exchange that has begun. `finish` makes the result of what arrived, in the thread that waits."""

    arrival: "Future[Any]"
    finish: Callable[[Any], T]

    def wait(self) -> T:
        """The result; once. Raises PeerLost."""
        return self.finish(self.arrival.result())


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
            self.count += 1
            self.seconds += time.monotonic() - began
            return result

        return until_here


@dataclass
class Traffic:
    """What was exchanged so far. Bytes are those of dispatch, without combine."""

    bytes_sent: int = 0  # to other ranks
    bytes_to_other_nodes: int = 0  # part of them
    dispatch: ExchangeTime = field(default_factory=ExchangeTime)
    combine: ExchangeTime = field(default_factory=ExchangeTime)


class TokenDispatcher(Protocol):
    """The seam: Local, Shared (`dispatch_shared.py`), AllToAll and its quicker forms, later DeepEP."""

    traffic: Traffic

    def begin_step(self, num_pairs: int) -> None:
        """This rank will have at most so many pairs for another in a dispatch of this step. A collective."""

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

    def begin_step(self, num_pairs: int) -> None:
        """There is nobody to agree with."""

    def dispatch(self, x_TD: Tensor, slots_TK: Tensor) -> Pending[Dispatched]:
        """Sort the pairs by slot."""
        counts, pair_order, places = self._sorted(x_TD, slots_TK)
        rows = self.row_format.encode(x_TD).index_select(0, pair_order // slots_TK.shape[1])
        rows_RD = self.row_format.decode(rows)
        return _here(Dispatched(rows_RD, counts, [len(rows_RD)], places))

    def combine(self, rows_RD: Tensor, dispatched: Dispatched) -> Pending[Combined]:
        """They are here, sorted."""
        return _here(Combined(rows_RD, dispatched.way_back))

    def _sorted(self, x_TD: Tensor, slots_TK: Tensor) -> tuple[list[int], Tensor, Tensor]:
        """The pairs of each slot, counted; the pair in each place; the place of each pair."""
        if cpu_kernels.suits(x_TD):
            return cpu_kernels.sort_by_slot(slots_TK, self.num_slots)
        slots = slots_TK.flatten()
        pair_order = slots.argsort(stable=True)
        return slots.bincount(minlength=self.num_slots).tolist(), pair_order, inverse(pair_order)


@dataclass(frozen=True)
class _WayBack:
    pair_order: Tensor  # [T x K]: the (token, choice) pair that was sent in each place
    received: list[int]  # rows got from each rank
    grouping: Tensor  # [R]: the received row that stands in each place of rows_RD


class AllToAllDispatcher:
    """Slots over the ranks of a group: two variable-size all-to-alls, and one before them for the sizes."""

    def __init__(self, group: Group, slots_per_rank: int, row_format: RowFormat) -> None:
        self.group = group
        self.slots_per_rank = slots_per_rank
        self.row_format = row_format
        self.traffic = Traffic()

    def begin_step(self, num_pairs: int) -> None:
        """Any number is dispatched alike."""

    def dispatch(self, x_TD: Tensor, slots_TK: Tensor) -> Pending[Dispatched]:
        """Sort by slot, which is by rank too; exchange; group what came by slot."""
        pair_order = slots_TK.flatten().argsort(stable=True)
        sizes_sent = self.sizes(slots_TK)
        exchange = self.exchange(self.row_format.encode(x_TD), slots_TK, pair_order, sizes_sent)

        def group_by_slot(arrived: tuple[Tensor, Tensor]) -> Dispatched:
            sizes, rows = arrived
            grouping = _grouping(sizes)
            rows_RD = self.row_format.decode(rows.index_select(0, grouping))
            sent, received = sizes_sent.sum(1).tolist(), sizes.sum(1).tolist()
            return Dispatched(rows_RD, sizes.sum(0).tolist(), sent, _WayBack(pair_order, received, grouping))

        return Pending(self.group.begin(self.traffic.dispatch.timed(exchange)), group_by_slot)

    def exchange(
        self, bytes_TB: Tensor, slots_TK: Tensor, pair_order: Tensor, sizes_sent: Tensor
    ) -> Callable[[], tuple[Tensor, Tensor]]:
        """What brings every pair's row to its rank: sizes `[source, slots_per_rank]`, and rows by source, then slot.

        `sizes_sent` is `[rank, slots_per_rank]`; both sizes count (token, choice) pairs. Here: sizes, then rows.
        """
        rows = bytes_TB.index_select(0, pair_order // slots_TK.shape[1])
        sent = sizes_sent.sum(1).tolist()

        def sizes_then_rows() -> tuple[Tensor, Tensor]:
            one_row_each = [1] * self.group.size
            sizes = self.group.all_to_all(sizes_sent, one_row_each, one_row_each)
            return sizes, self.give(rows, sent, sizes.sum(1).tolist())

        return sizes_then_rows

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
        """The same way back."""
        way: _WayBack = dispatched.way_back
        rows = rows_RD.index_select(0, inverse(way.grouping))
        exchange = partial(self.group.all_to_all, rows, way.received, dispatched.sent)
        arrival = self.group.begin(self.traffic.combine.timed(exchange))
        return Pending(arrival, lambda returned: Combined(returned, inverse(way.pair_order)))

    def sizes(self, slots_TK: Tensor) -> Tensor:
        """Rows for each slot of each rank, [ranks, slots_per_rank]."""
        num_slots = self.group.size * self.slots_per_rank
        return slots_TK.flatten().bincount(minlength=num_slots).unflatten(0, (self.group.size, self.slots_per_rank))


def _here(value: T) -> Pending[T]:
    """Nothing is under way."""
    return Pending(_ARRIVED, lambda _: value)


_ARRIVED: "Future[None]" = Future()  # one for all: a new one takes as long as sorting a token's rows
_ARRIVED.set_result(None)


def _grouping(sizes_received: Tensor) -> Tensor:
    """Rows arrive by source rank, then slot: the order that puts each slot's rows together, sources in order."""
    num_ranks, num_slots = sizes_received.shape
    slot_of_row = torch.arange(num_slots).repeat(num_ranks).repeat_interleave(sizes_received.flatten())
    return slot_of_row.argsort(stable=True)


def inverse(order: Tensor) -> Tensor:
    """Where each element stands in `order`, a permutation."""
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    return places
