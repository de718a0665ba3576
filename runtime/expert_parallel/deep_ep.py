"""Dispatch and combine by DeepEP's kernels, in both forms, behind the interface of `dispatcher.py`.

    normal         for steps with prompts. A token's row goes to each node once and on to its ranks. The host waits once
                   in a dispatch, until it knows how many rows come. The rank sorts them by slot, and fills each slot up
                   to the tiles of the matmuls. In combine it sums its own slots' results of a token with the gate's
                   weights, and DeepEP sums over the ranks.
    low latency    for steps of decode. Rows are quantised and written straight into the room of their slots. The host
                   waits for no counts. DeepEP's combine applies the weights and sums.

Neither guarantees an order of addition, so deterministic mode allows neither.

The ranks of a unit make their buffers together, in the first step. DeepEP exchanges addresses for that, through the
unit's own store (`_Handles`): torch's default process group would pickle, and listen on other addresses. Buffers are
not destroyed before the process ends, because DeepEP's destructor waits for the peers, and a rank that has lost one
could not end.

DeepEP has two low-latency buffers, and the third exchange would overwrite the first: no more than two may run at once.

Worked example of the order in the normal form, 2 slots, tiles of 4: three tokens come, with slots (0), (0, 1) and (1).
Their rows lie at 0, 1 | 4, 5; rows 2, 3, 6 and 7 fill the tiles. Combine adds rows 1 and 4 for the second token.

We have run the normal form between two ranks on one H100 (docs/performance.md), and not between GPUs. We have not run
the low-latency form, which needs an InfiniBand NIC.

Source: github.com/deepseek-ai/DeepEP dd758caf deep_ep/buffers/legacy.py, docs/legacy.md ("Interfaces and Examples") and
tests/legacy.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor

from runtime.errors import PeerLost
from runtime.expert_parallel.dispatcher import (
    CombinedResults,
    ContiguousRows,
    DispatchedRows,
    DispatchHandle,
    MaskedRows,
    Pending,
    RowFormat,
    TokenDispatcher,
    WeightsApplied,
    planned_rows,
)
from runtime.expert_parallel.group import Group
from runtime.expert_parallel.traffic import Traffic
from runtime.kernels.fp8 import BLOCK, Quantised
from runtime.kernels.gpu import contracts
from runtime.kernels.gpu.ops import GpuOps
from runtime.kernels.gpu.packages import INSTEAD
from runtime.kernels.ops import Ops
from runtime.kernels.say import say_once

__all__ = [
    "LowLatencyDispatcher",
    "NormalDispatcher",
    "SummedRows",
    "deep_ep_form",
    "find_low_latency_obstacle",
    "find_normal_obstacle",
]

MAX_UNDER_WAY = 2  # deep_ep/buffers/legacy.py, low_latency_dispatch: "you cannot hold more than 2"
TOO_LATE = "DeepEP error: "  # csrc/legacy/buffer.hpp: 100 s without counts; failed assertions say "Failed"
RANKS_PER_NODE = contracts.NVLINK_PEERS  # required by the normal form of a unit on several nodes


@dataclass(frozen=True)
class SummedRows:
    """The results for each token, already added up by DeepEP."""

    result_TD: Tensor

    def sum(self) -> Tensor:
        """Return the sums as they are: DeepEP has added up each token's results."""
        return self.result_TD


