"""The standard parts of a model: embedding, projection, norm, gated MLP.

Parameters carry the published tensor names, so that `weights.py` needs no table of names.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runtime.kernels.fp8 import E4M3
from runtime.kernels.ops import Ops
from runtime.model.fp8 import Fp8Linear

__all__ = ["Embedding", "GatedMlp", "Linear", "RmsNorm", "linear"]


def linear(in_features: int, out_features: int, dtype: torch.dtype, ops: Ops) -> "Linear | Fp8Linear":
    """Make a bias-free projection whose values come from a checkpoint."""
    if dtype == E4M3:
        return Fp8Linear(in_features, out_features, ops)
    return Linear(nn.Parameter(torch.empty(out_features, in_features, dtype=dtype, device=ops.device)), ops)


class Linear(nn.Module):
    """Computes x w^T, with a matrix [out, in] that another module may share."""

    def __init__(self, weight: nn.Parameter, ops: Ops) -> None:
        super().__init__()
        self.ops = ops
        self.weight = weight

    def forward(self, x_RD: Tensor) -> Tensor:
        """Multiply rows by the matrix: [R, in] -> [R, out]."""
        return self.ops.linear(x_RD, self.weight)


class Embedding(nn.Module):
    """A row for each token of the vocabulary."""

    def __init__(self, vocab_size: int, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size, dtype=dtype, device=device))

    def forward(self, token_ids_T: Tensor) -> Tensor:
        """Look up each token's row: [T] -> [T, D]."""
        return F.embedding(token_ids_T, self.weight)


class RmsNorm(nn.Module):
    """Computes x / rms(x) * weight, with the mean square in FP32."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype, ops: Ops) -> None:
        super().__init__()
        self.ops, self.eps = ops, eps
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype, device=ops.device))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise over the last dimension, which is `size`; any other dimensions stay."""
        return self.ops.rms_norm(x, self.weight, self.eps)


class GatedMlp(nn.Module):
    """Computes down(silu(gate(x)) * up(x)): the dense layers and the shared expert."""

    def __init__(self, hidden_size: int, intermediate_size: int, dtype: torch.dtype, ops: Ops) -> None:
        super().__init__()
        self.ops = ops
        self.gate_proj = linear(hidden_size, intermediate_size, dtype, ops)
        self.up_proj = linear(hidden_size, intermediate_size, dtype, ops)
        self.down_proj = linear(intermediate_size, hidden_size, dtype, ops)

    def forward(self, x_TD: Tensor) -> Tensor:
        """Map hidden states [T, D] -> [T, D]."""
        gate, up, down = self.gate_proj, self.up_proj, self.down_proj
        if isinstance(gate, Fp8Linear) and isinstance(up, Fp8Linear):
            rows = gate.quantise(x_TD)
            return down(self.ops.silu_product(gate.multiply(rows, x_TD.dtype), up.multiply(rows, x_TD.dtype)))
        return self.ops.gated_mlp(x_TD, gate.weight, up.weight, down.weight)
