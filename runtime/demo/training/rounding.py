"""FP8 as training sees it: weights and activations rounded to e4m3 on the way forward, not on the way back.

Why it exists: DeepSeek-V3 was trained in FP8, so that its weights bear what FP8 inference does to them. Ours learn it
too: what `runtime/kernels/fp8.py` rounds (blocks of 128 x 128 weights, groups of 1 x 128 activations) is rounded here.
It multiplies nothing in FP8: a rounded tensor is an ordinary one, whose values e4m3 can hold.

A weight block's scale has 4 significant bits and its largest code is 448. A weight is then code (4 bits) x scale
(4 bits), which bfloat16 (8 bits) holds exactly, and who computes codes and scales from the stored weights finds
the same ones: the model is published on e4m3's grid, as DeepSeek's is.
The gradient passes as if nothing had been rounded (straight-through; Bengio, Léonard and Courville 2013).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from runtime.kernels.fp8 import BLOCK, E4M3, quantise_rows

__all__ = ["EXACT", "FP8", "Rounding", "round_to_block_fp8"]

LARGEST = 448.0  # of e4m3's numbers
ROUNDS_TO_LARGEST = 432.0  # and more: half-way from 416
MIN_SCALE = 2.0**-40  # a block of zeros needs a scale too


@dataclass(frozen=True)
class Rounding:
    """How the rows and the matrix of a product are rounded before the product is computed."""

    rows: Callable[[torch.Tensor], torch.Tensor]
    matrix: Callable[[torch.Tensor], torch.Tensor]


class StraightThrough(torch.autograd.Function):
    """Computes `rounded(x)`, with the gradient of x."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor, rounded: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return rounded(x).to(x.dtype)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def round_to_row_fp8(x: torch.Tensor) -> torch.Tensor:
    """Return `x` [..., channels] rounded to values that FP8 with group scales can hold, in FP32."""
    rows = quantise_rows(x.reshape(-1, x.shape[-1]))
    scales = rows.scales.repeat_interleave(BLOCK, 1)[:, : x.shape[-1]]
    return (rows.codes.float() * scales).view(x.shape)


def round_to_block_fp8(w: torch.Tensor) -> torch.Tensor:
    """Return `w` [..., rows, columns] rounded to values that block-scaled FP8 can hold, in FP32."""
    rows, columns = w.shape[-2:]
    blocks = pad(w, (0, -columns % BLOCK, 0, -rows % BLOCK)).unflatten(-1, (-1, BLOCK)).unflatten(-3, (-1, BLOCK))
    scales = round_scales_down(blocks.abs().amax((-3, -1), keepdim=True) / ROUNDS_TO_LARGEST).clamp(min=MIN_SCALE)
    codes = (blocks / scales).clamp(-LARGEST, LARGEST).to(E4M3).float()
    return (codes * scales).flatten(-2).flatten(-3, -2)[..., :rows, :columns]


def round_scales_down(x: torch.Tensor) -> torch.Tensor:
    """Return `x`, the scales of blocks, rounded down to 4 significant bits.

    Four bits, because bfloat16 then holds code x scale exactly (see above). Rounded up, a scale might give the block's
    largest value a code below 448, the largest of e4m3.
    """
    mantissas, exponents = torch.frexp(x)
    return torch.ldexp((mantissas * 16).floor() / 16, exponents)


EXACT = Rounding(rows=lambda x: x, matrix=lambda w: w)
FP8 = Rounding(
    rows=lambda x: StraightThrough.apply(x, round_to_row_fp8),
    matrix=lambda w: StraightThrough.apply(w, round_to_block_fp8),
)