def deep_ep_form(
    group: Group,
    slots_per_rank: int,
    top_k: int,
    row_format: RowFormat,
    x_1D: Tensor,
    ops: Ops,
    capacity: int | None,
) -> TokenDispatcher | None:
    """Return the form of DeepEP that fits this unit, or None if none does.

    If the unit has GPUs, the package and more than one rank, and still no form fits, log once why not.
    `capacity` is the most tokens that any rank dispatches at once in a unit without prompts; None in a unit with
    prompts.
    """
    if not isinstance(ops, GpuOps) or ops.packages.deep_ep is None or group.size == 1:
        return None
    sizes = group, x_1D.shape[1]
    obstacle = find_normal_obstacle(*sizes) if capacity is None else find_low_latency_obstacle(*sizes, top_k)
    if x_1D.dtype != torch.bfloat16:
        obstacle = f"DeepEP moves BF16 and FP8, not {x_1D.dtype}"
    if obstacle is not None:
        say_once(f"{obstacle}: {INSTEAD['deep_ep']}")
        return None
    if capacity is None:
        return NormalDispatcher(group, slots_per_rank, x_1D.shape[1], row_format, ops)
    return LowLatencyDispatcher(group, slots_per_rank, capacity, x_1D.shape[1], row_format, ops)


def find_normal_obstacle(group: Group, hidden_size: int) -> str | None:
    """Return the reason why DeepEP's normal kernels do not fit this unit; None if they fit."""
    if group.size not in contracts.NORMAL_SIZES:
        return f"DeepEP's normal kernels have no configuration for {group.size} ranks"
    nodes = [group.nodes.count(node) for node in sorted(set(group.nodes))]
    if len(nodes) > 1 and set(nodes) != {RANKS_PER_NODE}:
        return f"DeepEP's normal kernels need {RANKS_PER_NODE} ranks on each node, not {min(nodes)} to {max(nodes)}"
    if hidden_size % BLOCK:
        return f"DeepEP's normal kernels need a multiple of {BLOCK} channels, not {hidden_size}"
    return None


def find_low_latency_obstacle(group: Group, hidden_size: int, top_k: int) -> str | None:
    """Return the reason why DeepEP's low-latency kernels do not fit this unit; None if they fit."""
    if group.size > contracts.NVLINK_PEERS and group.size % contracts.NVLINK_PEERS:
        return f"DeepEP's low-latency kernels need a multiple of {contracts.NVLINK_PEERS} ranks, not {group.size}"
    if hidden_size not in contracts.LL_HIDDEN_SIZES:
        return f"DeepEP's low-latency kernels know no rows of {hidden_size} channels"
    if top_k > contracts.MAX_TOP_K:
        return f"DeepEP's low-latency kernels take {contracts.MAX_TOP_K} choices of a token, not {top_k}"
    return None


