"""Softmax and silu of many rows, as compiled loops. The rest of a prompt's work is oneDNN's matmuls.

`kernels.py` says when they are used. `numbers.py` has numbers, arrays and compilation. Parameters are addresses and
sizes; tensors are BF16. Each row is computed alone, so its result does not depend on others.
"""

import numpy as np

from runtime.kernels.cpu.numbers import Address, bf16_to_fp32, exp, fp32_to_bf16, larger, loop, view_bf16

__all__ = ["causal_softmax", "silu_product"]

ONE = np.float32(1)


@loop
def causal_softmax(scores: Address, num_heads: int, num_queries: int, num_keys: int) -> None:
    """Replace the scores [H, T, S] with their softmax.

    The last query sees all keys, and each earlier query one key less. Keys that a query does not see get 0.
    """
    scores_HTS = view_bf16(scores, (num_heads, num_queries, num_keys))
    exps_S = np.empty(num_keys, np.float32)
    for h in range(num_heads):
        for t in range(num_queries):
            row_S, seen = scores_HTS[h, t], num_keys - num_queries + t + 1
            largest, total = np.float32(-np.inf), np.float32(0)
            for s in range(seen):
                largest = larger(largest, bf16_to_fp32(row_S[s]))
            for s in range(seen):
                exps_S[s] = exp(bf16_to_fp32(row_S[s]) - largest)
                total += exps_S[s]
            for s in range(seen):
                row_S[s] = fp32_to_bf16(exps_S[s] * (ONE / total))
            row_S[seen:] = 0


@loop
def silu_product(
    gate: Address, gate_stride: int, up: Address, up_stride: int, y: Address, num_rows: int, size: int
) -> None:
    """Compute y = silu(gate) * up, each [rows, size].

    Rows of gate and up are `gate_stride` and `up_stride` numbers apart.
    """
    y_RI = view_bf16(y, (num_rows, size))
    for r in range(num_rows):
        gate_I = view_bf16(gate + 2 * r * gate_stride, (size,))  # 2 bytes each
        up_I = view_bf16(up + 2 * r * up_stride, (size,))
        for i in range(size):
            gate_i = bf16_to_fp32(gate_I[i])
            y_RI[r, i] = fp32_to_bf16(gate_i / (ONE + exp(-gate_i)) * bf16_to_fp32(up_I[i]))
