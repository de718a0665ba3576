"""FP8 as DeepSeek computes with it: matrices and what they multiply in e4m3, with a scale for each block.

    code            an e4m3 number (`torch.float8_e4m3fn`): sign, 4 exponent bits, 3 mantissa bits, largest 448
    scale           what a code is multiplied by, FP32: max(largest magnitude of the block, 1e-4) / 448
    weight block    128 x 128 values of a matrix; the checkpoint calls its scale `weight_scale_inv`
    group           128 neighbouring values of one row that enters a matmul, scaled when they are computed

A matmul adds the products of codes in FP32 over each block of 128 channels k, scales that sum, and adds the blocks up:

    y[r, n] = sum over k of  (codes_x[r, k] . codes_w[n, k]) * scale_x[r, k] * scale_w[n // 128, k]

The last block of a dimension is smaller where 128 does not divide it. A row crosses between ranks as its codes and then
its scales: 7,168 channels are 7,168 + 4 x 56 = 7,392 bytes.

DeepSeek-V3.1 was trained with the scales of groups rounded up to a power of two, and its config says so
(`scale_fmt: ue8m0`); those of weights are then powers of two too, in the file or where they are made.

Which matrices are in FP8 is their owners' choice. There is no FP8 kernel here: codes are widened to FP32, whose matmul
adds exactly these products, so that a CPU computes the same numerics, slowly.

Source: DeepSeek-V3 `inference/kernel.py`, act_quant, weight_dequant and fp8_gemm; README_WEIGHTS.md, "FP8 Weight
Documentation"; DeepSeek-V3 (arXiv 2412.19437) section 3.3.
"""

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runtime.expert_parallel.dispatcher import ContiguousRows, ExpertRows
from runtime.kernels.backend import Backend
from runtime.model.config import ModelConfig

__all__ = [
    *("BLOCK", "E4M3", "Fp8Experts", "Fp8Linear", "Fp8Rows", "Quantised", "dequantise_matrix", "matmul", "num_blocks"),
    *("pack", "quantise_matrix", "quantise_rows", "round_scales_up", "unpack"),
]

E4M3 = torch.float8_e4m3fn
BLOCK = 128
LARGEST = 448.0
MIN_MAGNITUDE = 1e-4  # a block of zeros needs a scale too


@dataclass(frozen=True)
class Quantised:
    """`codes` [R, D]; `scales` of groups [R, ceil(D / 128)], or of a matrix's blocks [ceil(R / 128), ceil(D / 128)]."""

    codes: Tensor
    scales: Tensor


