"""Decode's attention over pages of latents, and rotary positions, as compiled loops.

`kernels.py` says what they compute and when; numbers, arrays and compilation are `numbers.py`'s. Parameters
are addresses and sizes; tensors are BF16 unless something else is said.

    up [H, N + U, L]   from a latent to a head's key (its first N rows) and value
    pages [J, S, C]    all pages of the cache, of S positions each; in `tables` [B, J], J are a request's pages
"""

from typing import Any

import numpy as np

from runtime.kernels.cpu.loops import matmul, narrow, widen
from runtime.kernels.cpu.numbers import (
    Address,
    bf16_to_fp32,
    exp,
    fp32_to_bf16,
    loop,
    part,
    view_bf16,
    view_fp32,
    view_integers,
)

__all__ = ["absorb_query", "attend", "rotate", "up_project_values"]


@part(["void(u2[:, ::1], f4[::1], f4[::1])", "void(u2[::1, :], f4[::1], f4[::1])"])
def _rotate_pairs(x_XI: Any, cos_X: Any, sin_X: Any) -> None:
    """Rotate one token's pairs [pairs, 2] of one head in place, in either memory order."""
    for p in range(len(x_XI)):
        real, imaginary = bf16_to_fp32(x_XI[p, 0]), bf16_to_fp32(x_XI[p, 1])
        x_XI[p, 0] = fp32_to_bf16(real * cos_X[p] - imaginary * sin_X[p])
        x_XI[p, 1] = fp32_to_bf16(real * sin_X[p] + imaginary * cos_X[p])


@loop
def rotate(
    x: Address,
    num_tokens: int,
    num_heads: int,
    token_stride: int,
    head_stride: int,
    cos: Address,
    sin: Address,
    pairs: int,
    neighbours: bool,
) -> None:
    """Rotate pairs of numbers of each token and head of `x` in place.

    A pair is two `neighbours`, or else one number from each half. cos and sin are [tokens, pairs] in FP32. Strides
    count numbers.
    """
    cos_TX, sin_TX = view_fp32(cos, (num_tokens, pairs)), view_fp32(sin, (num_tokens, pairs))
    for t in range(num_tokens):
        for h in range(num_heads):
            place = x + 2 * (t * token_stride + h * head_stride)  # 2 bytes a number
            if neighbours:
                _rotate_pairs(view_bf16(place, (pairs, 2)), cos_TX[t], sin_TX[t])
            else:
                _rotate_pairs(view_bf16(place, (2, pairs)).T, cos_TX[t], sin_TX[t])


@loop
def absorb_query(
    q: Address,
    up: Address,
    y: Address,
    num_requests: int,
    num_heads: int,
    nope: int,
    rope: int,
    value: int,
    latent: int,
) -> None:
    """Absorb the key half of kv_b_proj into the queries: q [B, H, N + P] -> y [B, H, L + P].

    A head's first N numbers are multiplied by `up`[h, :N], the key half of kv_b_proj; the last P stay as they are.
    The sizes are N `nope`, P `rope`, U `value`, L `latent`.
    """
    q_BHQ = view_bf16(q, (num_requests, num_heads, nope + rope))
    y_BHC = view_bf16(y, (num_requests, num_heads, latent + rope))
    up_HXL = view_bf16(up, (num_heads, nope + value, latent))
    sum_L = np.empty(latent, np.float32)
    for h in range(num_heads):
        for b in range(num_requests):
            sum_L[:] = 0
            for n in range(nope):
                factor = bf16_to_fp32(q_BHQ[b, h, n])
                for d in range(latent):
                    sum_L[d] += factor * bf16_to_fp32(up_HXL[h, n, d])
            for d in range(latent):
                y_BHC[b, h, d] = fp32_to_bf16(sum_L[d])
            y_BHC[b, h, latent:] = q_BHQ[b, h, nope:]


@loop
def up_project_values(
    context: Address, up: Address, y: Address, num_requests: int, num_heads: int, nope: int, value: int, latent: int
) -> None:
    """Map contexts [B, H, L] to y [B, H, U] by the value half of each head's `up`.

    The sizes are N `nope`, U `value`, L `latent`.
    """
    context_BHL = view_bf16(context, (num_requests, num_heads, latent))
    y_BHU = view_bf16(y, (num_requests, num_heads, value))
    up_HXL = view_bf16(up, (num_heads, nope + value, latent))
    head_BL = np.empty((num_requests, latent), np.float32)
    value_BU = np.empty((num_requests, value), np.float32)
    for h in range(num_heads):
        for b in range(num_requests):
            for d in range(latent):
                head_BL[b, d] = bf16_to_fp32(context_BHL[b, h, d])
        matmul(head_BL, up_HXL[h, nope:], value_BU)
        for b in range(num_requests):
            for v in range(value):
                y_BHU[b, h, v] = fp32_to_bf16(value_BU[b, v])


