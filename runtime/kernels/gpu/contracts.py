"""The rules of DeepGEMM's, FlashMLA's and DeepEP's kernels for their arguments, checked before each call.

The kernels read raw memory. A wrong stride gives a wrong result or an illegal access, far from its cause. Their own
checks are in C++ and run only on a GPU. Here are the same rules for shape, dtype, stride and alignment. They also run
on fake tensors, where nothing else would notice a mistake.

    D = x W^T        x codes [R, D] e4m3, W codes [O, D] e4m3, result [R, O] BF16
    scales of x      FP32, one for 128 channels of a row, [R, D / 128]: row by row or, for sm_90, column by column,
                     where columns begin at multiples of 16 bytes, as TMA reads them
    scales of W      FP32, one for 128 x 128 values, [O / 128, D / 128], contiguous. On sm_100 DeepGEMM keeps only the
                     exponents of both kinds (UE8M0), so they must be powers of two.

These checks say nothing about the numbers that a kernel computes.

Sources, with the lines that each function names: github.com/deepseek-ai/DeepGEMM 54e22612 csrc/apis/gemm.hpp,
csrc/apis/layout.hpp, csrc/utils/layout.hpp, csrc/jit_kernels/impls/runtime_utils.hpp; github.com/deepseek-ai/FlashMLA
9241ae3e csrc/api/dense_decode.h; github.com/deepseek-ai/DeepEP dd758caf csrc/legacy/buffer.hpp; CUDA Driver API,
cuTensorMapEncodeTiled (addresses and strides in multiples of 16 bytes).
"""

import torch
from torch import Tensor

from runtime.kernels.fp8 import BLOCK, E4M3, Quantised, num_blocks

__all__ = [
    *("LL_HIDDEN_SIZES", "MAX_TOP_K", "NORMAL_SIZES", "BrokenContract", "check_combine", "check_dispatch"),
    *("check_flash_mla", "check_gemm", "check_grouped_gemm", "check_low_latency_combine"),
    *("check_low_latency_dispatch", "check_masked_gemm", "round_up_for_tma"),
]

TMA_BYTES = 16  # csrc/utils/math.hpp, get_tma_aligned_size
LATENT, LATENT_VALUE, PAGE = 576, 512, 64  # dense_decode.h: head_size_k, head_size_v, page_block_size
NORMAL_SIZES = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)  # deep_ep/buffers/legacy.py, get_dispatch_config
LL_HIDDEN_SIZES = (2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192)  # csrc/kernels/legacy/launch.cuh, SWITCH_HIDDEN
MAX_TOP_K = 11  # csrc/kernels/legacy/internode_ll.cu, kNumMaxTopK
NVLINK_PEERS = 8  # csrc/kernels/legacy/compiled.cuh


class BrokenContract(AssertionError):
    """A call whose arguments a kernel does not accept: a bug of ours."""


def check_gemm(x: Quantised, w: Quantised, out_RO: Tensor) -> None:
    """Check the arguments of `fp8_gemm_nt`.

    Source: csrc/apis/gemm.hpp, fp8_fp4_gemm_nt; csrc/utils/layout.hpp, check_ab_fp8_fp4.
    """
    kernel = "fp8_gemm_nt"
    (rows, channels), (outputs, channels_of_w) = _matrix(kernel, x.codes, 2), _matrix(kernel, w.codes, 2)
    _require(kernel, channels == channels_of_w, f"x has {channels} channels, the matrix {channels_of_w}")
    _check_result(kernel, out_RO, (rows, outputs))
    _check_row_scales(kernel, x.scales, (rows, num_blocks(channels)))
    _check_block_scales(kernel, w.scales, (num_blocks(outputs), num_blocks(channels)))
    _check_devices(kernel, x.codes, x.scales, w.codes, w.scales, out_RO)


def check_grouped_gemm(x: Quantised, w: Quantised, out_RO: Tensor, slot_of_row_R: Tensor, alignment: int) -> None:
    """Check the arguments of `m_grouped_fp8_gemm_nt_contiguous`.

    Each expert's rows begin at a multiple of `alignment` (README.md, "Grouped GEMMs (contiguous layout)"). Source:
    csrc/apis/gemm.hpp, m_grouped_fp8_fp4_gemm_nt_contiguous.
    """
    kernel = "m_grouped_fp8_gemm_nt_contiguous"
    rows, channels = _matrix(kernel, x.codes, 2)
    slots, outputs, channels_of_w = _matrix(kernel, w.codes, 3)
    _require(kernel, channels == channels_of_w, f"x has {channels} channels, the matrices {channels_of_w}")
    _require(kernel, rows % alignment == 0, f"{rows} rows are no multiple of the alignment {alignment}")
    _check_result(kernel, out_RO, (rows, outputs))
    _check_integers(kernel, slot_of_row_R, torch.int32, (rows,))
    _check_row_scales(kernel, x.scales, (rows, num_blocks(channels)))
    _check_block_scales(kernel, w.scales, (slots, num_blocks(outputs), num_blocks(channels)))
    _check_devices(kernel, x.codes, x.scales, w.codes, w.scales, out_RO, slot_of_row_R)


