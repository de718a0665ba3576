"""What torch is slow at on one thread of a CPU in BF16, in compiled loops (`cpu_loops.py`).

    grouped_matmul   y[r] = w[slot of r] x[r]; rows lie slot after slot. A matrix by a few rows is a matter of reading
                     the matrix once. torch asks oneDNN, which takes longer to begin than memory takes to give an
                     expert's matrix, and asks for every expert again; one call does all of them. With more rows,
                     oneDNN's tiles win.
    rms_norm         in one pass; torch's takes eight, each with a tensor of its own.
    choose_experts   the gate's choice; torch sorts each token's scores three times.

`matmul_wins` and `suits` say when to come here; everything else is torch's, which is the reference. Sums are made in
FP32. A row's norm and its choice do not depend on other rows; a row of a matmul does, up to rounding, which is why
deterministic mode, whose tiles have more rows, is not for it.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["choose_experts", "grouped_matmul", "linear", "matmul_wins", "prepare", "rms_norm", "suits"]

# Rows of a matrix up to which the loops were quicker than oneDNN, on an EPYC core with AVX-512 (November 2026): in
# projections, where oneDNN begins once, and on average of experts, where it begins for each.
MOST_ROWS = 4
MOST_ROWS_OF_AN_EXPERT = 8


def suits(x: Tensor) -> bool:
    """Of `x`'s type, and on as many threads, the loops are the quicker ones."""
    return x.dtype == torch.bfloat16 and torch.get_num_threads() == 1


def matmul_wins(x_RD: Tensor, num_matrices: int = 0) -> bool:
    """These rows are few enough, for a projection, or for so many experts that have some."""
    most = MOST_ROWS_OF_AN_EXPERT * num_matrices or MOST_ROWS
    return 0 < len(x_RD) <= most and suits(x_RD)


def linear(x_RD: Tensor, w_ND: Tensor) -> Tensor:
    """x w^T, [R, N] in FP32."""
    return grouped_matmul(x_RD, [len(x_RD)], w_ND[None])


def grouped_matmul(x_RD: Tensor, counts: Sequence[int], w_SND: Tensor) -> Tensor:
    """Rows by the matrix of their slot, `counts` of each slot in turn: [R, N] in FP32."""
    y_RN = torch.empty(len(x_RD), w_SND.shape[1])
    _loops().grouped_matmul(_bits(x_RD), np.array(counts, np.int64), _bits(w_SND), y_RN.numpy())
    return y_RN


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean of x^2 + eps) * weight, [..., D]."""
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    _loops().rms_norm(_bits(x.flatten(0, -2)), _bits(weight_D), eps, _bits(y.view(-1, x.shape[-1])))
    return y


def choose_experts(scores_TE: Tensor, num_groups: int, num_best: int, topk_group: int, top_k: int) -> Tensor:
    """The best `top_k` of the `topk_group` groups whose `num_best` best sum to most: [T, K], best first."""
    experts_TK = torch.empty(len(scores_TE), top_k, dtype=torch.long)
    _loops().choose_experts(scores_TE.numpy(), num_groups, num_best, topk_group, experts_TK.numpy())
    return experts_TK


def prepare() -> None:
    """Load the compiled loops, or compile them, before somebody waits for a step."""
    _loops()


@cache
def _loops() -> Any:
    from runtime.model import cpu_loops  # numba, which not every process needs

    return cpu_loops


def _bits(x: Tensor) -> Any:
    """The same memory as an array, if it is in one piece."""
    return x.detach().contiguous().view(torch.uint16).numpy()
