"""FP8 as DeepSeek computes with it: matrices, and the rows that they multiply, in e4m3 with a scale for each block.

    code            an e4m3 number (`torch.float8_e4m3fn`): sign, 4 exponent bits, 3 mantissa bits, largest 448
    scale           the FP32 factor of a code: max(largest magnitude of the block, 1e-4) / 448
    weight block    128 x 128 values of a matrix; the checkpoint calls its scale `weight_scale_inv`
    group           128 neighbouring values of a row that enters a matmul; they share a scale, made when the row is
                    quantised

A matmul adds the products of codes in FP32 over each block of 128 channels k, scales that sum, and adds the blocks up:

    y[r, n] = sum over k of  (codes_x[r, k] . codes_w[n, k]) * scale_x[r, k] * scale_w[n // 128, k]

The last block of a dimension is smaller where 128 does not divide it. A row crosses between ranks as its codes and then
its scales: 7,168 channels are 7,168 + 4 x 56 = 7,392 bytes.

DeepSeek-V3.1 was trained with the scales of groups rounded up to a power of two; its config says so with `scale_fmt:
ue8m0`. The scales of its weights are powers of two too, in the file or when they are made here.

There is no FP8 kernel here. Codes are widened to FP32, whose matmul adds exactly these products, so a CPU has the same
numerics, slowly. A table of operations (`ops.py`) may have a faster kernel.

Source: DeepSeek-V3 `inference/kernel.py`, act_quant, weight_dequant and fp8_gemm; README_WEIGHTS.md, "FP8 Weight
Documentation"; DeepSeek-V3 (arXiv 2412.19437) section 3.3.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    *("BLOCK", "E4M3", "ExpertCodes", "Quantised", "dequantise_matrix", "matmul", "num_blocks", "pack"),
    *("quantise_matrix", "quantise_rows", "unpack"),
]

E4M3 = torch.float8_e4m3fn
BLOCK = 128
LARGEST = 448.0
MIN_MAGNITUDE = 1e-4  # a block of zeros needs a scale too


@dataclass(frozen=True)
class Quantised:
    """An FP8 tensor: `codes` [R, D] and FP32 `scales`.

    Rows have a scale for each group of channels, [R, ceil(D / 128)]. A matrix has a scale for each block, [ceil(R /
    128), ceil(D / 128)].
    """

    codes: Tensor
    scales: Tensor


@dataclass(frozen=True)
class ExpertCodes:
    """The experts of M slots: gate and up [M, 2, I, D], each with its own blocks, and down [M, D, I]."""

    gate_up: Quantised
    down: Quantised
    power_of_two: bool  # whether their rows are scaled by powers of two


def num_blocks(size: int) -> int:
    """Return the number of blocks in a dimension of `size`. The last block may be smaller."""
    return -(-size // BLOCK)


def quantise_rows(x_RD: Tensor, power_of_two: bool = False) -> Quantised:
    """Return the rows with each group of channels quantised. A row's codes and scales do not depend on other rows.

    With `power_of_two`, scales are rounded up to powers of two.
    """
    groups_RFX = F.pad(x_RD.float(), (0, -x_RD.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    scales_RF = _scales(groups_RFX.abs().amax(-1))
    if power_of_two:
        scales_RF = _round_up(scales_RF)
    codes = (groups_RFX / scales_RF[..., None]).to(E4M3)
    return Quantised(codes.flatten(1)[:, : x_RD.shape[1]].contiguous(), scales_RF)


def quantise_matrix(w_OD: Tensor, power_of_two: bool = False) -> Quantised:
    """Return a matrix quantised in weight blocks, as DeepSeek's checkpoints hold it.

    With `power_of_two`, scales are rounded up to powers of two.
    """
    rows, columns = w_OD.shape
    padded = F.pad(w_OD.float(), (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
    scales = _scales(blocks.abs().amax((1, 3)))
    if power_of_two:
        scales = _round_up(scales)
    codes = (blocks / scales[:, None, :, None]).to(E4M3).flatten(2).flatten(0, 1)
    return Quantised(codes[:rows, :columns].contiguous(), scales)


def dequantise_matrix(w: Quantised) -> Tensor:
    """Return [O, D] in FP32: each code times its block's scale."""
    rows, columns = w.codes.shape
    return w.codes.float() * _scales_by_row(w.scales, rows).repeat_interleave(BLOCK, 1)[:, :columns]


def matmul(x: Quantised, w: Quantised) -> Tensor:
    """Return x W^T, [R, O] in FP32, block of channels by block of channels."""
    scales_OF = _scales_by_row(w.scales, len(w.codes))
    total_RO = x.codes.new_zeros((len(x.codes), len(w.codes)), dtype=torch.float32)
    blocks = zip(x.codes.float().split(BLOCK, 1), w.codes.split(BLOCK, 1), strict=True)
    for group, (x_RX, w_OX) in enumerate(blocks):
        products_RO = x_RX @ w_OX.float().T
        total_RO += products_RO.mul_(x.scales[:, group, None]).mul_(scales_OF[:, group])
    return total_RO


def pack(x: Quantised) -> Tensor:
    """Return rows in the form in which they cross between ranks: [R, D + 4 ceil(D / 128)] bytes."""
    scales = x.scales.clone(memory_format=torch.contiguous_format)  # otherwise a single group's stride may be 0
    return torch.cat((x.codes.view(torch.uint8), scales.view(torch.uint8)), 1)


def unpack(rows: Tensor, size: int) -> Quantised:
    """Return the codes and scales of packed rows [R, X] or [M, Z, X]. `size` is D. The codes are not copied."""
    scales = rows[..., size:].clone(memory_format=torch.contiguous_format)  # in a row, FP32 may begin at any byte
    return Quantised(rows[..., :size].view(E4M3), scales.view(torch.float32))


def _scales_by_row(scales: Tensor, num_rows: int) -> Tensor:
    """Return a matrix's scales [O / 128, D / 128], repeated for each of its rows: [O, D / 128]."""
    return scales.repeat_interleave(BLOCK, 0)[:num_rows]


def _scales(magnitudes: Tensor) -> Tensor:
    return magnitudes.clamp(min=MIN_MAGNITUDE) / LARGEST


def _round_up(scales: Tensor) -> Tensor:
    """Return scales rounded up to powers of two, in their shape.

    The rounding is exact: scale = mantissa 2^exponent with 1/2 <= mantissa < 1.
    """
    mantissas, exponents = torch.frexp(scales)
    return torch.ldexp(torch.ones_like(scales), exponents - (mantissas == 0.5).int())