def check_masked_gemm(
    x: Quantised, w: Quantised, out_MZO: Tensor, counts_M: Tensor, expected_rows: int, alignment: int
) -> None:
    """Check the arguments of `m_grouped_fp8_fp4_gemm_nt_masked`. Source: csrc/apis/gemm.hpp.

    The kernel writes whole tiles of 64 or 128 rows, also beyond a slot's count (deep_gemm/include/deep_gemm/impls/
    sm90_fp8_gemm_1d2d.cuh, "Use TMA store"). Unless the room is a multiple of a tile, they overwrite the next slot's
    rows; the package does not check it.
    """
    kernel = "m_grouped_fp8_fp4_gemm_nt_masked"
    slots, room, channels = _matrix(kernel, x.codes, 3)
    slots_of_w, outputs, channels_of_w = _matrix(kernel, w.codes, 3)
    _require(kernel, channels == channels_of_w, f"x has {channels} channels, the matrices {channels_of_w}")
    _require(kernel, slots == slots_of_w, f"rows for {slots} slots, matrices of {slots_of_w}")
    _require(kernel, expected_rows > 0 and room > 0, f"room {room} and expected rows {expected_rows} must be positive")
    _require(kernel, room % alignment == 0, f"room for {room} rows in a slot is no multiple of {alignment}")
    _check_result(kernel, out_MZO, (slots, room, outputs))
    _check_integers(kernel, counts_M, torch.int32, (slots,))
    _check_row_scales(kernel, x.scales, (slots, room, num_blocks(channels)))
    _check_block_scales(kernel, w.scales, (slots, num_blocks(outputs), num_blocks(channels)))
    _check_devices(kernel, x.codes, x.scales, w.codes, w.scales, out_MZO, counts_M)


def check_flash_mla(q_BSHC: Tensor, pages_JSHC: Tensor, tables_BJ: Tensor, lengths_B: Tensor, value_size: int) -> None:
    """Check the arguments of `flash_mla_with_kvcache` for dense attention.

    Source: csrc/api/dense_decode.h, dense_attn_decode_interface.
    """
    kernel = "flash_mla_with_kvcache"
    _require(kernel, q_BSHC.dim() == pages_JSHC.dim() == 4, "queries and pages have four dimensions")
    batch, _, _, channels = q_BSHC.shape
    _require(kernel, batch > 0, "there must be a request")
    _require(kernel, q_BSHC.dtype == pages_JSHC.dtype == torch.bfloat16, "queries and pages must be BF16")
    _require(kernel, channels == pages_JSHC.shape[3] == LATENT, f"latents have {channels} channels, not {LATENT}")
    _require(kernel, value_size == LATENT_VALUE, f"values have {value_size} channels, not {LATENT_VALUE}")
    _require(kernel, pages_JSHC.shape[1] == PAGE, f"pages have {pages_JSHC.shape[1]} tokens, not {PAGE}")
    _require(kernel, pages_JSHC.shape[2] == 1, "latents have one head")
    _require(kernel, q_BSHC.stride(3) == pages_JSHC.stride(3) == 1, "the last dimension must be contiguous")
    _require(kernel, tables_BJ.dtype == torch.int32, f"tables are {tables_BJ.dtype}, not int32")
    _require(kernel, tables_BJ.dim() == 2 and tables_BJ.shape[0] == batch, "tables are not one for each request")
    _require(kernel, tables_BJ.stride(1) == 1, "a table must be contiguous")
    _check_integers(kernel, lengths_B, torch.int32, (batch,))
    _check_devices(kernel, q_BSHC, pages_JSHC, tables_BJ, lengths_B)


