"""Dispatch and combine between ranks of one node, through memory that all of them share. No rows are sent.

    dispatch   Each rank writes its tokens' rows once, and lists for each slot the rows that it wants there. When all
               have written, each rank reads the rows of its slots, slot by slot, sources in order.
    combine    Each rank leaves its results where it made them. When all have, each reads its choices' outputs.

So an exchange only signals "I have written": one short message to each rank, through a pipe (`pipes.py`) that also
shows when a peer is lost. Over loopback sockets, rows would be copied four times.

Two buffers are used in turn, like two micro-batches. No rank overwrites what another still reads. A rank writes rows to
a buffer again only after its combine there; by then all ranks have read their rows. It writes results there again only
when all have written their rows; by then all have summed the previous results.

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
    ChoiceRows,
    CombinedResults,
    ContiguousRows,
    DispatchedRows,
    DispatchHandle,
    Pending,
    WeightsApplied,
)
from runtime.expert_parallel.shared_memory.memory import common_memory
from runtime.expert_parallel.shared_memory.pipes import Pipes, common_pipes
from runtime.expert_parallel.traffic import ExchangeTime
from runtime.trace import link_recorder

__all__ = ["SharedDispatcher"]

T = TypeVar("T")
Longs = npt.NDArray[np.int64]

NS_PER_S = 1e9
LONG_BYTES = 8  # torch.int64
CACHE_LINE_BYTES = 64


@dataclass(frozen=True)
class ExchangeBuffer:
    """The memory of one dispatch and its combine: W ranks, M slots each, room for `pairs` from each rank to each."""

    rows: Tensor  # [W, pairs, bytes]: each rank's tokens
    results: Tensor  # [W, W x pairs, bytes]: of each rank's slots, first the rows that they got, then their results
    row_of_pair: Longs  # [W, W x pairs]: the index in `rows` of each pair, by rank, in the order of slots
    sizes: Longs  # [W, W, M]: the number of a rank's pairs for each slot of each rank


@dataclass(frozen=True)
class _ReturnRoute:
    buffer: ExchangeBuffer
    result_of_pair_TK: Tensor  # which of all results
    weights_TK: Tensor


class SharedDispatcher:
    """Dispatches through shared memory, with the same results as `normal`, which it uses if that is impossible."""

    weights_applied = WeightsApplied.BY_COMBINE
    sums_in_order = True

    def __init__(self, normal: AllToAllDispatcher, row_bytes: int, result_bytes: int, pairs_per_token: int) -> None:
        """Make the dispatcher.

        `row_bytes` and `result_bytes` are the sizes of a row and of its result. A token has at most `pairs_per_token`
        choices on one rank.
        """
        self.traffic, self.ops = normal.traffic, normal.ops
        self._normal, self._group, self._row_format = normal, normal.group, normal.row_format
        self._row_bytes, self._result_bytes, self._pairs_per_token = row_bytes, result_bytes, pairs_per_token
        self._buffers: list[ExchangeBuffer] = []
        self._max_pairs = -1  # no buffers yet: even a step without pairs needs them
        self._pipes: Pipes | None = None  # before there are buffers
        self._num_begun = 0  # exchanges
        self._is_possible = True

    def begin_step(self, num_tokens: int) -> None:
        """Make larger buffers if the present ones are too small for the largest step of any rank."""
        num_pairs = num_tokens * self._pairs_per_token
        if self._is_possible and (largest := self._agree_on_largest(num_pairs)) > self._max_pairs:
            self._make_buffers(largest)

    def dispatch(self, x_TD: Tensor, slots_TK: Tensor, weights_TK: Tensor) -> Pending[DispatchedRows]:
        """Write this rank's rows. Once all ranks have written, read the rows for this rank's slots."""
        if not self._is_possible:
            return self._normal.dispatch(x_TD, slots_TK, weights_TK)
        buffer, own = self._buffers[0], self._group.rank
        self._buffers.reverse()
        counts, pair_of_row, row_of_pair = self.ops.sort_by_slot(slots_TK, buffer.sizes[own].size)
        tokens = pair_of_row.numpy() // slots_TK.shape[1]
        buffer.rows[own, : len(x_TD)] = self._row_format.encode(x_TD)
        buffer.row_of_pair[own, : len(tokens)] = tokens + own * buffer.rows.shape[1]
        buffer.sizes[own].flat = counts.numpy()
        self.traffic.count(self._group, buffer.sizes[own].sum(1).tolist(), self._row_bytes)
        return self._await_writers(
            self.traffic.dispatch, lambda: self._gather(buffer, row_of_pair.view(slots_TK.shape), weights_TK)
        )

    def combine(self, results: Tensor, dispatched: DispatchHandle | DispatchedRows) -> Pending[CombinedResults]:
        """Copy the results into shared memory, unless the experts wrote them there, over their rows."""
        if not self._is_possible:
            return self._normal.combine(results, dispatched)
        way: _ReturnRoute = dispatched.return_route
        all_results = way.buffer.results.view(results.dtype)
        own = all_results[self._group.rank, : len(results)]
        if own.data_ptr() != results.data_ptr():
            own.copy_(results)
        combined = ChoiceRows(all_results.flatten(0, 1), way.result_of_pair_TK, way.weights_TK, self.ops)
        return self._await_writers(self.traffic.combine, lambda: combined)

    def _gather(self, buffer: ExchangeBuffer, row_of_pair_TK: Tensor, weights_TK: Tensor) -> DispatchedRows:
        """Return this rank's rows, and the places of its pairs' results.

        Both follow from the sizes that all ranks have written.
        """
        own = self._group.rank
        sizes_WWM = buffer.sizes.copy()
        by_slot_WMW = sizes_WWM.transpose(1, 2, 0)  # rank, slot, source: the order in which a rank's rows lie
        wanted, made = (_run_starts(sizes, buffer.results.shape[1]) for sizes in (sizes_WWM, by_slot_WMW))
        pairs = _ranges(wanted[:, own].T, by_slot_WMW[own])
        result_of_row = _ranges(made[:, :, own], sizes_WWM[own])
        rows_RX = self._read(buffer, torch.from_numpy(buffer.row_of_pair.ravel()[pairs]))
        counts_M, sent_W = (torch.from_numpy(sizes[own].sum(1)) for sizes in (by_slot_WMW, sizes_WWM))
        return_route = _ReturnRoute(buffer, torch.from_numpy(result_of_row[row_of_pair_TK.numpy()]), weights_TK)
        rows = ContiguousRows(self._row_format.decode(rows_RX), counts_M, counts_M.tolist())
        return DispatchedRows(rows, sent_W, return_route)

    def _read(self, buffer: ExchangeBuffer, index_R: Tensor) -> Tensor:
        """Return a copy of the rows `index_R`. If results are as long as rows, the copy lies where the results go."""
        rows = buffer.rows.flatten(0, 1)
        if self._row_bytes != self._result_bytes:
            return rows.index_select(0, index_R)
        return torch.index_select(rows, 0, index_R, out=buffer.results[self._group.rank, : len(index_R)])

    def _await_writers(self, time: ExchangeTime, finish: Callable[[], T]) -> Pending[T]:
        """Signal that this rank has written, and return a pending result that waits for all other ranks.

        Exchanges are waited for in the order in which they were begun.
        """
        pipes, ended_on_link = self._pipes, link_recorder()
        assert pipes is not None
        self._num_begun = number = self._num_begun + 1
        began_ns = pipes.signal(number)

        def arrive() -> None:
            largest, last_ns = pipes.wait()
            assert largest == number
            ended_ns = max(began_ns, last_ns)
            time.add((ended_ns - began_ns) / NS_PER_S)
            ended_on_link(began_ns, ended_ns)

        return Pending(self.traffic.time_wait(arrive), lambda _: finish())

    def _agree_on_largest(self, num_pairs: int) -> int:
        """Return the largest `num_pairs` of all ranks, which exchange these numbers."""
        if self._pipes is not None:
            self._pipes.signal(num_pairs)
            return max(num_pairs, self._pipes.wait()[0])
        one_each = [1] * self._group.size
        said_W = self._group.all_to_all(torch.full((self._group.size,), num_pairs), one_each, one_each)
        return int(said_W.max())

    def _make_buffers(self, num_pairs: int) -> None:
        """Make buffers with room for more than `num_pairs`, so that new ones are rare.

        Memory that is never touched costs nothing. If the ranks cannot share memory or pipes, this dispatcher is not
        possible from now on.
        """
        size, slots = self._group.size, self._normal.slots_per_rank
        self._max_pairs = 1 << num_pairs.bit_length()
        shapes = [
            (size, self._max_pairs, self._row_bytes),
            (size, size * self._max_pairs, self._result_bytes),
            (size, size * self._max_pairs, LONG_BYTES),
            (size, size, slots * LONG_BYTES),
        ]
        num_bytes = [-(-prod(shape) // CACHE_LINE_BYTES) * CACHE_LINE_BYTES for shape in shapes]
        memory = common_memory(self._group, 2 * sum(num_bytes))
        if memory is not None and self._pipes is None:
            self._pipes = common_pipes(self._group)
        self._is_possible = memory is not None and self._pipes is not None
        if memory is not None:
            self._buffers = [_buffer(half.split(num_bytes), shapes) for half in memory.chunk(2)]


def _buffer(parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> ExchangeBuffer:
    rows, results, row_of_pair, sizes = (
        part[: prod(shape)].view(shape) for part, shape in zip(parts, shapes, strict=True)
    )
    return ExchangeBuffer(rows, results, row_of_pair.view(torch.int64)[..., 0].numpy(), sizes.view(torch.int64).numpy())


def _run_starts(sizes: Longs, stride: int) -> Longs:
    """Return the index at which each run begins, in the order of `sizes`.

    The runs of row i, with the lengths `sizes[i]`, lie one after another from the index i * stride on.
    """
    flat = sizes.reshape(len(sizes), -1)
    begins = flat.cumsum(1) - flat + np.arange(len(flat))[:, None] * stride
    return begins.reshape(sizes.shape)


def _ranges(begins: Longs, sizes: Longs) -> Longs:
    """Return the runs of numbers, joined: `begins` 7, 3 with `sizes` 2, 1 give 7, 8, 3."""
    sizes = sizes.ravel()
    offsets = np.repeat(begins.ravel() - (np.cumsum(sizes) - sizes), sizes)
    return offsets + np.arange(len(offsets))