def num_blocks(size: int) -> int:
    """Blocks in a dimension of `size`; the last may be smaller."""
    return -(-size // BLOCK)


def quantise_rows(x_RD: Tensor, power_of_two: bool = False) -> Quantised:
    """Each row's groups, by itself: a row's codes and scales do not depend on other rows."""
    groups_RFX = F.pad(x_RD.float(), (0, -x_RD.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    scales_RF = _scales(groups_RFX.abs().amax(-1))
    if power_of_two:
        scales_RF = _rounded_up(scales_RF)
    codes = (groups_RFX / scales_RF[..., None]).to(E4M3)
    return Quantised(codes.flatten(1)[:, : x_RD.shape[1]].contiguous(), scales_RF)


def quantise_matrix(w_OD: Tensor, power_of_two: bool = False) -> Quantised:
    """A matrix in weight blocks, as DeepSeek's checkpoints hold it."""
    rows, columns = w_OD.shape
    padded = F.pad(w_OD.float(), (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
    scales = _scales(blocks.abs().amax((1, 3)))
    if power_of_two:
        scales = _rounded_up(scales)
    codes = (blocks / scales[:, None, :, None]).to(E4M3).flatten(2).flatten(0, 1)
    return Quantised(codes[:rows, :columns].contiguous(), scales)


def dequantise_matrix(w: Quantised) -> Tensor:
    """[O, D] in FP32: each code times its block's scale."""
    rows, columns = w.codes.shape
    return w.codes.float() * _by_row(w.scales, rows).repeat_interleave(BLOCK, 1)[:, :columns]


def matmul(x: Quantised, codes_OD: Tensor, scales_OF: Tensor) -> Tensor:
    """x W^T, [R, O] in FP32, block of channels by block of channels; `scales_OF` are the weight's, one row each."""
    total_RO = x.codes.new_zeros((len(x.codes), len(codes_OD)), dtype=torch.float32)
    blocks = zip(x.codes.float().split(BLOCK, 1), codes_OD.split(BLOCK, 1), strict=True)
    for group, (x_RX, w_OX) in enumerate(blocks):
        products_RO = x_RX @ w_OX.float().T
        total_RO += products_RO.mul_(x.scales[:, group, None]).mul_(scales_OF[:, group])
    return total_RO


class Fp8Rows:
    """Rows for dispatch: quantised before they travel, so that they are half as long; unpacked by the experts."""

    def __init__(self, power_of_two: bool) -> None:
        self.power_of_two = power_of_two

    def encode(self, x_TD: Tensor) -> Tensor:
        """[T, D + 4 ceil(D / 128)] bytes."""
        return pack(quantise_rows(x_TD, self.power_of_two))

    def decode(self, bytes_RX: Tensor) -> Tensor:
        """As they are: `Fp8Experts` takes packed rows."""
        return bytes_RX


def pack(x: Quantised) -> Tensor:
    """Rows as they cross between ranks: [R, D + 4 ceil(D / 128)] bytes."""
    scales = x.scales.clone(memory_format=torch.contiguous_format)  # no rows of one group have a stride of 0
    return torch.cat((x.codes.view(torch.uint8), scales.view(torch.uint8)), 1)


def unpack(rows: Tensor, size: int) -> Quantised:
    """What `pack` packed; `size` is D."""
    scales = rows[:, size:].clone(memory_format=torch.contiguous_format)  # FP32 begins at any byte of a row
    return Quantised(rows[:, :size].view(E4M3), scales.view(torch.float32))


class Fp8Linear(nn.Module):
    """A bias-free projection of rows that it quantises. Parameters are named as published."""

    power_of_two = False  # see `round_scales_up`

    def __init__(self, in_features: int, out_features: int, device: torch.device) -> None:
        super().__init__()
        self.weight = _codes(device, out_features, in_features)
        self.weight_scale_inv = _scale_parameter(device, num_blocks(out_features), num_blocks(in_features))

    def forward(self, x_RD: Tensor) -> Tensor:
        """[R, in] -> [R, out], of x's type."""
        scales = _by_row(self.weight_scale_inv, len(self.weight))
        return matmul(quantise_rows(x_RD, self.power_of_two), self.weight, scales).to(x_RD.dtype)


class Fp8Experts(nn.Module):
    """The experts in this rank's slots: gate and up [slots, 2, I, D], down [slots, D, I], and their scales.

    Gate and up are matrices of their own, whose blocks do not run on from one to the other.
    """

    def __init__(self, num_slots: int, config: ModelConfig, backend: Backend) -> None:
        super().__init__()
        self.batching, device = backend.batching, backend.device
        self.hidden, self.power_of_two = config.hidden_size, config.power_of_two_scales
        hidden, intermediate = config.hidden_size, config.moe_intermediate_size
        self.gate_up = _codes(device, num_slots, 2, intermediate, hidden)
        self.gate_up_scales = _scale_parameter(device, num_slots, 2, num_blocks(intermediate), num_blocks(hidden))
        self.down = _codes(device, num_slots, hidden, intermediate)
        self.down_scales = _scale_parameter(device, num_slots, num_blocks(hidden), num_blocks(intermediate))

    def forward(self, rows: ExpertRows) -> Tensor:
        """Compute packed rows of each slot: [R, D] or, of masked rows, [M, Z, D], in BF16.

        Of masked rows, all of a slot are computed: nobody waits for the counts.
        """
        if isinstance(rows, ContiguousRows):
            packed = enumerate(rows.rows_RD.split(rows.counts_M.tolist()))
            nothing = torch.empty(0, self.hidden, dtype=torch.bfloat16, device=rows.rows_RD.device)
            return torch.cat([nothing, *(self._rows_of(slot, part_RX) for slot, part_RX in packed if len(part_RX))])
        return torch.stack([self._rows_of(slot, part_ZX) for slot, part_ZX in enumerate(rows.rows_MZD)])

    def _rows_of(self, slot: int, packed_RX: Tensor) -> Tensor:
        return self.batching.rows(partial(self.expert, slot), packed_RX)

    def expert(self, slot: int, packed_RX: Tensor) -> Tensor:
        """Packed rows -> [R, D] by the expert in local slot `slot`."""
        x, intermediate = unpack(packed_RX, self.hidden), self.gate_up.shape[2]
        gate, up = (
            matmul(x, codes, _by_row(scales, intermediate)).bfloat16()
            for codes, scales in zip(self.gate_up[slot], self.gate_up_scales[slot], strict=True)
        )
        hidden = quantise_rows(F.silu(gate) * up, self.power_of_two)
        return matmul(hidden, self.down[slot], _by_row(self.down_scales[slot], self.hidden)).bfloat16()

    def first_expert(self, x_TD: Tensor) -> Tensor:
        """What the expert in slot 0 makes of rows that did not travel: what `check_machine` asks about. [T, D]."""
        return self.expert(0, pack(quantise_rows(x_TD, self.power_of_two)))

    def tensors(self, slot: int) -> dict[str, Tensor]:
        """The memory of each tensor of the expert in `slot`, by its published name."""
        gate, up = self.gate_up.data[slot]
        gate_scales, up_scales = self.gate_up_scales.data[slot]
        return {
            "gate_proj.weight": gate,
            "gate_proj.weight_scale_inv": gate_scales,
            "up_proj.weight": up,
            "up_proj.weight_scale_inv": up_scales,
            "down_proj.weight": self.down.data[slot],
            "down_proj.weight_scale_inv": self.down_scales.data[slot],
        }


def round_scales_up(model: nn.Module) -> None:
    """Let every projection of `model` scale its rows by powers of two: a trait of the model that none of them knows."""
    for module in model.modules():
        if isinstance(module, Fp8Linear):
            module.power_of_two = True


def _scales(magnitudes: Tensor) -> Tensor:
    return magnitudes.clamp(min=MIN_MAGNITUDE) / LARGEST


def _rounded_up(scales: Tensor) -> Tensor:
    """To the next power of two, exactly: scale = mantissa 2^exponent with a mantissa from 1/2 up to, not with, 1."""
    mantissas, exponents = torch.frexp(scales)
    return torch.ldexp(torch.ones_like(scales), exponents - (mantissas == 0.5).int())


def _by_row(scales: Tensor, num_rows: int) -> Tensor:
    """A matrix's scales, [O / 128, D / 128], for each of its rows, [O, D / 128]."""
    return scales.repeat_interleave(BLOCK, 0)[:num_rows]


def _codes(device: torch.device, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=E4M3, device=device), requires_grad=False)


def _scale_parameter(device: torch.device, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=torch.float32, device=device), requires_grad=False)
