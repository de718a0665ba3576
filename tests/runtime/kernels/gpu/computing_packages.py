"""DeepGEMM and FlashMLA as their documentation describes them, in FP32 on a CPU: slow references for our calls.

They read no row that the kernels leave out, and write NaN where the kernels write nothing.

Sources: github.com/deepseek-ai/DeepGEMM 54e22612 README.md and tests/generators.py (generate_m_grouped_contiguous,
generate_m_grouped_masked); FlashMLA 9241ae3e tests/test_flash_mla_dense_decoding.py, reference_torch.
"""

import torch

from runtime.kernels.fp8 import Quantised, matmul

__all__ = ["ComputingDeepGemm", "ComputingFlashMla"]


class ComputingDeepGemm:
    """Matmuls of codes. `alignment` replaces the package's 128 rows, so that tests may be small."""

    def __init__(self, alignment):
        self.alignment = alignment

    def get_mk_alignment_for_contiguous_layout(self):
        return self.alignment

    def fp8_gemm_nt(self, a, b, d):
        d.copy_(matmul(Quantised(*a), Quantised(*b)))

    def m_grouped_fp8_gemm_nt_contiguous(self, a, b, d, grouped_layout):
        """Multiply the rows of each tile, which must belong to one expert."""
        for tile in grouped_layout.split(self.alignment):
            assert len(set(tile.tolist())) <= 1
        d.fill_(torch.nan)
        for group, w in enumerate(zip(*b, strict=True)):
            rows = grouped_layout == group
            d[rows] = matmul(Quantised(a[0][rows], a[1][rows]), Quantised(*w)).to(d.dtype)

    def m_grouped_fp8_fp4_gemm_nt_masked(self, a, b, d, masked_m, expected_m):
        """Write whole tiles, as the kernel does: what is behind a slot's rows may be the next slot's."""
        assert expected_m > 0
        rows = d.fill_(torch.nan).flatten(0, 1)
        for group, count in enumerate(masked_m.tolist()):
            x, first = Quantised(a[0][group, :count], a[1][group, :count]), group * d.shape[1]
            rows[first : first + -(-count // self.alignment) * self.alignment] = torch.nan
            rows[first : first + count] = matmul(x, Quantised(b[0][group], b[1][group])).to(d.dtype)


class ComputingFlashMla:
    """Dense decoding, which ignores pages beyond a request's length."""

    def get_mla_metadata(self):
        return object(), None

    def flash_mla_with_kvcache(
        self, q, k_cache, block_table, cache_seqlens, head_dim_v, schedule, softmax_scale, causal, use_legacy
    ):
        assert use_legacy
        assert not causal
        out = torch.empty(*q.shape[:3], head_dim_v, dtype=q.dtype)
        for request, length in enumerate(cache_seqlens.tolist()):
            pages = block_table[request, : -(-length // k_cache.shape[1])].long()
            latents = k_cache[pages].flatten(0, 2)[:length].float()
            scores = q[request, 0].float() @ latents.T * softmax_scale
            out[request, 0] = (scores.softmax(-1) @ latents[:, :head_dim_v]).to(q.dtype)
        return out, None
