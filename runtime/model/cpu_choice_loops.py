"""The gate's choice and the weighted sum over a token's experts, as compiled loops.

`cpu_kernels.py` says what they compute and when; numbers, arrays and compilation are `cpu_numbers.py`'s. Parameters
are addresses and sizes; scores and weights are FP32, experts and places whole numbers of 64 bits.
"""

from typing import Any

import numpy as np

from runtime.model.cpu_numbers import bf16, fp32, integers, loop, narrowed, part, widened

__all__ = ["choose_experts", "weighted_sum"]


@part("i8(f4[::1])")
def _take_best(values: Any) -> int:
    """Where the largest is, which is then no more."""
    best = 0
    for place in range(1, len(values)):
        if values[place] > values[best]:
            best = place
    values[best] = -np.inf
    return best


@loop
def choose_experts(
    scores: int,
    num_tokens: int,
    num_experts: int,
    num_groups: int,
    num_best: int,
    topk_group: int,
    top_k: int,
    experts: int,
) -> None:
    """scores [T, E] -> experts [T, K]. Of equals, the first is the best."""
    scores_TE, experts_TK = fp32(scores, (num_tokens, num_experts)), integers(experts, (num_tokens, top_k))
    group_size = num_experts // num_groups
    left_E = np.empty(num_experts, np.float32)
    worth_G = np.empty(num_groups, np.float32)
    for t in range(num_tokens):
        for group in range(num_groups):
            first = group * group_size
            left_E[first : first + group_size] = scores_TE[t, first : first + group_size]
            worth_G[group] = 0
            for _ in range(num_best):
                best = _take_best(left_E[first : first + group_size])
                worth_G[group] += scores_TE[t, first + best]
        left_E[:] = -np.inf
        for _ in range(topk_group):
            first = _take_best(worth_G) * group_size
            left_E[first : first + group_size] = scores_TE[t, first : first + group_size]
        for k in range(top_k):
            experts_TK[t, k] = _take_best(left_E)


@loop
def weighted_sum(
    rows: int, size: int, num_rows: int, places: int, weights: int, tokens: int, top_k: int, y: int
) -> None:
    """y[t] = sum over k of weights[t, k] x rows[places[t, k]], in the order of k; rows and y are BF16."""
    rows_RD, y_TD = bf16(rows, (num_rows, size)), bf16(y, (tokens, size))
    places_TK, weights_TK = integers(places, (tokens, top_k)), fp32(weights, (tokens, top_k))
    sum_D = np.empty(size, np.float32)
    for t in range(tokens):
        sum_D[:] = 0
        for k in range(top_k):
            weight, row_D = weights_TK[t, k], rows_RD[places_TK[t, k]]
            for d in range(size):
                sum_D[d] += weight * widened(row_D[d])
        for d in range(size):
            y_TD[t, d] = narrowed(sum_D[d])
