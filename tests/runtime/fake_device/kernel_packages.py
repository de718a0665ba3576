"""Stand-ins for DeepGEMM, FlashMLA and DeepEP that compute nothing.

They take the packages' arguments, and allocate what the packages do, as far as their sources show.

So a rank runs the product's own path to the kernels on fake tensors: its contracts, and its dispatchers over DeepEP.

Sources: github.com/deepseek-ai/DeepGEMM 54e22612 csrc/apis/gemm.hpp and csrc/jit_kernels/impls/smxx_layout.hpp;
FlashMLA 9241ae3e csrc/api/dense_decode.h; DeepEP dd758caf csrc/legacy/buffer.hpp, csrc/legacy/config.hpp and
deep_ep/buffers/legacy.py.
"""

import torch

from runtime.kernels.fp8 import E4M3, num_blocks

__all__ = ["FakeDeepEp", "FakeDeepGemm", "FakeFlashMla"]

ALIGNMENT = 128  # csrc/jit_kernels/heuristics/runtime.hpp, kLegacyMKAlignmentForContiguousLayout
NUM_SMS = 132  # of an H100, H800 or H200
SOURCE_META_BYTES = 8  # csrc/kernels/legacy/internode.cu, SourceMeta
INDEX_BYTES, FLOAT_BYTES, INT4_BYTES = 8, 4, 16


