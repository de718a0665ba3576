"""The gate's choice, the order of rows by slot, and the weighted sum over a token's experts, as compiled loops.

`kernels.py` says what they compute and when. `numbers.py` has numbers, arrays and compilation. Parameters are addresses
and sizes. Scores and weights are FP32; experts, slots, pairs and rows are 64-bit integers.
"""

from typing import Any

import numpy as np

from runtime.kernels.cpu.numbers import (
    LAST_INDEX,
    NO_KEY,
    Address,
    bf16_to_fp32,
    fp32_to_bf16,
    key,
    loop,
    part,
    view_bf16,
    view_fp32,
    view_integers,
)

__all__ = ["choose_experts", "sort_by_slot", "weighted_sum"]


@part("i8(i8[::1])")
def _pop_best(keys: Any) -> int:
    """Return the index of the largest key and remove it."""
    best = NO_KEY
    for k in range(len(keys)):
        best = max(best, keys[k])
    for k in range(len(keys)):
        keys[k] = NO_KEY if keys[k] == best else keys[k]
    return LAST_INDEX - (best & LAST_INDEX)


@loop
def choose_experts(
    scores: Address,
    num_tokens: int,
    num_experts: int,
    num_groups: int,
    num_best: int,
    topk_group: int,
    top_k: int,
    experts: Address,
) -> None:
    """Write each token's `experts` [T, K]: its `top_k` best by `scores` [T, E] in its `topk_group` best groups.

    A group is judged by the sum of its `num_best` best scores. Among equal scores the first expert is the best.
    """
    scores_TE, experts_TK = view_fp32(scores, (num_tokens, num_experts)), view_integers(experts, (num_tokens, top_k))
    size = num_experts // num_groups  # of a group
    keys_E, left_E = np.empty(num_experts, np.int64), np.empty(num_experts, np.int64)
    keys_G = np.empty(num_groups, np.int64)
    for t in range(num_tokens):
        for expert in range(num_experts):
            keys_E[expert] = left_E[expert] = key(scores_TE[t, expert], expert)
        for group in range(num_groups):
            worth = np.float32(0)
            for _ in range(num_best):
                worth += scores_TE[t, _pop_best(left_E[group * size : (group + 1) * size])]
            keys_G[group] = key(worth, group)
        left_E[:] = NO_KEY
        for _ in range(topk_group):
            first = _pop_best(keys_G) * size
            left_E[first : first + size] = keys_E[first : first + size]
        for k in range(top_k):
            experts_TK[t, k] = _pop_best(left_E)


@loop
def sort_by_slot(
    slots: Address, counts: Address, pair_of_row: Address, row_of_pair: Address, num_pairs: int, num_slots: int
) -> None:
    """Sort (token, choice) pairs by their `slots`, the slot of each pair.

    Write the number of pairs of each slot, the pair in each row, and the row of each pair.
    """
    slots_X = view_integers(slots, (num_pairs,))
    pair_of_row_X, row_of_pair_X = view_integers(pair_of_row, (num_pairs,)), view_integers(row_of_pair, (num_pairs,))
    counts_M, next_M = view_integers(counts, (num_slots,)), np.zeros(num_slots, np.int64)
    counts_M[:] = 0
    for pair in range(num_pairs):
        counts_M[slots_X[pair]] += 1
    for slot in range(1, num_slots):
        next_M[slot] = next_M[slot - 1] + counts_M[slot - 1]
    for pair in range(num_pairs):
        row = next_M[slots_X[pair]]
        pair_of_row_X[row], row_of_pair_X[pair] = pair, row
        next_M[slots_X[pair]] += 1


@loop
def weighted_sum(
    rows: Address,
    size: int,
    num_rows: int,
    row_of_pair: Address,
    weights: Address,
    tokens: Address,
    top_k: int,
    y: Address,
) -> None:
    """Write y[t] = sum over k of weights[t, k] x rows[row_of_pair[t, k]], added in the order of k.

    `rows` and `y` are BF16.
    """
    rows_RD, y_TD = view_bf16(rows, (num_rows, size)), view_bf16(y, (tokens, size))
    row_of_pair_TK, weights_TK = view_integers(row_of_pair, (tokens, top_k)), view_fp32(weights, (tokens, top_k))
    sum_D = np.empty(size, np.float32)
    for t in range(tokens):
        sum_D[:] = 0
        for k in range(top_k):
            weight, row_D = weights_TK[t, k], rows_RD[row_of_pair_TK[t, k]]
            for d in range(size):
                sum_D[d] += weight * bf16_to_fp32(row_D[d])
        for d in range(size):
            y_TD[t, d] = fp32_to_bf16(sum_D[d])
