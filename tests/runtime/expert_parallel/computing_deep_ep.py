"""DeepEP as its documentation describes it, between threads of one process: a slow reference for our calls.

Rows that the library leaves unwritten are NaN here. Sums are made rank by rank, as its normal kernels add.

Source: github.com/deepseek-ai/DeepEP dd758caf deep_ep/buffers/legacy.py, docstrings of `dispatch`, `combine`,
`low_latency_dispatch` and `low_latency_combine`.
"""

from threading import Barrier

import torch

from runtime.kernels import fp8

__all__ = ["Meeting", "new_deep_ep"]

TIMEOUT_S = 30


class Meeting:
    """The place where the ranks of a unit exchange values in lockstep."""

    def __init__(self, num_ranks):
        self.num_ranks = num_ranks
        self._barrier = Barrier(num_ranks)
        self._said = [None] * num_ranks

    def exchange(self, rank, said):
        """Return each rank's value."""
        self._said[rank] = said
        self._barrier.wait(TIMEOUT_S)
        heard = list(self._said)
        self._barrier.wait(TIMEOUT_S)
        return heard


class Event:
    """An event that knows whether it was waited for."""

    def __init__(self):
        self.was_waited_for = False

    def current_stream_wait(self):
        self.was_waited_for = True


class Config:
    """A configuration without sizes, which this reference does not need."""

    def get_nvl_buffer_size_hint(self, hidden_bytes, num_ranks):
        return hidden_bytes * num_ranks

    def get_rdma_buffer_size_hint(self, hidden_bytes, num_ranks):
        return 0


def new_deep_ep(meeting):
    """Return the module, with a `Buffer` whose ranks meet at `meeting`."""

    class Buffer:
        def __init__(
            self, group, num_nvl_bytes, num_rdma_bytes, low_latency_mode=False, num_qps_per_rank=24,
            explicitly_destroy=False, comm=None,
        ):  # fmt: skip
            assert explicitly_destroy, "the destructor would wait for the peers"
            self.rank = comm.Get_rank()
            assert comm.Get_size() == meeting.num_ranks
            assert comm.allgather(self.rank) == list(range(meeting.num_ranks))
            assert comm.allgather(bytearray([self.rank])) == [bytearray([r]) for r in range(meeting.num_ranks)]
            ids = [bytearray(b"id"), *[None] * (meeting.num_ranks - 1)]
            assert comm.allgather(b"id" if self.rank == 0 else None) == ids
            assert low_latency_mode == (num_nvl_bytes == 0)

        @staticmethod
        def capture():
            return Event()

        @staticmethod
        def get_dispatch_config(num_ranks):
            return Config()

        get_combine_config = get_dispatch_config

        @staticmethod
        def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts):
            return num_max_dispatch_tokens_per_rank * hidden * num_experts

        def get_dispatch_layout(self, topk_idx, num_experts, previous_event, async_finish, allocate_on_comm_stream):
            ranks = topk_idx // (num_experts // meeting.num_ranks)
            is_for = torch.stack([(ranks == rank).any(1) for rank in range(meeting.num_ranks)], 1)
            per_expert = topk_idx.flatten().bincount(minlength=num_experts).int()
            return is_for.sum(0).int(), None, per_expert, is_for, Event()

        def dispatch(
            self, x, topk_idx, topk_weights, num_tokens_per_rank, num_tokens_per_rdma_rank, is_token_in_rank,
            num_tokens_per_expert, expert_alignment, previous_event, async_finish, allocate_on_comm_stream,
        ):  # fmt: skip
            parts = x if isinstance(x, tuple) else (x,)
            slots = len(num_tokens_per_expert) // meeting.num_ranks
            told = meeting.exchange(self.rank, (parts, topk_idx, topk_weights, is_token_in_rank))
            first = self.rank * slots
            came = [each[3][:, self.rank].nonzero().flatten() for each in told]
            rows = [
                torch.cat([each[0][part][c] for each, c in zip(told, came, strict=True)]) for part in range(len(parts))
            ]
            experts = torch.cat([each[1][c] for each, c in zip(told, came, strict=True)]) - first
            weights = torch.cat([each[2][c] for each, c in zip(told, came, strict=True)])
            is_here = (experts >= 0) & (experts < slots)
            experts, weights = experts.masked_fill(~is_here, -1), weights.masked_fill(~is_here, 0)
            counts = experts[is_here].bincount(minlength=slots)
            aligned = [-(-count // expert_alignment) * expert_alignment for count in counts.tolist()]
            handle = came, len(topk_idx)
            return tuple(rows) if isinstance(x, tuple) else rows[0], experts, weights, aligned, handle, Event()

        def combine(self, x, handle, previous_event, async_finish, allocate_on_comm_stream):
            came, num_tokens = handle
            told = meeting.exchange(self.rank, (x, came))
            total = torch.zeros(num_tokens, x.shape[1])
            for rows, origins in told:
                before = sum(len(origin) for origin in origins[: self.rank])
                own = origins[self.rank]
                total.index_add_(0, own, rows[before : before + len(own)].float())
            return total.to(x.dtype), None, Event()

        def low_latency_dispatch(
            self, x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, use_fp8, round_scale, return_recv_hook
        ):
            assert return_recv_hook
            slots, capacity = num_experts // meeting.num_ranks, num_max_dispatch_tokens_per_rank
            told = meeting.exchange(self.rank, (x, topk_idx))
            room = torch.full((slots, meeting.num_ranks * capacity, x.shape[1]), torch.nan, dtype=x.dtype)
            origins = [[] for _ in range(slots)]
            for source, (rows, chosen) in enumerate(told):
                for slot in range(slots):
                    for token in (chosen == self.rank * slots + slot).any(1).nonzero().flatten().tolist():
                        room[slot, len(origins[slot])] = rows[token]
                        origins[slot].append((source, token))
            counts = torch.tensor([len(each) for each in origins], dtype=torch.int32)
            if use_fp8:
                x = fp8.quantise_rows(room.flatten(0, 1).nan_to_num(), round_scale)
                codes = x.codes.unflatten(0, room.shape[:2])
                scales = x.scales.unflatten(0, room.shape[:2]).transpose(1, 2).contiguous().transpose(1, 2)
                for slot, count in enumerate(counts.tolist()):
                    codes.view(torch.uint8)[slot, count:] = 0x7F
                room = codes, scales
            return room, counts, (origins, slots), None, lambda: None

        def low_latency_combine(self, x, topk_idx, topk_weights, handle, return_recv_hook):
            origins, slots = handle
            told = meeting.exchange(self.rank, (x, origins))
            total = torch.zeros(len(topk_idx), x.shape[2])
            for rank, (rows, sources) in enumerate(told):
                for slot, each in enumerate(sources):
                    for row, (source, token) in enumerate(each):
                        if source == self.rank:
                            weight = topk_weights[token][topk_idx[token] == rank * slots + slot].sum()
                            total[token] += weight * rows[slot, row].float()
            return total.to(x.dtype), None, lambda: None

    return type("DeepEp", (), {"Buffer": Buffer})
