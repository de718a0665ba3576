"""The parts of a model that compute in FP8: dispatched rows, projections, experts.

The modules choose which of their matrices are in FP8. `kernels/fp8.py` has the arithmetic. A dispatched row is its
codes, then its scales: 7,168 channels are 7,168 + 4 x 56 = 7,392 bytes.
"""

import torch
from torch import Tensor, nn

from runtime.expert_parallel.dispatcher import ContiguousRows, ExpertRows
from runtime.kernels.backend import Backend
from runtime.kernels.fp8 import E4M3, ExpertCodes, Quantised, num_blocks, pack, unpack
from runtime.kernels.ops import Ops
from runtime.model.config import ModelConfig

__all__ = ["Fp8Experts", "Fp8Linear", "Fp8Rows", "round_scales_up"]


class Fp8Rows:
    """Rows in the form in which they are dispatched: quantised beforehand, so that they are half as long."""

    def __init__(self, hidden_size: int, power_of_two: bool, ops: Ops) -> None:
        self.hidden_size, self.power_of_two, self.ops = hidden_size, power_of_two, ops

    def quantise(self, x_TD: Tensor) -> Quantised:
        """Return the codes and scales of `x_TD`."""
        return self.ops.quantise_rows(x_TD, self.power_of_two)

    def encode(self, x_TD: Tensor) -> Tensor:
        """Return the rows with their scales as bytes: [T, D + 4 ceil(D / 128)]."""
        return pack(self.quantise(x_TD))

    def decode(self, bytes_RX: Tensor) -> Quantised:
        """Split packed rows of bytes into codes (a view) and scales (a copy)."""
        return unpack(bytes_RX, self.hidden_size)


class Fp8Linear(nn.Module):
    """A bias-free projection, which quantises its rows. Parameters are named as published."""

    power_of_two = False  # see `round_scales_up`

    def __init__(self, in_features: int, out_features: int, ops: Ops) -> None:
        super().__init__()
        self.ops = ops
        self.weight = _codes(ops.device, out_features, in_features)
        self.weight_scale_inv = _scale_parameter(ops.device, num_blocks(out_features), num_blocks(in_features))

    def forward(self, x_RD: Tensor) -> Tensor:
        """Map rows [R, in] -> [R, out], in the type of `x_RD`."""
        return self.multiply(self.quantise(x_RD), x_RD.dtype)

    def quantise(self, x_RD: Tensor) -> Quantised:
        """Return the rows quantised. Any projection with the same input can read the result."""
        return self.ops.quantise_rows(x_RD, self.power_of_two)

    def multiply(self, x: Quantised, dtype: torch.dtype) -> Tensor:
        """Return the product with quantised rows, [R, out], in `dtype`."""
        return self.ops.fp8_matmul(x, Quantised(self.weight, self.weight_scale_inv), dtype)


class Fp8Experts(nn.Module):
    """The experts in this rank's slots: gate and up [slots, 2, I, D], down [slots, D, I], and their scales.

    Gate and up are separate matrices, so that no block of scales lies in both.
    """

    def __init__(self, num_slots: int, config: ModelConfig, backend: Backend) -> None:
        super().__init__()
        self.ops, self.batching, device = backend.ops, backend.batching, backend.device
        self.power_of_two = config.power_of_two_scales
        hidden, intermediate = config.hidden_size, config.moe_intermediate_size
        self.gate_up = _codes(device, num_slots, 2, intermediate, hidden)
        self.gate_up_scales = _scale_parameter(device, num_slots, 2, num_blocks(intermediate), num_blocks(hidden))
        self.down = _codes(device, num_slots, hidden, intermediate)
        self.down_scales = _scale_parameter(device, num_slots, num_blocks(hidden), num_blocks(intermediate))

    def forward(self, rows: ExpertRows) -> Tensor:
        """Return the experts' results in BF16: [R, D], or [M, Z, D] for masked rows."""
        if isinstance(rows, ContiguousRows):
            assert isinstance(rows.rows_RD, Quantised)
            return self.batching.fp8_experts(self.ops, rows.rows_RD, rows.counts, rows.counts_M, self._codes)
        assert isinstance(rows.rows_MZD, Quantised)
        return self.batching.masked_fp8_experts(self.ops, rows.rows_MZD, rows.counts_M, self._codes, rows.expected_rows)

    def first_expert(self, x_TD: Tensor) -> Tensor:
        """Compute the expert in slot 0 for plain rows, [T, D]. `check_machine` tries this function."""
        return self.ops.fp8_expert(self.ops.quantise_rows(x_TD, self.power_of_two), self._codes, 0)

    @property
    def _codes(self) -> ExpertCodes:
        gate_up, down = Quantised(self.gate_up, self.gate_up_scales), Quantised(self.down, self.down_scales)
        return ExpertCodes(gate_up, down, self.power_of_two)

    def tensors(self, slot: int) -> dict[str, Tensor]:
        """Return published name -> memory of each tensor of the expert in `slot`."""
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
    """Let every projection of `model` use powers of two as scales of its rows, as the model's config asks."""
    for module in model.modules():
        if isinstance(module, Fp8Linear):
            module.power_of_two = True


def _codes(device: torch.device, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=E4M3, device=device), requires_grad=False)


def _scale_parameter(device: torch.device, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=torch.float32, device=device), requires_grad=False)
