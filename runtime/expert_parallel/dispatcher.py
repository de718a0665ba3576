"""Dispatch and combine: each (token, choice) pair goes to the rank of its slot, is computed there, and comes back.

    slots are numbered rank by rank: slot s lives on rank s // slots_per_rank
    dispatch   x [T, D], slots and weights [T, K]  ->  this rank's rows, by local slot, and their number in each slot
    combine    the experts' results of the rows    ->  each token's weighted sum over its choices

Both begin an exchange and return at once; `wait()` returns the result. The caller may compute in between, which overlap
uses (`overlap.py`). An exchange sends sizes first, then rows.

A dispatcher declares three properties, and its caller depends on nothing else:

    rows               contiguous: slot after slot, as many as came; or masked: room for Z rows in each slot. The counts
                       are a tensor in both. For contiguous rows the host knows them too, because it made room.
    weights_applied    by combine, while it adds; or by the experts, if combine only adds rows as they come
    sums_in_order      a token's choices are added in their order, so the sum does not depend on where experts are.
                       Deterministic mode admits no other dispatcher.

A token goes to a rank once, however many of its slots are there. Worked example: slots 0-2 are on rank 0, 3-5 on rank
1. A token of rank 0 wants slots 4, 1 and 5. Rank 1 gets one row, "4 1 5" and the activations, and makes two rows of it;
rank 0 keeps one. Two rows come back, the outputs of slots 4 and 5. The weights stay at rank 0, which makes the sum.

`LocalDispatcher` is the reference, and all other forms must have its results. A rank without tokens still takes part,
since every collective needs all ranks of the group.

Models: torchtitan (`TokenDispatcher`: one interface, Local and AllToAll); DeepEP (the words). DeepEP's low-latency form
has masked rows and a combine that applies weights. Its normal form has contiguous rows and a combine that does not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from runtime.expert_parallel.group import Group
from runtime.expert_parallel.traffic import Traffic
from runtime.kernels.fp8 import Quantised
from runtime.kernels.ops import Ops, inverse_order

__all__ = [
    "SLOT_BYTES",
    "AllToAllDispatcher",
    "ChoiceRows",
    "CombinedResults",
    "ContiguousRows",
    "DispatchHandle",
    "DispatchedRows",
    "ExpertRows",
    "LocalDispatcher",
    "MaskedRows",
    "Pending",
    "PlainRows",
    "RowFormat",
    "Sizes",
    "TokenDispatcher",
    "WeightsApplied",
    "planned_rows",
]

SLOT_BYTES = 4  # torch.int32: one slot number in front of a row

T = TypeVar("T")


@dataclass(frozen=True)
class Pending(Generic[T]):
    """An exchange that has begun. `arrive` waits for the rows, `finish` makes the result from them."""

    arrive: Callable[[], Any]
    finish: Callable[[Any], T]

    def wait(self) -> T:
        """Return the result; call it once. Raises PeerLost if a rank of the unit is gone."""
        return self.finish(self.arrive())


class WeightsApplied(Enum):
    """Says who multiplies the experts' results by the gate's weights: combine, or the experts."""

    BY_COMBINE = auto()
    BY_EXPERTS = auto()  # rows come with their weights, and combine only adds


@dataclass(frozen=True)
class ContiguousRows:
    """`counts` rows of each local slot, slot after slot.

    Of each slot's rows only the first `counts_M` are tokens' rows. The two are equal unless each slot is filled up to a
    multiple of `Ops.row_alignment`.
    """

    rows_RD: Tensor | Quantised
    counts_M: Tensor
    counts: list[int]
    weights_R: Tensor | None = None  # for WeightsApplied.BY_EXPERTS

    def weigh(self, results_RD: Tensor) -> Tensor:
        """Return the experts' results, multiplied by the rows' weights."""
        assert self.weights_R is not None
        return results_RD * self.weights_R[:, None].to(results_RD.dtype)


@dataclass(frozen=True)
class MaskedRows:
    """The same number of rows in each local slot, of which only the first `counts_M` are valid."""

    rows_MZD: Tensor | Quantised
    counts_M: Tensor
    weights_MZ: Tensor | None = None  # for WeightsApplied.BY_EXPERTS
    expected_rows: int = 1  # rows of a slot in a full unit; kernels choose their tiles by it

    def weigh(self, results_MZD: Tensor) -> Tensor:
        """Return the experts' results, multiplied by the rows' weights."""
        assert self.weights_MZ is not None
        return results_MZD * self.weights_MZ[..., None].to(results_MZD.dtype)


ExpertRows = ContiguousRows | MaskedRows


def planned_rows(capacity: int, top_k: int, slots_per_rank: int) -> int:
    """Return the rows that a slot gets on average while every rank dispatches `capacity` tokens, rounded up.

    The number is the planned load, whatever this rank dispatches now. A rank does not know its peers' tokens, and a
    recorded step keeps the number: a rank that was idle during recording gets as many rows later as any other. By
    DeepGEMM's own estimate for 2 slots of DeepSeek-V3, tiles chosen for 1 row take twice as long on 256 rows, and tiles
    chosen for 256 rows twice as long on 1. The unit is planned for full steps, and steps with few rows are short
    anyway.

    Source: github.com/deepseek-ai/DeepGEMM 54e22612 csrc/jit_kernels/heuristics/sm90.hpp, get_layout_info.
    """
    return -(-capacity * top_k // slots_per_rank)


@dataclass(frozen=True)
class DispatchHandle:
    """What combine needs of a dispatch."""

    sent_W: Tensor  # this rank's pairs for each rank
    return_route: Any  # the dispatcher's own data for combine


@dataclass(frozen=True)
class DispatchedRows:
    """The rows that arrived at this rank, and what is needed to send their results back."""

    rows: ExpertRows
    sent_W: Tensor  # this rank's pairs for each rank
    return_route: Any  # the dispatcher's own data for combine

    def drop_rows(self) -> DispatchHandle:
        """Release the rows, which take most of a step's memory, and return what combine needs."""
        return DispatchHandle(self.sent_W, self.return_route)