def check_dispatch(x: Tensor | Quantised, slots_TK: Tensor, weights_TK: Tensor, num_ranks: int, num_slots: int) -> None:
    """Check the arguments of `Buffer.dispatch`.

    Source: csrc/legacy/buffer.hpp, intranode_dispatch and internode_dispatch.
    """
    kernel = "Buffer.dispatch"
    codes, scales = (x.codes, x.scales) if isinstance(x, Quantised) else (x, None)
    _require(kernel, num_ranks in NORMAL_SIZES, f"no configuration for {num_ranks} ranks")
    _require(kernel, codes.dim() == 2 and codes.is_contiguous(), "rows must be a contiguous matrix")
    row_bytes = codes.shape[1] * codes.element_size()
    _require(kernel, row_bytes % TMA_BYTES == 0, f"rows of {row_bytes} bytes are no multiple of {TMA_BYTES}")
    if scales is None:
        _require(kernel, codes.dtype == torch.bfloat16, f"rows are {codes.dtype}, not BF16 or e4m3 with scales")
    else:
        _require(kernel, codes.dtype == E4M3, f"codes are {codes.dtype}, not e4m3")
        _require(kernel, codes.shape[1] % BLOCK == 0, f"{codes.shape[1]} channels are no multiple of {BLOCK}")
        _require(kernel, scales.dtype == torch.float32, f"scales are {scales.dtype}, not FP32")
        expected = (len(codes), codes.shape[1] // BLOCK)
        _require(kernel, tuple(scales.shape) == expected, f"scales are {list(scales.shape)}, not {list(expected)}")
    _check_choices(kernel, slots_TK, weights_TK, len(codes), num_ranks, num_slots)


def check_combine(rows_RD: Tensor) -> None:
    """Check the arguments of `Buffer.combine`.

    Source: csrc/legacy/buffer.hpp, intranode_combine and internode_combine.
    """
    kernel = "Buffer.combine"
    _require(kernel, rows_RD.dim() == 2 and rows_RD.is_contiguous(), "rows must be a contiguous matrix")
    _require(kernel, rows_RD.dtype == torch.bfloat16, f"rows are {rows_RD.dtype}, not BF16")


def check_low_latency_dispatch(
    x_TD: Tensor, slots_TK: Tensor, weights_TK: Tensor, num_ranks: int, num_slots: int, capacity: int
) -> None:
    """Check the arguments of `Buffer.low_latency_dispatch`. Source: csrc/legacy/buffer.hpp."""
    kernel = "Buffer.low_latency_dispatch"
    _require(kernel, x_TD.dim() == 2 and x_TD.is_contiguous(), "rows must be a contiguous matrix")
    _require(kernel, x_TD.dtype == torch.bfloat16, f"rows are {x_TD.dtype}, not BF16")
    _require(kernel, x_TD.shape[1] in LL_HIDDEN_SIZES, f"no kernel for {x_TD.shape[1]} channels")
    _require(kernel, x_TD.shape[1] % (4 * BLOCK) == 0, f"FP8 needs a multiple of {4 * BLOCK} channels")
    _require(kernel, len(x_TD) <= capacity, f"{len(x_TD)} tokens are more than the capacity {capacity}")
    _require(kernel, num_ranks * capacity % 4 == 0, f"{num_ranks} x {capacity} rows are no multiple of 4")
    _require(kernel, slots_TK.shape[1] <= MAX_TOP_K, f"{slots_TK.shape[1]} choices are more than {MAX_TOP_K}")
    _check_choices(kernel, slots_TK, weights_TK, len(x_TD), num_ranks, num_slots)


def check_low_latency_combine(rows_MZD: Tensor, num_ranks: int, num_slots: int, capacity: int) -> None:
    """Check the arguments of `Buffer.low_latency_combine`. Source: csrc/legacy/buffer.hpp."""
    kernel = "Buffer.low_latency_combine"
    expected = (num_slots // num_ranks, num_ranks * capacity)
    _require(kernel, rows_MZD.dim() == 3 and rows_MZD.is_contiguous(), "rows must be contiguous")
    _require(kernel, rows_MZD.dtype == torch.bfloat16, f"rows are {rows_MZD.dtype}, not BF16")
    _require(kernel, tuple(rows_MZD.shape[:2]) == expected, f"rows are {list(rows_MZD.shape)}, not of {list(expected)}")


def round_up_for_tma(rows: int, element_bytes: int) -> int:
    """Return `rows` rounded up, so that a column of that many elements is a multiple of 16 bytes long."""
    step = TMA_BYTES // element_bytes
    return -(-rows // step) * step


def _matrix(kernel: str, codes: Tensor, dimensions: int) -> torch.Size:
    """Return the codes' shape, after checking that TMA can read their rows.

    Source: csrc/utils/layout.hpp, major_check and check_ab_fp8_fp4.
    """
    _require(kernel, codes.dim() == dimensions, f"codes are {list(codes.shape)}, not of {dimensions} dimensions")
    _require(kernel, codes.dtype == E4M3, f"codes are {codes.dtype}, not e4m3")
    _require(kernel, codes.shape[-1] % BLOCK == 0, f"{codes.shape[-1]} channels are no multiple of {BLOCK}")
    _require(kernel, codes.stride(-1) == 1, "the channels of a row must be contiguous")
    _require(kernel, codes.stride(-2) % TMA_BYTES == 0, f"rows {codes.stride(-2)} bytes apart are not aligned")
    _require(kernel, codes.storage_offset() % TMA_BYTES == 0, "the first row is not aligned")
    if dimensions == 3:
        whole = codes.shape[1] * codes.shape[2]
        _require(kernel, codes.stride(0) == whole, f"slots are {codes.stride(0)} codes apart, not {whole}")
    return codes.shape


def _check_result(kernel: str, out: Tensor, shape: tuple[int, ...]) -> None:
    """Check the tensor `out` into which TMA stores a result of `shape`.

    Source: csrc/utils/layout.hpp, check_major_type_cd.
    """
    _require(kernel, tuple(out.shape) == shape, f"the result is {list(out.shape)}, not {list(shape)}")
    _require(kernel, out.dtype == torch.bfloat16, f"the result is {out.dtype}, not BF16")
    _require(kernel, out.is_contiguous(), "the result must be contiguous")
    _require(
        kernel, shape[-1] * 2 % TMA_BYTES == 0, f"{shape[-1]} outputs in BF16 are no multiple of {TMA_BYTES} bytes"
    )


def _check_row_scales(kernel: str, scales: Tensor, shape: tuple[int, ...]) -> None:
    """Require FP32 row scales of `shape`, row-major, or column-major with columns aligned for TMA.

    Other strides would cost a slow copy.

    Source: csrc/apis/layout.hpp, transform_sf_into_required_layout, with (1, 128).
    """
    _require(kernel, scales.dtype == torch.float32, f"the rows' scales are {scales.dtype}, not FP32")
    _require(kernel, tuple(scales.shape) == shape, f"the rows' scales are {list(scales.shape)}, not {list(shape)}")
    column = round_up_for_tma(shape[-2], 4)
    by_columns = scales.stride(-1) == column and (scales.stride(-2) == 1 or shape[-2] <= 1)
    if len(shape) == 3:
        by_columns = by_columns and scales.stride(0) == column * shape[-1]
    _require(
        kernel, by_columns or scales.is_contiguous(), "the rows' scales are neither by rows nor by aligned columns"
    )


def _check_block_scales(kernel: str, scales: Tensor, shape: tuple[int, ...]) -> None:
    """Require block scales of `shape` as DeepGEMM does: csrc/utils/layout.hpp, check_sf_layout with sm90_sfb_check."""
    _require(kernel, scales.dtype == torch.float32, f"the matrix's scales are {scales.dtype}, not FP32")
    _require(kernel, tuple(scales.shape) == shape, f"the matrix's scales are {list(scales.shape)}, not {list(shape)}")
    _require(kernel, scales.is_contiguous(), "the matrix's scales must be contiguous")


def _check_choices(
    kernel: str, slots_TK: Tensor, weights_TK: Tensor, num_tokens: int, num_ranks: int, num_slots: int
) -> None:
    _check_integers(kernel, slots_TK, torch.int64, (num_tokens, slots_TK.shape[-1]))
    _check_integers(kernel, weights_TK, torch.float32, tuple(slots_TK.shape))
    _require(kernel, num_slots % num_ranks == 0, f"{num_slots} slots are not shared equally by {num_ranks} ranks")
    whole_nodes = num_ranks < NVLINK_PEERS or num_ranks % NVLINK_PEERS == 0  # buffer.hpp, the constructor
    _require(kernel, whole_nodes, f"{num_ranks} ranks are no multiple of {NVLINK_PEERS}")


def _check_integers(kernel: str, values: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    _require(kernel, values.dtype == dtype, f"an argument is {values.dtype}, not {dtype}")
    _require(kernel, tuple(values.shape) == shape, f"an argument is {list(values.shape)}, not {list(shape)}")
    _require(kernel, values.is_contiguous(), "an argument is not contiguous")


def _check_devices(kernel: str, *tensors: Tensor) -> None:
    devices = {tensor.device for tensor in tensors}
    _require(kernel, len(devices) == 1, f"arguments lie on {', '.join(map(str, devices))}")


def _require(kernel: str, holds: bool | torch.SymBool, sentence: str) -> None:
    if not holds:
        raise BrokenContract(f"{kernel}: {sentence}")
