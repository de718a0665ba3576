"""What torch computes in several passes over memory, in one, by Triton.

    rotate           pairs of BF16 by FP32 angles, in place
    joined_keys      each head's own part and the shared rotary part, side by side
    chosen_experts   the best experts of each token's best groups

They compute what `ops.py` says, and round as it does. On an H100 torch's passes took 15 % of a prefill step of
DeepSeek-V3, and 13 % of a decode step (docs/performance.md).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["are_powers_of_two", "chosen_experts", "joined_keys", "rotate"]

ROTATED_HEADS, JOINED_HEADS = 8, 16  # in one program: of 8,192 tokens, 8 by one warp took 0.30 ms, 16 by four 0.78


def are_powers_of_two(*sizes: int) -> bool:
    """Return whether Triton can hold such sizes whole."""
    return all(size > 0 and size & (size - 1) == 0 for size in sizes)


def rotate(x: Tensor, cos_TX: Tensor, sin_TX: Tensor, neighbours: bool) -> None:
    """Rotate pairs in place; `x` is [T, P] or [T, H, P], and P / 2 a power of two."""
    x_THP = x if x.dim() == 3 else x[:, None]
    num_tokens, num_heads, size = x_THP.shape
    if num_tokens:
        rotate_pairs[(num_tokens, -(-num_heads // ROTATED_HEADS))](
            *(x_THP, cos_TX, sin_TX, num_heads, *x_THP.stride()[:2], cos_TX.stride(0), sin_TX.stride(0)),
            HALF=size // 2,
            NEIGHBOURS=neighbours,
            HEADS=ROTATED_HEADS,
            num_warps=1,
        )


def joined_keys(k_nope_SHN: Tensor, k_rope_SP: Tensor) -> Tensor:
    """Return keys [S, H, N + P]; N and P are powers of two."""
    num_tokens, num_heads, own = k_nope_SHN.shape
    keys_SHQ = k_nope_SHN.new_empty(num_tokens, num_heads, own + k_rope_SP.shape[1])
    if num_tokens:
        join_keys[(num_tokens, -(-num_heads // JOINED_HEADS))](
            *(k_nope_SHN, k_rope_SP, keys_SHQ, num_heads, *k_nope_SHN.stride()[:2], k_rope_SP.stride(0)),
            OWN=own,
            SHARED=k_rope_SP.shape[1],
            HEADS=JOINED_HEADS,
        )
    return keys_SHQ


def chosen_experts(scores_TE: Tensor, num_groups: int, num_best: int, topk_group: int, top_k: int) -> Tensor:
    """Return the experts [T, K], best first; the groups and the experts of one are powers of two."""
    num_tokens, num_experts = scores_TE.shape
    experts_TK = torch.empty(num_tokens, top_k, dtype=torch.long, device=scores_TE.device)
    if num_tokens:
        choose[(num_tokens,)](
            *(scores_TE, experts_TK, scores_TE.stride(0)),
            GROUPS=num_groups,
            SIZE=num_experts // num_groups,
            NUM_BEST=num_best,
            TOPK_GROUP=topk_group,
            TOP_K=top_k,
            num_warps=1,
        )
    return experts_TK


@triton.jit
def rotate_pairs(
    x,
    cos,
    sin,
    num_heads,
    token_stride,
    head_stride,
    cos_stride,
    sin_stride,
    HALF: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Rotate some heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    pair = tl.arange(0, HALF)
    step = 2 if NEIGHBOURS else 1
    apart = 1 if NEIGHBOURS else HALF
    place = x + token * token_stride + head[:, None] * head_stride + pair[None, :] * step
    is_inside = head[:, None] < num_heads
    real = tl.load(place, is_inside, 0.0).to(tl.float32)
    imaginary = tl.load(place + apart, is_inside, 0.0).to(tl.float32)
    by_real = tl.load(cos + token * cos_stride + pair)[None, :]
    by_imaginary = tl.load(sin + token * sin_stride + pair)[None, :]
    tl.store(place, (real * by_real - imaginary * by_imaginary).to(x.dtype.element_ty), is_inside)
    tl.store(place + apart, (real * by_imaginary + imaginary * by_real).to(x.dtype.element_ty), is_inside)


@triton.jit
def join_keys(
    own,
    shared,
    keys,
    num_heads,
    token_stride,
    head_stride,
    shared_stride,
    OWN: tl.constexpr,
    SHARED: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Join some heads' keys of one token."""
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    is_inside = head < num_heads
    of_own, of_shared = tl.arange(0, OWN)[None, :], tl.arange(0, SHARED)[None, :]
    key = keys + (token * num_heads + head) * (OWN + SHARED)
    tl.store(key + of_own, tl.load(own + token * token_stride + head * head_stride + of_own, is_inside), is_inside)
    rotary = tl.load(shared + token * shared_stride + of_shared)
    tl.store(key + OWN + of_shared, tl.broadcast_to(rotary, (HEADS, SHARED)), is_inside)


@triton.jit
def choose(
    scores,
    experts,
    stride,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    NUM_BEST: tl.constexpr,
    TOPK_GROUP: tl.constexpr,
    TOP_K: tl.constexpr,
):
    """Choose one token's experts: the best groups by the sum of their best, then the best experts of these."""
    token = tl.program_id(0).to(tl.int64)
    group, member = tl.arange(0, GROUPS), tl.arange(0, SIZE)
    expert = group[:, None] * SIZE + member[None, :]
    score = tl.load(scores + token * stride + expert)
    left, worth = score, tl.zeros((GROUPS,), tl.float32)
    for _ in tl.static_range(NUM_BEST):
        worth += tl.max(left, 1)
        left = tl.where(member[None, :] == tl.argmax(left, 1)[:, None], float("-inf"), left)
    is_eligible = tl.zeros((GROUPS,), tl.int32)
    for _ in tl.static_range(TOPK_GROUP):
        best = tl.argmax(worth, 0)
        is_eligible = tl.where(group == best, 1, is_eligible)
        worth = tl.where(group == best, float("-inf"), worth)
    score = tl.where(is_eligible[:, None] == 1, score, float("-inf"))
    flat, number = tl.reshape(score, (GROUPS * SIZE,)), tl.arange(0, GROUPS * SIZE)
    for place in tl.static_range(TOP_K):
        best = tl.argmax(flat, 0)
        tl.store(experts + token * TOP_K + place, best.to(tl.int64))
        flat = tl.where(number == best, float("-inf"), flat)