class FakeDeepGemm:
    """A stand-in that packs FP32 scales into exponents if `arch` is 10, and reads them by columns if it is 9."""

    def __init__(self, arch):
        self.arch, self.calls = arch, []

    def get_mk_alignment_for_contiguous_layout(self):
        return ALIGNMENT

    def fp8_gemm_nt(self, a, b, d, c=None, recipe=None, compiled_dims="nk", disable_ue8m0_cast=False):
        self._record_call("fp8_gemm_nt", a, b)

    def m_grouped_fp8_gemm_nt_contiguous(self, a, b, d, grouped_layout, recipe=None, compiled_dims="nk"):
        self._record_call("m_grouped_fp8_gemm_nt_contiguous", a, b)

    def m_grouped_fp8_fp4_gemm_nt_masked(self, a, b, d, masked_m, expected_m, recipe=None, compiled_dims="nk"):
        self._record_call("m_grouped_fp8_fp4_gemm_nt_masked", a, b)

    def _record_call(self, name, a, b):
        self.calls.append(name)
        if self.arch == 10:
            (_, scales_of_x), (w, scales_of_w) = a, b
            by_row = scales_of_w.new_empty(*w.shape[:-1], scales_of_w.shape[-1])
            for scales in (scales_of_x, by_row):
                torch.empty(*scales.shape[:-1], -(-scales.shape[-1] // 4), dtype=torch.int32, device=scales.device)


class FakeFlashMla:
    """A stand-in for dense decoding."""

    def __init__(self):
        self.num_schedules = 0

    def get_mla_metadata(self):
        self.num_schedules += 1
        return object(), None

    def flash_mla_with_kvcache(
        self, q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None,
        softmax_scale=None, causal=False, is_fp8_kvcache=None, use_legacy=False,
    ):  # fmt: skip
        assert use_legacy, "the wheel has dense decoding among its older kernels only"
        batch, length, heads, _ = q.shape
        splits = batch + max(NUM_SMS // -(-length * heads // 64), 1)
        out = q.new_empty(batch, length, heads, head_dim_v)
        lse = q.new_empty(batch, heads, length, dtype=torch.float32)
        q.new_empty(splits, 1, heads * length, head_dim_v, dtype=torch.float32)
        return out, lse


class FakeEvent:
    """An event with nothing under way."""

    def current_stream_wait(self):
        pass


class FakeConfig:
    """A stand-in for csrc/legacy/config.hpp, Config."""

    def __init__(self, nvlink_send, nvlink_receive, rdma_send, rdma_receive):
        self.channels, self.nvlink_receive = 10, nvlink_receive
        self.rdma_receive = -(-rdma_receive // rdma_send) * rdma_send

    def get_nvl_buffer_size_hint(self, hidden_bytes, num_ranks):
        nodes, peers = max(num_ranks // 8, 1), min(num_ranks, 8)
        token = hidden_bytes + SOURCE_META_BYTES + 128 * INDEX_BYTES + 128 * FLOAT_BYTES + 128 * FLOAT_BYTES
        num_bytes = self.channels * peers * ((2 * nodes + 3) * 4 + self.nvlink_receive * token)
        return -(-num_bytes // 128) * 128

    def get_rdma_buffer_size_hint(self, hidden_bytes, num_ranks):
        if num_ranks <= 8:
            return 0
        token = hidden_bytes + SOURCE_META_BYTES + 128 * (INDEX_BYTES + 2 * FLOAT_BYTES) + INT4_BYTES
        num_bytes = self.channels * (num_ranks // 8) * 2 * (18 * 4 + self.rdma_receive * token)
        return -(-num_bytes // 128) * 128


DISPATCH = {8: (6, 256, 6, 128), 32: (32, 288, 8, 128)}  # deep_ep/buffers/legacy.py, get_dispatch_config
COMBINE = {8: (4, 256, 6, 128), 32: (1, 288, 8, 128)}


class FakeDeepEp:
    """A stand-in for the module. Each normal dispatch brings `received` pairs to this rank, each of another token."""

    def __init__(self):
        self.received, self.buffers = 0, []
        module = self

        class Buffer(FakeBuffer):
            def __init__(self, *arguments, **options):
                super().__init__(module, *arguments, **options)
                module.buffers.append(self)

        self.Buffer = Buffer


class FakeBuffer:
    """A stand-in for deep_ep/buffers/legacy.py, Buffer."""

    def __init__(
        self, module, group, num_nvl_bytes=0, num_rdma_bytes=0, low_latency_mode=False, num_qps_per_rank=24,
        explicitly_destroy=False, comm=None,
    ):  # fmt: skip
        assert group is None
        self.module, self.ranks = module, comm.Get_size()
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.handles = comm.allgather(comm.Get_rank()), comm.allgather(bytearray(b"address")), comm.allgather(None)

    @staticmethod
    def get_dispatch_config(num_ranks):
        return FakeConfig(*DISPATCH[num_ranks])

    @staticmethod
    def get_combine_config(num_ranks):
        return FakeConfig(*COMBINE[num_ranks])

    @staticmethod
    def capture():
        return FakeEvent()

    @staticmethod
    def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts):
        """Return the size by csrc/legacy/config.hpp, LowLatencyLayout and get_low_latency_rdma_size_hint."""
        scales, tokens = hidden // 128, num_max_dispatch_tokens_per_rank
        dispatch_bytes = INT4_BYTES + max(hidden * 2, hidden + scales * 4)
        combine_bytes = scales * 4 + hidden * 2
        send = max(tokens * dispatch_bytes, num_experts * tokens * combine_bytes)
        receive = num_experts * tokens * max(dispatch_bytes, combine_bytes)
        signals = -(-num_experts * 4 // 128) * 128
        return ((2 * (send + receive + signals) + 128) // 128) * 128

    def get_dispatch_layout(
        self, topk_idx, num_experts, previous_event=None, async_finish=False, allocate_on_comm_stream=False
    ):
        tokens = len(topk_idx)
        sizes = [topk_idx.new_empty(size, dtype=torch.int32) for size in (self.ranks, self.ranks // 8, num_experts)]
        return *sizes, topk_idx.new_empty(tokens, self.ranks, dtype=torch.bool), FakeEvent()

    def dispatch(
        self, x, handle=None, num_tokens_per_rank=None, num_tokens_per_rdma_rank=None, is_token_in_rank=None,
        num_tokens_per_expert=None, topk_idx=None, topk_weights=None, expert_alignment=1, num_worst_tokens=0,
        config=None, previous_event=None, async_finish=False, allocate_on_comm_stream=False,
    ):  # fmt: skip
        slots, tokens = len(num_tokens_per_expert) // self.ranks, self.module.received
        pairs = [tokens // slots + (slot < tokens % slots) for slot in range(slots)]
        counts = [-(-number // expert_alignment) * expert_alignment for number in pairs]
        came = tuple(part.new_empty(tokens, part.shape[1]) for part in x)
        indices = topk_idx.new_empty(tokens, topk_idx.shape[1])
        weights = topk_weights.new_empty(tokens, topk_idx.shape[1])
        handle = topk_idx.new_empty(tokens, dtype=torch.int32), len(topk_idx)
        return came, indices, weights, counts, handle, FakeEvent()

    def combine(
        self, x, handle, topk_weights=None, bias=None, config=None, previous_event=None, async_finish=False,
        allocate_on_comm_stream=False,
    ):  # fmt: skip
        assert len(x) == len(handle[0])
        return x.new_empty(handle[1], x.shape[1]), None, FakeEvent()

    def low_latency_dispatch(
        self, x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, cumulative_local_expert_recv_stats=None,
        dispatch_wait_recv_cost_stats=None, use_fp8=True, round_scale=False, use_ue8m0=False, async_finish=False,
        return_recv_hook=False,
    ):  # fmt: skip
        slots, room, hidden = num_experts // self.ranks, self.ranks * num_max_dispatch_tokens_per_rank, x.shape[1]
        codes = x.new_empty(slots, room, hidden, dtype=E4M3)
        scales = x.new_empty(slots, num_blocks(hidden), room, dtype=torch.float32).transpose(1, 2)
        handle = x.new_empty(slots, room, dtype=torch.int32), x.new_empty(slots, self.ranks, dtype=torch.int64)
        return (codes, scales), x.new_empty(slots, dtype=torch.int32), handle, FakeEvent(), lambda: None

    def low_latency_combine(
        self, x, topk_idx, topk_weights, handle, use_logfmt=False, zero_copy=False, async_finish=False,
        return_recv_hook=False, out=None,
    ):  # fmt: skip
        return x.new_empty(len(topk_idx), x.shape[2]), FakeEvent(), lambda: None