class CombinedResults(Protocol):
    """The experts' results for this rank's tokens, arrived."""

    def sum(self) -> Tensor:
        """Return the weighted sum over each token's choices, [T, D]."""


@dataclass(frozen=True)
class ChoiceRows:
    """A row for each (token, choice) pair, in any order; they are added in the order of the choices."""

    rows_RD: Tensor
    row_of_pair_TK: Tensor
    weights_TK: Tensor
    ops: Ops

    def sum(self) -> Tensor:
        """Return the weighted sum over each token's choices, [T, D]."""
        return self.ops.weighted_sum(self.rows_RD, self.row_of_pair_TK, self.weights_TK)


class RowFormat(Protocol):
    """The form in which a token's activations travel: rows of bytes, because one row may have several types."""

    def quantise(self, x_TD: Tensor) -> Tensor | Quantised:
        """Return the activations in the form in which they travel, before they become bytes."""

    def encode(self, x_TD: Tensor) -> Tensor:
        """Return rows of bytes, [T, X], uint8."""

    def decode(self, bytes_RX: Tensor) -> Tensor | Quantised:
        """Return the experts' input from encoded rows [R, X], or from encoded rows in slots [M, Z, X]."""


class PlainRows:
    """Rows that travel as they are."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def quantise(self, x_TD: Tensor) -> Tensor:
        """Return `x_TD` as it is."""
        return x_TD

    def encode(self, x_TD: Tensor) -> Tensor:
        """Return the memory of `x_TD`, viewed as bytes."""
        assert x_TD.dtype == self.dtype
        return x_TD.contiguous().view(torch.uint8)

    def decode(self, bytes_RX: Tensor) -> Tensor:
        """Return the memory of `bytes_RX`, viewed as activations."""
        return bytes_RX.view(self.dtype)


class TokenDispatcher(Protocol):
    """The interface of all dispatchers: the local one, all-to-all, by node, masked, in shared memory, and DeepEP's."""

    traffic: Traffic
    weights_applied: WeightsApplied
    sums_in_order: bool

    def begin_step(self, num_tokens: int) -> None:
        """Prepare for a step in which this rank dispatches at most `num_tokens` tokens at once. A collective."""

    def dispatch(self, x_TD: Tensor, slots_TK: Tensor, weights_TK: Tensor) -> Pending[DispatchedRows]:
        """Begin to bring the row of each (token, choice) pair to its slot. The result has the rows for this rank."""

    def combine(self, results: Tensor, dispatched: DispatchHandle | DispatchedRows) -> Pending[CombinedResults]:
        """Begin to send results back to their tokens' ranks. Result i belongs to dispatched row i."""


