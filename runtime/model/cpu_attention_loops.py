"""What attention does to queries and contexts of few tokens, and rotary positions, as compiled loops.

`cpu_kernels.py` says what they compute and when; numbers, arrays and compilation are `cpu_numbers.py`'s. Parameters
are addresses and sizes; tensors are BF16 unless something else is said.

    B requests, H heads, N and P sizes of a head's two parts of a key, V of its value, L and C = L + P of a latent
    up [H, N + V, L]   from a latent to a head's key (its first N rows) and value
"""

from typing import Any

import numpy as np

from runtime.model.cpu_loops import matmul
from runtime.model.cpu_numbers import bf16, fp32, loop, narrowed, part, widened

__all__ = ["absorb_query", "rotate", "values"]


@loop
def rotate(
    x: int, num_tokens: int, num_heads: int, token_stride: int, head_stride: int, cos: int, sin: int, pairs: int
) -> None:
    """Pairs of neighbours of each token and head, in place; cos and sin [tokens, pairs] in FP32."""
    cos_TP, sin_TP = fp32(cos, (num_tokens, pairs)), fp32(sin, (num_tokens, pairs))
    for t in range(num_tokens):
        for h in range(num_heads):
            x_X = bf16(x + 2 * (t * token_stride + h * head_stride), (pairs, 2))  # 2 bytes a number
            for p in range(pairs):
                real, imaginary = widened(x_X[p, 0]), widened(x_X[p, 1])
                x_X[p, 0] = narrowed(real * cos_TP[t, p] - imaginary * sin_TP[t, p])
                x_X[p, 1] = narrowed(real * sin_TP[t, p] + imaginary * cos_TP[t, p])


@part("void(f4, u2[::1], f4[::1])")
def _add_scaled(factor: Any, x_D: Any, sum_D: Any) -> None:
    for d in range(len(sum_D)):
        sum_D[d] += factor * widened(x_D[d])


@loop
def absorb_query(
    q: int, up: int, y: int, num_requests: int, num_heads: int, nope: int, rope: int, value: int, latent: int
) -> None:
    """q [B, H, N + P] -> y [B, H, L + P]: N by the head's map to keys, P as it is."""
    q_BHQ = bf16(q, (num_requests, num_heads, nope + rope))
    y_BHC = bf16(y, (num_requests, num_heads, latent + rope))
    up_HXL = bf16(up, (num_heads, nope + value, latent))
    sum_L = np.empty(latent, np.float32)
    for h in range(num_heads):
        for b in range(num_requests):
            sum_L[:] = 0
            for n in range(nope):
                _add_scaled(widened(q_BHQ[b, h, n]), up_HXL[h, n], sum_L)
            for d in range(latent):
                y_BHC[b, h, d] = narrowed(sum_L[d])
            y_BHC[b, h, latent:] = q_BHQ[b, h, nope:]


@loop
def values(
    context: int, up: int, y: int, num_requests: int, num_heads: int, nope: int, value: int, latent: int
) -> None:
    """context [B, H, L] -> y [B, H, V]: by the head's map to values."""
    context_BHL = bf16(context, (num_requests, num_heads, latent))
    y_BHV = bf16(y, (num_requests, num_heads, value))
    up_HXL = bf16(up, (num_heads, nope + value, latent))
    of_head_BL = np.empty((num_requests, latent), np.float32)
    value_BV = np.empty((num_requests, value), np.float32)
    for h in range(num_heads):
        for b in range(num_requests):
            for d in range(latent):
                of_head_BL[b, d] = widened(context_BHL[b, h, d])
        matmul(of_head_BL, up_HXL[h, nope:], value_BV)
        for b in range(num_requests):
            for v in range(value):
                y_BHV[b, h, v] = narrowed(value_BV[b, v])
