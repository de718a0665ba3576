"""The parts that hold no idea of their own: projection, norm, gated MLP.

Parameters carry the published tensor names, so that `weights.py` needs no table of names.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runtime.kernels.cpu import kernels as cpu_kernels
from runtime.model.fp8 import E4M3, Fp8Linear

__all__ = ["GatedMlp", "Linear", "RmsNorm", "linear", "silu_product"]


def linear(in_features: int, out_features: int, dtype: torch.dtype) -> "Linear | Fp8Linear":
    """A bias-free projection whose values come from a checkpoint."""
    if dtype == E4M3:
        return Fp8Linear(in_features, out_features)
    return nn.utils.skip_init(Linear, in_features, out_features, bias=False, dtype=dtype)


class Linear(nn.Linear):
    """torch's own, but for few rows."""

    def forward(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        if cpu_kernels.matmul_wins(x):
            return cpu_kernels.linear(x, self.weight)
        return super().forward(x)


class RmsNorm(nn.Module):
    """x / rms(x) * weight, with the mean square in FP32."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Any shape whose last dimension is `size`."""
        if cpu_kernels.suits(x):
            return cpu_kernels.rms_norm(x, self.weight, self.eps)
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class GatedMlp(nn.Module):
    """down(silu(gate(x)) * up(x)): the dense layers and the shared expert."""

    def __init__(self, hidden_size: int, intermediate_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_proj = linear(hidden_size, intermediate_size, dtype)
        self.up_proj = linear(hidden_size, intermediate_size, dtype)
        self.down_proj = linear(intermediate_size, hidden_size, dtype)

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, D] -> [T, D]."""
        gate, up, down = self.gate_proj, self.up_proj, self.down_proj
        if isinstance(gate, Linear) and cpu_kernels.matmul_wins(x_TD):
            return cpu_kernels.gated_mlp(x_TD, gate.weight, up.weight, down.weight)
        return down(silu_product(gate(x_TD), up(x_TD)))


def silu_product(gate_RI: Tensor, up_RI: Tensor) -> Tensor:
    """silu(gate) * up, [R, I]; both may be parts of one tensor's rows."""
    if cpu_kernels.suits(gate_RI):
        return cpu_kernels.silu_product(gate_RI, up_RI)
    return F.silu(gate_RI.contiguous()).mul_(up_RI)  # of rows with gaps, silu is twice as slow
