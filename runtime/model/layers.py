"""The parts that hold no idea of their own: norm, gated MLP, rotary positions.

Parameters carry the published tensor names, so that `weights.py` needs no table of names.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["GatedMlp", "RmsNorm", "RotaryTable", "linear", "rotate"]


def linear(in_features: int, out_features: int, dtype: torch.dtype) -> nn.Linear:
    """A bias-free projection whose values come from a checkpoint."""
    return nn.utils.skip_init(nn.Linear, in_features, out_features, bias=False, dtype=dtype)


class RmsNorm(nn.Module):
    """x / rms(x) * weight, with the mean square in FP32."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Any shape whose last dimension is `size`."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


class GatedMlp(nn.Module):
    """down(silu(gate(x)) * up(x)): the dense layers and the shared expert."""

    def __init__(self, hidden_size: int, intermediate_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_proj = linear(hidden_size, intermediate_size, dtype)
        self.up_proj = linear(hidden_size, intermediate_size, dtype)
        self.down_proj = linear(intermediate_size, hidden_size, dtype)

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, D] -> [T, D]."""
        return self.down_proj(F.silu(self.gate_proj(x_TD)) * self.up_proj(x_TD))


class RotaryTable:
    """cos and sin of every position: `[max_positions, dim / 2]` each, FP32."""

    def __init__(self, dim: int, max_positions: int, theta: float) -> None:
        frequencies = theta ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies
        self._cos, self._sin = angles.cos(), angles.sin()

    def at(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, `[T, dim / 2]` each."""
        return self._cos[positions_T], self._sin[positions_T]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x[0], x[1]), (x[2], x[3]), ... as DeepSeek's checkpoints lay them out (interleaved)."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)