class _DeepEp:
    """The common part of both forms: the unit, its rows, and DeepEP's buffer once all ranks have joined."""

    weights_applied = WeightsApplied.BY_COMBINE
    sums_in_order = False

    def __init__(self, group: Group, slots_per_rank: int, hidden_size: int, row_format: RowFormat, ops: GpuOps) -> None:
        self.group, self.slots_per_rank, self.hidden_size = group, slots_per_rank, hidden_size
        self.row_format, self.ops = row_format, ops
        self.num_slots = group.size * slots_per_rank
        self.traffic = Traffic()
        self._buffer: Any = None

    def begin_step(self, num_tokens: int) -> None:
        """Make DeepEP's buffer if this is the first step."""
        if self._buffer is None:
            self._buffer = self._new_buffer()

    def _new_buffer(self) -> Any:
        raise NotImplementedError

    def _count_sent(self, slots_TK: Tensor) -> Tensor:
        """Return how many (token, choice) pairs this rank sends to each rank, [W]."""
        ranks = (slots_TK // self.slots_per_rank).flatten()
        return ranks.new_zeros(self.group.size).scatter_add_(0, ranks, torch.ones_like(ranks))


class NormalDispatcher(_DeepEp):
    """DeepEP's normal kernels."""

    def dispatch(self, x_TD: Tensor, slots_TK: Tensor, weights_TK: Tensor) -> Pending[DispatchedRows]:
        """Send rows, and sort the rows that arrive by this rank's slots."""
        x, weights_TK = self.row_format.quantise(x_TD), weights_TK.contiguous()
        x = Quantised(x.codes, x.scales.contiguous()) if isinstance(x, Quantised) else x
        contracts.check_dispatch(x, slots_TK, weights_TK, self.group.size, self.num_slots)
        after = self._buffer.capture()
        *sizes, after = self._buffer.get_dispatch_layout(
            slots_TK, self.num_slots, previous_event=after, async_finish=True, allocate_on_comm_stream=True
        )
        tokens_for_rank, tokens_for_node, tokens_for_slot, is_for_rank_TW = sizes
        with _raise_peer_lost():
            came, slots, weights, counts, handle, event = self._buffer.dispatch(
                (x.codes, x.scales) if isinstance(x, Quantised) else x,
                topk_idx=slots_TK,
                topk_weights=weights_TK,
                num_tokens_per_rank=tokens_for_rank,
                num_tokens_per_rdma_rank=tokens_for_node,
                is_token_in_rank=is_for_rank_TW,
                num_tokens_per_expert=tokens_for_slot,
                expert_alignment=self.ops.row_alignment,
                previous_event=after,
                async_finish=True,
                allocate_on_comm_stream=True,
            )
        arrived = [came, slots, weights]  # emptied once they are sorted, so that memory holds them only once

        def place_arrived(_: object) -> DispatchedRows:
            return self._place_arrived(arrived, counts, handle, self._count_sent(slots_TK))

        return Pending(event.current_stream_wait, place_arrived)

    def combine(self, results: Tensor, dispatched: DispatchHandle | DispatchedRows) -> Pending[CombinedResults]:
        """Add the results of this rank's slots for each token, then send the sums back."""
        handle, place_TK, weights_TK = dispatched.return_route
        rows_RD = self.ops.add_rows(results, place_TK, weights_TK)
        contracts.check_combine(rows_RD)
        combined_TD, _, event = self._buffer.combine(
            rows_RD,
            handle,
            previous_event=self._buffer.capture(),
            async_finish=True,
            allocate_on_comm_stream=True,
        )
        return Pending(event.current_stream_wait, lambda _: SummedRows(combined_TD))

    def _place_arrived(self, arrived: list[Any], counts: list[int], handle: Any, sent_W: Tensor) -> DispatchedRows:
        """Copy each token that arrived into a row for each of its slots on this rank."""
        came, slots_TK, weights_TK = arrived
        arrived.clear()
        place_TK, counts_M = self.ops.place_rows(slots_TK, self.slots_per_rank)
        came = Quantised(*came) if isinstance(came, tuple) else came
        rows = self.ops.spread_rows(came, place_TK, sum(counts))
        return DispatchedRows(ContiguousRows(rows, counts_M, counts), sent_W, (handle, place_TK, weights_TK))

    def _new_buffer(self) -> Any:
        deep_ep, size = self.ops.packages.deep_ep, self.group.size
        row_bytes = 2 * self.hidden_size  # of combine, in BF16: larger than dispatch's
        configs = [deep_ep.Buffer.get_dispatch_config(size), deep_ep.Buffer.get_combine_config(size)]
        nvlink = max(config.get_nvl_buffer_size_hint(row_bytes, size) for config in configs)
        rdma = max(config.get_rdma_buffer_size_hint(row_bytes, size) for config in configs)
        return deep_ep.Buffer(None, nvlink, rdma, explicitly_destroy=True, comm=_Handles(self.group))


class LowLatencyDispatcher(_DeepEp):
    """DeepEP's low-latency kernels, for at most `capacity` tokens of a rank."""

    def __init__(
        self,
        group: Group,
        slots_per_rank: int,
        capacity: int,
        hidden_size: int,
        row_format: RowFormat,
        ops: GpuOps,
    ) -> None:
        super().__init__(group, slots_per_rank, hidden_size, row_format, ops)
        self.capacity = capacity
        self._num_under_way = 0

    def begin_step(self, num_tokens: int) -> None:
        """Assert that there is room for this many tokens: more would break the launch file's limits."""
        assert num_tokens <= self.capacity
        super().begin_step(num_tokens)

    def dispatch(self, x_TD: Tensor, slots_TK: Tensor, weights_TK: Tensor) -> Pending[DispatchedRows]:
        """Begin to send rows. After the pending result's `wait`, each row is in the memory reserved for its slot."""
        x_TD, weights_TK = x_TD.contiguous(), weights_TK.contiguous()
        sizes = self.group.size, self.num_slots, self.capacity
        contracts.check_low_latency_dispatch(x_TD, slots_TK, weights_TK, *sizes)
        power_of_two = getattr(self.row_format, "power_of_two", None)  # None: rows travel in BF16
        came, counts_M, handle, _, hook = self._buffer.low_latency_dispatch(
            x_TD,
            slots_TK,
            self.capacity,
            self.num_slots,
            use_fp8=power_of_two is not None,
            round_scale=bool(power_of_two),
            return_recv_hook=True,
        )
        expected_rows = planned_rows(self.capacity, slots_TK.shape[1], self.slots_per_rank)
        rows = MaskedRows(Quantised(*came) if isinstance(came, tuple) else came, counts_M, expected_rows=expected_rows)
        dispatched = DispatchedRows(rows, self._count_sent(slots_TK), (slots_TK, weights_TK, handle))
        return Pending(self._count_exchange(hook), lambda _: dispatched)

    def combine(self, results: Tensor, dispatched: DispatchHandle | DispatchedRows) -> Pending[CombinedResults]:
        """Begin to send results back. DeepEP applies the weights, and sums the results as they arrive."""
        slots_TK, weights_TK, handle = dispatched.return_route
        contracts.check_low_latency_combine(results, self.group.size, self.num_slots, self.capacity)
        combined_TD, _, hook = self._buffer.low_latency_combine(
            results, slots_TK, weights_TK, handle, return_recv_hook=True
        )
        return Pending(self._count_exchange(hook), lambda _: SummedRows(combined_TD))

    def _count_exchange(self, hook: Callable[[], None]) -> Callable[[], None]:
        """Count an exchange as running. Return a function that waits for its end by `hook` and counts it as ended."""
        self._num_under_way += 1
        assert self._num_under_way <= MAX_UNDER_WAY, "a third exchange would overwrite the first"

        def arrive() -> None:
            hook()
            self._num_under_way -= 1

        return arrive

    def _new_buffer(self) -> Any:
        buffer, size = self.ops.packages.deep_ep.Buffer, self.group.size
        rdma = buffer.get_low_latency_rdma_size_hint(self.capacity, self.hidden_size, size, self.num_slots)
        return buffer(
            None,
            0,
            rdma,
            low_latency_mode=True,
            num_qps_per_rank=self.slots_per_rank,
            explicitly_destroy=True,
            comm=_Handles(self.group),
        )


class _Handles:
    """The communicator with which DeepEP's ranks exchange handles while they make their buffers.

    A handle is a device's number, an address as bytes, or None.
    """

    def __init__(self, group: Group) -> None:
        self._group = group

    def Get_rank(self) -> int:  # noqa: N802 - named by DeepEP
        """Return this rank's number. DeepEP calls the method by this name of MPI's."""
        return self._group.rank

    def Get_size(self) -> int:  # noqa: N802
        """Return the number of ranks. DeepEP calls the method by this name of MPI's."""
        return self._group.size

    def allgather(self, handle: int | bytes | None) -> list[int | bytearray | None]:
        """Return each rank's handle."""
        own = bytes(handle) if isinstance(handle, bytes | bytearray) else handle
        handles = self._group.gather(msgspec.msgpack.encode(own))
        found = [msgspec.msgpack.decode(part, type=int | bytes | None) for part in handles]
        return [bytearray(each) if isinstance(each, bytes) else each for each in found]


@contextmanager
def _raise_peer_lost() -> Iterator[None]:
    """Raises PeerLost if DeepEP waited in vain for the counts of the other ranks."""
    try:
        yield
    except RuntimeError as error:
        if TOO_LATE not in str(error):
            raise
        raise PeerLost(f"a rank of this unit is gone ({error})") from None
