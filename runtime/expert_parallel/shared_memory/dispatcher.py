"""Dispatch and combine between ranks of one node: rows lie in memory that all of them have, and nobody sends any.

    dispatch   each rank writes its tokens' rows, each once, and for each slot which of them it wants there. When all
               have, each takes the rows of its slots from where they lie, slot by slot, sources in order.
    combine    each rank leaves its results where it made them. When all have, each finds a choice's output there.

So all that is left of an exchange is its two moments, "everybody has written": one short message to each rank, through
a pipe (`pipes.py`), in which a lost peer is noticed as in any other. Over loopback sockets, rows are copied four
times on the way.

Two rooms take turns, as two micro-batches do. Nobody overwrites what another still reads: a rank writes to a room again
after its combine there, by when all have taken their rows; and takes rows there again, which is where its results will
be, when all have written theirs, by when all have summed the results before.

On a GPU this is what NVLink does for DeepEP's kernels inside a node.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runtime.expert_parallel.dispatcher import (
    AllToAllDispatcher,
    Combined,
    Dispatched,
    ExchangeTime,
    Pending,
    sort_by_slot,
)
from runtime.expert_parallel.shared_memory.memory import common_memory
from runtime.expert_parallel.shared_memory.pipes import Pipes, common_pipes
from runtime.trace import link_until

__all__ = ["SharedDispatcher"]

T = TypeVar("T")
Longs = npt.NDArray[np.int64]

NS_PER_S = 1e9
LONG_BYTES = 8  # torch.int64
CACHE_LINE_BYTES = 64


@dataclass(frozen=True)
class ExchangeBuffer:
    """The memory of one dispatch and its combine, of G ranks with S slots each and up to P pairs from rank to rank."""

    rows: Tensor  # [G, P, bytes]: of each rank's tokens
    results: Tensor  # [G, G P, bytes]: of each rank's slots; first the rows that they take
    row_of_pair: Longs  # [G, G P]: of each rank's pairs, in the order of their slots, which of all rows
    sizes: Longs  # [G, G, S]: of each rank's pairs, how many want which slot of which rank


@dataclass(frozen=True)
class _WayBack:
    room: ExchangeBuffer
    places: Tensor  # [T x K]: the result of each pair, among all


class SharedDispatcher:
    """As `normal`, which steps in where the ranks turn out to have no memory in common."""

    def __init__(self, normal: AllToAllDispatcher, row_bytes: int, result_bytes: int, pairs_per_token: int) -> None:
        """Bytes of a row on its way to an expert, and of what the expert makes of it; a token's choices on one rank."""
        self.traffic = normal.traffic
        self._normal, self._group, self._row_format = normal, normal.group, normal.row_format
        self._row_bytes, self._result_bytes, self._pairs_per_token = row_bytes, result_bytes, pairs_per_token
        self._rooms: list[ExchangeBuffer] = []
        self._most_pairs = -1  # there are no rooms yet: a step without any pairs needs them too
        self._pipes: Pipes | None = None  # before there are rooms
        self._num_begun = 0  # exchanges
        self._is_possible = True

    def begin_step(self, num_tokens: int) -> None:
        """Let there be room for the largest step of any rank."""
        num_pairs = num_tokens * self._pairs_per_token
        if self._is_possible and (largest := self._largest(num_pairs)) > self._most_pairs:
            self._make_rooms(largest)

    def dispatch(self, x_TD: Tensor, slots_TK: Tensor) -> Pending[Dispatched]:
        """Write; what the others wrote is read when all have."""
        if not self._is_possible:
            return self._normal.dispatch(x_TD, slots_TK)
        room, own = self._rooms[0], self._group.rank
        self._rooms.reverse()
        counts, pair_order, place_of_pair = sort_by_slot(x_TD, slots_TK, room.sizes[own].size)
        room.rows[own, : len(x_TD)] = self._row_format.encode(x_TD)
        room.row_of_pair[own, : len(pair_order)] = pair_order.numpy() // slots_TK.shape[1] + own * room.rows.shape[1]
        room.sizes[own].flat = counts
        self._normal.count(room.sizes[own].sum(1).tolist(), self._row_bytes)
        return self._when_all_have_written(self.traffic.dispatch, lambda: self._taken(room, place_of_pair.numpy()))

    def combine(self, rows_RD: Tensor, dispatched: Dispatched) -> Pending[Combined]:
        """Experts that write over the rows that they took have their results in place; others' are brought there."""
        if not self._is_possible:
            return self._normal.combine(rows_RD, dispatched)
        way: _WayBack = dispatched.way_back
        results = way.room.results.view(rows_RD.dtype)
        own = results[self._group.rank, : len(rows_RD)]
        if own.data_ptr() != rows_RD.data_ptr():
            own.copy_(rows_RD)
        return self._when_all_have_written(self.traffic.combine, lambda: Combined(results.flatten(0, 1), way.places))

    def _taken(self, room: ExchangeBuffer, place_of_pair: Longs) -> Dispatched:
        """This rank's rows; and where its pairs' results will be, for which everybody's sizes are read now."""
        own = self._group.rank
        sizes_GGS = room.sizes.copy()
        by_slot_GSG = sizes_GGS.transpose(1, 2, 0)  # rank, slot, source: the order in which a rank's rows lie
        wanted, made = (_first_of_each(sizes, room.results.shape[1]) for sizes in (sizes_GGS, by_slot_GSG))
        pairs = _ranges(wanted[:, own].T, by_slot_GSG[own])
        places = _ranges(made[:, :, own], sizes_GGS[own])
        rows_RD = self._row_format.decode(self._take(room, torch.from_numpy(room.row_of_pair.ravel()[pairs])))
        counts, sent = by_slot_GSG[own].sum(1).tolist(), sizes_GGS[own].sum(1).tolist()
        return Dispatched(rows_RD, counts, sent, _WayBack(room, torch.from_numpy(places[place_of_pair])))

    def _take(self, room: ExchangeBuffer, which_R: Tensor) -> Tensor:
        """These rows: to where the results will be, if those are as long."""
        rows = room.rows.flatten(0, 1)
        if self._row_bytes != self._result_bytes:
            return rows.index_select(0, which_R)
        return torch.index_select(rows, 0, which_R, out=room.results[self._group.rank, : len(which_R)])

    def _when_all_have_written(self, taking: ExchangeTime, finish: Callable[[], T]) -> Pending[T]:
        """This rank has, now. Exchanges are waited for in the order in which they were begun."""
        pipes, ended_on_link = self._pipes, link_until()
        assert pipes is not None
        self._num_begun = number = self._num_begun + 1
        began_ns = pipes.signal(number)

        def arrive() -> None:
            largest, last_ns = pipes.wait()
            assert largest == number
            ended_ns = max(began_ns, last_ns)
            taking.add((ended_ns - began_ns) / NS_PER_S)
            ended_on_link(began_ns, ended_ns)

        return Pending(arrive, lambda _: finish())

    def _largest(self, num_pairs: int) -> int:
        """Of what each rank says."""
        if self._pipes is not None:
            self._pipes.signal(num_pairs)
            return max(num_pairs, self._pipes.wait()[0])
        one_each = [1] * self._group.size
        said_G = self._group.all_to_all(torch.full((self._group.size,), num_pairs), one_each, one_each)
        return int(said_G.max())

    def _make_rooms(self, num_pairs: int) -> None:
        """Larger than asked, so that it is seldom asked: what nobody writes to takes no memory."""
        size, slots = self._group.size, self._normal.slots_per_rank
        self._most_pairs = 1 << num_pairs.bit_length()
        shapes = [
            (size, self._most_pairs, self._row_bytes),
            (size, size * self._most_pairs, self._result_bytes),
            (size, size * self._most_pairs, LONG_BYTES),
            (size, size, slots * LONG_BYTES),
        ]
        num_bytes = [-(-prod(shape) // CACHE_LINE_BYTES) * CACHE_LINE_BYTES for shape in shapes]
        memory = common_memory(self._group, 2 * sum(num_bytes))
        if memory is not None and self._pipes is None:
            self._pipes = common_pipes(self._group)
        self._is_possible = memory is not None and self._pipes is not None
        if memory is not None:
            self._rooms = [_room(half.split(num_bytes), shapes) for half in memory.chunk(2)]


def _room(parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> ExchangeBuffer:
    rows, results, row_of_pair, sizes = (
        part[: prod(shape)].view(shape) for part, shape in zip(parts, shapes, strict=True)
    )
    return ExchangeBuffer(rows, results, row_of_pair.view(torch.int64)[..., 0].numpy(), sizes.view(torch.int64).numpy())


def _first_of_each(sizes: Longs, stride: int) -> Longs:
    """Runs of these sizes lie one after another, those of each `sizes[i]` from i * stride: where each begins."""
    flat = sizes.reshape(len(sizes), -1)
    begins = flat.cumsum(1) - flat + np.arange(len(flat))[:, None] * stride
    return begins.reshape(sizes.shape)


def _ranges(begins: Longs, sizes: Longs) -> Longs:
    """The numbers from each beginning, as many as its size, one run after another."""
    sizes = sizes.ravel()
    offsets = np.repeat(begins.ravel() - (np.cumsum(sizes) - sizes), sizes)
    return offsets + np.arange(len(offsets))
