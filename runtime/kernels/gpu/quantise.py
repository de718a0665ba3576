"""Quantises rows to FP8 for DeepGEMM, by Triton kernels that make no copy in FP32.

The numbers are those of `fp8.py`: a group of 128 channels is divided by max(largest magnitude, 1e-4) / 448, which may
be rounded up to a power of two. Triton comes with torch, and compiles for the GPU that it finds.

    rows           codes of x
    gated_rows     codes of silu(gate) x up, where gate and up lie side by side. silu and the product are rounded to
                   BF16, as in the reference
    by_columns     all rows' scales of one group lie together, and begin at a multiple of 16 bytes. DeepGEMM reads this
                   on sm_90 without transposing

Tests run the kernels in Triton's interpreter and compile them for sm_90 and sm_100; `tests/gpu` runs them on a GPU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from runtime.kernels.fp8 import BLOCK, E4M3, LARGEST, MIN_MAGNITUDE, Quantised, num_blocks
from runtime.kernels.gpu.contracts import round_up_for_tma

__all__ = ["empty_scales", "gated_rows", "quantise_groups", "rows"]

GROUPS = 8  # groups of a row in one program: 1,024 channels, 8 for each of the 128 threads of four warps


def rows(x_RD: Tensor, power_of_two: bool, by_columns: bool) -> Quantised:
    """Return rows [R, D] as codes and scales. D is a multiple of 128.

    The scales lie in memory column by column if `by_columns`, else row by row.
    """
    x_RD = x_RD.contiguous()
    return _launch(x_RD, x_RD.shape[-1], power_of_two, by_columns, None, is_gated=False)


def gated_rows(gate_up: Tensor, power_of_two: bool, by_columns: bool, counts_M: Tensor | None = None) -> Quantised:
    """Quantise silu(gate) x up of [R, 2 I], or of the first `counts_M` of each slot's rows [M, Z, 2 I]."""
    return _launch(gate_up, gate_up.shape[-1] // 2, power_of_two, by_columns, counts_M, is_gated=True)


def empty_scales(shape: tuple[int, ...], groups: int, by_columns: bool, device: torch.device) -> Tensor:
    """Return uninitialised scales [*shape, groups], which lie in memory row by row or `by_columns`."""
    if not by_columns:
        return torch.empty(*shape, groups, device=device)
    column = round_up_for_tma(shape[-1], torch.float32.itemsize)
    strides = (*(column * groups for _ in shape[:-1]), 1, column)
    return torch.empty_strided((*shape, groups), strides, device=device)


def _launch(
    x: Tensor, size: int, power_of_two: bool, by_columns: bool, counts_M: Tensor | None, is_gated: bool
) -> Quantised:
    assert x.is_contiguous()
    assert size % BLOCK == 0
    codes = torch.empty(*x.shape[:-1], size, dtype=E4M3, device=x.device)
    scales = empty_scales(tuple(x.shape[:-1]), num_blocks(size), by_columns, x.device)
    num_rows = x.numel() // x.shape[-1]
    if num_rows:
        room = x.shape[-2]
        slot_stride = scales.stride(0) if scales.dim() == 3 else 0
        quantise_groups[(num_rows, -(-num_blocks(size) // GROUPS))](
            *(x, codes, scales, x if counts_M is None else counts_M, room, size, slot_stride),
            *(scales.stride(-2), scales.stride(-1)),
            IS_MASKED=counts_M is not None,
            IS_GATED=is_gated,
            POWER_OF_TWO=power_of_two,
            GROUPS=GROUPS,
            BLOCK=BLOCK,
            LARGEST=LARGEST,
            MIN_MAGNITUDE=MIN_MAGNITUDE,
        )
    return Quantised(codes, scales)


@triton.jit
def quantise_groups(
    x,
    codes,
    scales,
    counts,
    room,
    size,
    slot_stride,
    row_stride,
    group_stride,
    IS_MASKED: tl.constexpr,
    IS_GATED: tl.constexpr,
    POWER_OF_TWO: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    LARGEST: tl.constexpr,
    MIN_MAGNITUDE: tl.constexpr,
):
    """Quantise GROUPS blocks of BLOCK channels of one row to FP8, into `codes` and `scales`.

    If IS_GATED, a row of `x` is gate and up, and silu(gate) * up is quantised. Each slot has `room` rows.
    If IS_MASKED, rows beyond the slot's count are left alone.
    """
    row = tl.program_id(0).to(tl.int64)
    slot, place = row // room, row % room
    if IS_MASKED:  # noqa: SIM102 - decided when it is compiled
        if place >= tl.load(counts + slot):
            return
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    channel = group[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    is_inside = channel < size
    if IS_GATED:
        gate = tl.load(x + row * 2 * size + channel, is_inside, 0.0).to(tl.float32)
        up = tl.load(x + row * 2 * size + size + channel, is_inside, 0.0).to(tl.float32)
        activated = (gate / (1.0 + tl.exp(-gate))).to(tl.bfloat16).to(tl.float32)
        value = (activated * up).to(tl.bfloat16).to(tl.float32)
    else:
        value = tl.load(x + row * size + channel, is_inside, 0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), 1), MIN_MAGNITUDE) / LARGEST
    if POWER_OF_TWO:
        bits = scale.to(tl.uint32, bitcast=True)
        bits = ((bits + 0x7FFFFF) >> 23) << 23  # a mantissa above 0 raises the exponent
        scale = bits.to(tl.float32, bitcast=True)
    code = (value / scale[:, None]).to(tl.float8e4nv)
    tl.store(codes + row * size + channel, code, is_inside)
    place_of_scale = slot * slot_stride + place * row_stride + group * group_stride
    tl.store(scales + place_of_scale, scale, group * BLOCK < size)