@part("void(f4[::1], i8)")
def _softmax(scores_S: Any, length: int) -> None:
    """Replace the first `length` scores with their softmax, and the others with 0."""
    largest = scores_S[0]
    for s in range(length):
        largest = scores_S[s] if scores_S[s] > largest else largest
    total = np.float32(0)
    for s in range(length):
        scores_S[s] = exp(scores_S[s] - largest)
        total += scores_S[s]
    for s in range(length):
        scores_S[s] /= total
    scores_S[length:] = 0


@part("void(f4[:, ::1], i8, u2[:, ::1], i8, f4[:, ::1], f4[:, ::1])")
def _add_page(weights_HS: Any, first: int, page_SC: Any, length: int, wide_SL: Any, sum_HL: Any) -> None:
    """Add a page's latents, weighted, to the sums `sum_HL`, four positions at a time.

    Only the page's first `length` positions count. Their weights are in `weights_HS` from position `first` on;
    `wide_SL` is scratch memory.
    """
    page_size, latent = wide_SL.shape
    for s in range(page_size):
        for d in range(latent):
            wide_SL[s, d] = bf16_to_fp32(page_SC[s, d]) if s < length else np.float32(0)
    for h in range(len(sum_HL)):
        for s in range(0, page_size, 4):
            position = first + s
            w_0, w_1 = weights_HS[h, position], weights_HS[h, position + 1]
            w_2, w_3 = weights_HS[h, position + 2], weights_HS[h, position + 3]
            for d in range(latent):
                sum_HL[h, d] += (w_0 * wide_SL[s, d] + w_1 * wide_SL[s + 1, d]) + (
                    w_2 * wide_SL[s + 2, d] + w_3 * wide_SL[s + 3, d]
                )


@part("void(u2[:, ::1], u2[:, :, ::1], i8[::1], i8, f4, u2[:, ::1])")
def _attend(q_HC: Any, pages_JSC: Any, table_J: Any, length: int, scale: float, y_HL: Any) -> None:
    """Compute one request's attention: its scores page by page, the softmax of each head, the sum of compressed KV."""
    num_heads, latent = y_HL.shape
    page_size = pages_JSC.shape[1]
    num_pages = (length + page_size - 1) // page_size
    wide_HC, page_HS = np.empty(q_HC.shape, np.float32), np.empty((num_heads, page_size), np.float32)
    scores_HS = np.empty((num_heads, num_pages * page_size), np.float32)
    widen(q_HC, wide_HC)
    for number in range(num_pages):
        matmul(wide_HC, pages_JSC[table_J[number]], page_HS)
        for h in range(num_heads):
            for s in range(page_size):
                scores_HS[h, number * page_size + s] = page_HS[h, s] * scale
    for h in range(num_heads):
        _softmax(scores_HS[h], length)
    wide_SL, sum_HL = np.empty((page_size, latent), np.float32), np.zeros((num_heads, latent), np.float32)
    for number in range(num_pages):
        first = number * page_size
        _add_page(scores_HS, first, pages_JSC[table_J[number]], length - first, wide_SL, sum_HL)
    narrow(sum_HL, y_HL)


@loop
def attend(
    q: Address,
    pages: Address,
    tables: Address,
    lengths: Address,
    y: Address,
    num_requests: int,
    num_heads: int,
    num_pages: int,
    page_size: int,
    max_pages: int,
    latent: int,
    size: int,
    scale: float,
) -> None:
    """Compute attention y [B, H, L] of queries q [B, H, C] to the latents in `pages` [pages, page size, C].

    `tables` [B, J] has each request's pages, `lengths` [B] its number of latents, both as 64-bit integers. The page
    size is a multiple of 4. The sizes are J `max_pages`, L `latent`, C `size`.
    """
    q_BHC, y_BHL = view_bf16(q, (num_requests, num_heads, size)), view_bf16(y, (num_requests, num_heads, latent))
    pages_JSC = view_bf16(pages, (num_pages, page_size, size))
    tables_BJ, lengths_B = view_integers(tables, (num_requests, max_pages)), view_integers(lengths, (num_requests,))
    for b in range(num_requests):
        _attend(q_BHC[b], pages_JSC, tables_BJ[b], lengths_B[b], np.float32(scale), y_BHL[b])