class LocalDispatcher:
    """All slots are on this rank, so rows only need sorting."""

    weights_applied = WeightsApplied.BY_COMBINE
    sums_in_order = True

    def __init__(self, num_slots: int, row_format: RowFormat, ops: Ops) -> None:
        self.num_slots, self.row_format, self.ops = num_slots, row_format, ops
        self.traffic = Traffic()

    def begin_step(self, num_tokens: int) -> None:
        """Do nothing: there are no other ranks to agree with."""

    def dispatch(self, x_TD: Tensor, slots_TK: Tensor, weights_TK: Tensor) -> Pending[DispatchedRows]:
        """Sort the pairs by slot. Nothing is sent."""
        counts_M, pair_of_row, row_of_pair = self.ops.sort_by_slot(slots_TK, self.num_slots)
        rows = self.row_format.encode(x_TD).index_select(0, pair_of_row // slots_TK.shape[1])
        sent_W = counts_M.sum(0, keepdim=True)
        return_route = row_of_pair.view(slots_TK.shape), weights_TK
        decoded = self.row_format.decode(rows)
        return _ready_result(
            DispatchedRows(ContiguousRows(decoded, counts_M, self.ops.read(counts_M)), sent_W, return_route)
        )

    def combine(self, results: Tensor, dispatched: DispatchHandle | DispatchedRows) -> Pending[CombinedResults]:
        """Return the results, which are on this rank already."""
        row_of_pair_TK, weights_TK = dispatched.return_route
        return _ready_result(ChoiceRows(results, row_of_pair_TK, weights_TK, self.ops))


@dataclass(frozen=True)
class Sizes:
    """The numbers that this rank sent to each rank before any rows, and the numbers received: one line per rank.

    In a dispatch the host waits only once, for these numbers.
    """

    sent: list[list[int]]
    received: list[list[int]]
    received_WX: Tensor  # the same, on the device of the rows


@dataclass(frozen=True)
class _ReturnRoute:
    received: list[int]  # pairs of each rank that have their slots here
    sent: list[int]  # this rank's pairs for each rank
    arrival_of_row: Tensor  # [R]: the index of each row's pair among the received ones
    row_of_pair_TK: Tensor  # the future row of each own pair's result
    weights_TK: Tensor


class AllToAllDispatcher:
    """Dispatches to the ranks of a group. A token's row goes once to each rank with slots for the token.

    The numbers of these slots travel in front of the row. Each pair's result comes back as a row of its own. Results
    are summed in the order of the choices.
    """

    weights_applied = WeightsApplied.BY_COMBINE
    sums_in_order = True

    def __init__(self, group: Group, slots_per_rank: int, row_format: RowFormat, ops: Ops) -> None:
        self.group, self.slots_per_rank, self.row_format, self.ops = group, slots_per_rank, row_format, ops
        self.traffic = Traffic()

    def begin_step(self, num_tokens: int) -> None:
        """Do nothing: any number of tokens is dispatched in the same way."""

    def dispatch(self, x_TD: Tensor, slots_TK: Tensor, weights_TK: Tensor) -> Pending[DispatchedRows]:
        """Begin to send each token's row, with its slot numbers in front.

        On arrival, a row is copied once for each of its slots on this rank.
        """
        pairs_WM = self.count_pairs(slots_TK)
        row_of_pair = inverse_order((slots_TK // self.slots_per_rank).flatten().argsort(stable=True))
        exchange = self.exchange(self.prepend_slots(self.row_format.encode(x_TD), slots_TK), slots_TK, pairs_WM)

        def group_by_slot(arrived: tuple[Sizes, Tensor]) -> DispatchedRows:
            sizes, rows_RX = arrived
            received, sent = map(self._sum_pairs, (sizes.received, sizes.sent))
            slots_RK = self.read_slots(rows_RX, slots_TK.shape[1])
            is_here_RK = slots_RK // self.slots_per_rank == self.group.rank
            row, choice = is_here_RK.nonzero_static(size=sum(received)).unbind(1)
            arrival_of_row = slots_RK[row, choice].argsort(stable=True)
            bytes_RX = rows_RX[:, slots_TK.shape[1] * SLOT_BYTES :].index_select(0, row[arrival_of_row])
            counts = [sum(pairs) for pairs in zip(*self._pairs_by_slot(sizes.received), strict=True)]
            return_route = _ReturnRoute(received, sent, arrival_of_row, row_of_pair.view(slots_TK.shape), weights_TK)
            counts_M = sizes.received_WX[:, : self.slots_per_rank].sum(0)
            rows = ContiguousRows(self.row_format.decode(bytes_RX), counts_M, counts)
            return DispatchedRows(rows, pairs_WM.sum(1), return_route)

        arrival = self.group.begin(self.traffic.dispatch.time_exchange(exchange))
        return Pending(self.traffic.time_wait(arrival.result), group_by_slot)

    def combine(self, results: Tensor, dispatched: DispatchHandle | DispatchedRows) -> Pending[CombinedResults]:
        """Send each pair's result to its token's rank."""
        way: _ReturnRoute = dispatched.return_route
        rows = results.index_select(0, inverse_order(way.arrival_of_row))
        exchange = partial(self.group.all_to_all, rows, way.received, way.sent)
        arrival = self.group.begin(self.traffic.combine.time_exchange(exchange))
        return Pending(
            self.traffic.time_wait(arrival.result),
            lambda returned: ChoiceRows(returned, way.row_of_pair_TK, way.weights_TK, self.ops),
        )

    def prepend_slots(self, bytes_TX: Tensor, slots_TK: Tensor) -> Tensor:
        """Return rows as they travel, [T, X] bytes: the token's slots, then its activations."""
        return torch.cat((slots_TK.int().view(torch.uint8), bytes_TX), 1)

    def read_slots(self, rows_RX: Tensor, top_k: int) -> Tensor:
        """Return the slot numbers in front of rows that `prepend_slots` made: [R, K]."""
        return rows_RX[:, : top_k * SLOT_BYTES].contiguous().view(torch.int32).long()

    def exchange(self, rows_TX: Tensor, slots_TK: Tensor, pairs_WM: Tensor) -> Callable[[], tuple[Sizes, Tensor]]:
        """Return a function that exchanges sizes, then sends each row to its ranks.

        The function returns the sizes and the received rows, in the order of the ranks that sent them.
        """
        is_for_TW = self.rank_mask(slots_TK // self.slots_per_rank)
        sizes_WX = torch.cat((pairs_WM, is_for_TW.sum(0)[:, None]), 1)

        def sizes_then_rows() -> tuple[Sizes, Tensor]:
            sizes = self.send_sizes(sizes_WX)
            send, receive = ([line[-1] for line in lines] for lines in (sizes.sent, sizes.received))
            return sizes, self.send_rows(self.rows_by_rank(rows_TX, is_for_TW, sum(send)), send, receive)

        return sizes_then_rows

    def send_sizes(self, sizes_WX: Tensor) -> Sizes:
        """Send each rank its line of `sizes_WX`, and return what was sent and received.

        A line has the number of pairs for each slot of the rank, and then the numbers of rows that the dispatcher in
        use needs, if any.
        """
        one_each = [1] * self.group.size
        received_WX = self.group.all_to_all(sizes_WX, one_each, one_each)
        sent, received = self.ops.read(torch.stack((sizes_WX, received_WX)))
        return Sizes(sent, received, received_WX)

    def rows_by_rank(self, rows_RX: Tensor, is_for_RW: Tensor, num_rows: int) -> Tensor:
        """Return the rows for each rank, in the order of ranks. A row for several ranks is copied for each.

        `num_rows` is the number of all copies. It is given, so that the CPU does not wait for the device to count.
        """
        return rows_RX.index_select(0, is_for_RW.T.nonzero_static(size=num_rows)[:, 1])

    def rank_mask(self, ranks_RK: Tensor) -> Tensor:
        """Return a mask [R, W] that says whether rank w is among the ranks `ranks_RK[r]` of row r."""
        is_among_RW = ranks_RK.new_zeros(len(ranks_RK), self.group.size, dtype=torch.bool)
        return is_among_RW.scatter_(1, ranks_RK, True)

    def send_rows(self, rows: Tensor, send: list[int], receive: list[int]) -> Tensor:
        """Return the received rows of an all-to-all of rows of bytes, and count its traffic."""
        self.traffic.count(self.group, send, rows.shape[1])
        return self.group.all_to_all(rows, send, receive)

    def count_pairs(self, slots_TK: Tensor) -> Tensor:
        """Return the number of (token, choice) pairs for each slot of each rank, [W, M]."""
        pairs_WM = slots_TK.new_zeros(self.group.size, self.slots_per_rank)
        slots = slots_TK.flatten()
        pairs_WM.view(-1).scatter_add_(0, slots, torch.ones_like(slots))
        return pairs_WM

    def _pairs_by_slot(self, lines: list[list[int]]) -> list[list[int]]:
        """Return the number of pairs for each slot, one list for each line of sizes."""
        return [line[: self.slots_per_rank] for line in lines]

    def _sum_pairs(self, lines: list[list[int]]) -> list[int]:
        """Return the sum of pairs of each line of sizes."""
        return [sum(pairs) for pairs in self._pairs_by_slot(lines)]


def _ready_result(value: T) -> Pending[T]:
    """Return a pending result that is ready at once."""
    return Pending(lambda: value, lambda arrived: arrived)
