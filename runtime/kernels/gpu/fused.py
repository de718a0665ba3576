"""Triton kernels that make one pass over memory where torch makes several.

    rotate           pairs of BF16 by FP32 angles, in place
    joined_keys      each head's own part of a key and the shared rotary part, side by side
    chosen_experts   the best experts of each token's best groups, and their weights, from the gate's logits
    replicas_in_turn the slots of these experts
    placed_rows      the row of each (token, choice) pair, slot after slot, by counting instead of sorting
    spread_rows      tokens and their scales copied to these rows; each token is read once, as 32-bit words
    sum_rows         each token's rows weighted and added in FP32, rounded once; missing rows are not read

They compute the operations of `ops.py` with the same rounding, except in the sums, where torch also rounds the weights.
On an H100 torch's passes took 15 % of a prefill step of DeepSeek-V3, and 13 % of a decode step (docs/performance.md).

Worked example of `placed_rows`, blocks of 4 pairs, tiles of 4: slots 1 0 -1 1 | 0 1 -1 -1. The first block has 1 and 2
pairs of the slots, the second 1 and 1. So slot 0 begins at row 0 and slot 1 at row 4, in the second block at 1 and 6;
the places are 4 0 -1 5 | 1 6 -1 -1.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from runtime.kernels.ops import GateRule

__all__ = [
    *("are_powers_of_two", "chosen_experts", "joined_keys", "placed_rows", "replicas_in_turn", "rotate"),
    *("spread_rows", "sum_rows"),
]

PAIRS, CHANNELS, WORDS = 1024, 1024, 1024  # in one program: 8 pairs, 16 or 32 bytes for each thread of four warps
WORD_BYTES = 4
ROTATED_HEADS, JOINED_HEADS = 8, 16  # a program; 8,192 tokens took 0.30 ms with 8 on one warp, 0.78 with 16 on four


def are_powers_of_two(*sizes: int) -> bool:
    """Return whether all sizes are powers of two, as Triton's blocks must be."""
    return all(size > 0 and size & (size - 1) == 0 for size in sizes)


def rotate(x: Tensor, cos_TX: Tensor, sin_TX: Tensor, neighbours: bool) -> None:
    """Rotate pairs in place. `x` is [T, P] or [T, H, P], and P / 2 is a power of two."""
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
    """Return whole keys [S, H, N + P]: each head's own part, then the shared rotary part. N and P are powers of two."""
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


def chosen_experts(logits_TE: Tensor, bias_E: Tensor | None, rule: GateRule) -> tuple[Tensor, Tensor]:
    """Return the experts [T, K], best first, and their weights.

    The number of groups and the number of experts in a group are powers of two.
    """
    num_tokens, num_experts = logits_TE.shape
    experts_TK = torch.empty(num_tokens, rule.top_k, dtype=torch.long, device=logits_TE.device)
    weights_TK = torch.empty(num_tokens, rule.top_k, device=logits_TE.device)
    if num_tokens:
        choose_experts[(num_tokens,)](
            *(logits_TE, logits_TE if bias_E is None else bias_E, experts_TK, weights_TK),
            *(logits_TE.stride(0), rule.factor),
            GROUPS=rule.num_groups,
            SIZE=num_experts // rule.num_groups,
            NUM_BEST=rule.num_best,
            TOPK_GROUP=rule.topk_group,
            TOP_K=rule.top_k,
            PLACES=triton.next_power_of_2(rule.top_k),
            IS_SOFTMAX=rule.is_softmax,
            IS_BIASED=bias_E is not None,
            IS_NORMALISED=rule.is_normalised,
            num_warps=1,
        )
    return experts_TK, weights_TK


def replicas_in_turn(
    experts_TK: Tensor, slots_S: Tensor, first_E: Tensor, num_replicas_E: Tensor, turn: Tensor
) -> Tensor:
    """Return the slot of each choice, [T, K], as `Ops.replicas_in_turn` chooses it."""
    assert experts_TK.is_contiguous()
    slots_TK = torch.empty_like(experts_TK)
    if num_pairs := experts_TK.numel():
        take_turns[(triton.cdiv(num_pairs, PAIRS),)](
            *(experts_TK, slots_S, first_E, num_replicas_E, slots_TK, num_pairs, turn),
            TOP_K=experts_TK.shape[1],
            PAIRS=PAIRS,
        )
    return slots_TK


def placed_rows(slots_TK: Tensor, num_slots: int, alignment: int) -> tuple[Tensor, Tensor]:
    """Return the row of each pair [T, K] (-1 for a pair without a slot here) and each slot's number of pairs [M]."""
    slots_TK = slots_TK.contiguous()
    num_blocks = triton.cdiv(slots_TK.numel(), PAIRS)
    counts_XM = torch.empty(num_blocks, num_slots, dtype=torch.int32, device=slots_TK.device)
    if num_blocks:
        count_pairs[(num_blocks,)](slots_TK, counts_XM, slots_TK.numel(), num_slots, PAIRS=PAIRS)
    counts_M = counts_XM.sum(0)
    aligned_M = -(-counts_M // alignment) * alignment
    first_XM = counts_XM.cumsum(0) - counts_XM + (aligned_M.cumsum(0) - aligned_M)
    place_TK = torch.empty_like(slots_TK)
    if num_blocks:
        place_pairs[(num_blocks,)](slots_TK, first_XM, place_TK, slots_TK.numel(), num_slots, PAIRS=PAIRS)
    return place_TK, counts_M


def spread_rows(x_TD: Tensor, place_TK: Tensor, rows_RD: Tensor, scales_TF: Tensor, scales_RF: Tensor) -> None:
    """Copy each token and its scales to its rows. Other rows stay as they are. A row is a whole number of words."""
    assert all(x.is_contiguous() for x in (x_TD, rows_RD, place_TK))
    if not len(x_TD):
        return
    num_words, num_groups = x_TD.shape[1] * x_TD.element_size() // WORD_BYTES, scales_TF.shape[1]
    copy_to_places[(len(x_TD), triton.cdiv(num_words, WORDS))](
        *(x_TD.view(torch.int32), rows_RD.view(torch.int32), scales_TF, scales_RF, place_TK, num_words, num_groups),
        *(*scales_TF.stride(), *scales_RF.stride()),
        GROUPS=triton.next_power_of_2(max(num_groups, 1)),
        TOP_K=place_TK.shape[1],
        WORDS=WORDS,
    )


def sum_rows(rows_RD: Tensor, place_TK: Tensor, weights_TK: Tensor) -> Tensor:
    """Return for each token the weighted sum of its rows, [T, D], added in the order of its choices.

    `place_TK` is the row of each choice, -1 for none. The sum of a token without rows is 0.
    """
    assert all(x.is_contiguous() for x in (rows_RD, place_TK, weights_TK))
    sums_TD = rows_RD.new_empty(len(place_TK), rows_RD.shape[1])
    if len(place_TK):
        add_placed[(len(place_TK), triton.cdiv(rows_RD.shape[1], CHANNELS))](
            *(rows_RD, place_TK, weights_TK, sums_TD, rows_RD.shape[1]),
            TOP_K=place_TK.shape[1],
            CHANNELS=CHANNELS,
        )
    return sums_TD


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
    """Apply RoPE in place to HEADS heads of one token. Pairs are neighbours, or HALF apart without NEIGHBOURS."""
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
    """Write the keys of HEADS heads of one token: each head's own part, then the part that all heads share."""
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    is_inside = head < num_heads
    of_own, of_shared = tl.arange(0, OWN)[None, :], tl.arange(0, SHARED)[None, :]
    key = keys + (token * num_heads + head) * (OWN + SHARED)
    tl.store(key + of_own, tl.load(own + token * token_stride + head * head_stride + of_own, is_inside), is_inside)
    rotary = tl.load(shared + token * shared_stride + of_shared)
    tl.store(key + OWN + of_shared, tl.broadcast_to(rotary, (HEADS, SHARED)), is_inside)


@triton.jit
def choose_experts(
    logits,
    bias,
    experts,
    weights,
    stride,
    factor,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    NUM_BEST: tl.constexpr,
    TOPK_GROUP: tl.constexpr,
    TOP_K: tl.constexpr,
    PLACES: tl.constexpr,
    IS_SOFTMAX: tl.constexpr,
    IS_BIASED: tl.constexpr,
    IS_NORMALISED: tl.constexpr,
):
    """Choose one token's experts, and store their numbers and weights.

    They are the TOP_K best experts in the TOPK_GROUP groups whose NUM_BEST best scores add up to most. The bias counts
    for the choice and not for the weights.
    """
    token = tl.program_id(0).to(tl.int64)
    group, member = tl.arange(0, GROUPS), tl.arange(0, SIZE)
    expert = group[:, None] * SIZE + member[None, :]
    logit = tl.load(logits + token * stride + expert)
    if IS_SOFTMAX:
        score = tl.exp(logit - tl.max(tl.max(logit, 1), 0))
        score = score / tl.sum(tl.sum(score, 1), 0)
    else:
        score = 1.0 / (1.0 + tl.exp(-logit))
    eligible = score + tl.load(bias + expert) if IS_BIASED else score
    left, worth = eligible, tl.zeros((GROUPS,), tl.float32)
    for _ in tl.static_range(NUM_BEST):
        worth += tl.max(left, 1)
        left = tl.where(member[None, :] == tl.argmax(left, 1)[:, None], float("-inf"), left)
    is_eligible = tl.zeros((GROUPS,), tl.int32)
    for _ in tl.static_range(TOPK_GROUP):
        best = tl.argmax(worth, 0)
        is_eligible = tl.where(group == best, 1, is_eligible)
        worth = tl.where(group == best, float("-inf"), worth)
    eligible = tl.where(is_eligible[:, None] == 1, eligible, float("-inf"))
    flat, number = tl.reshape(eligible, (GROUPS * SIZE,)), tl.arange(0, GROUPS * SIZE)
    scores, place = tl.reshape(score, (GROUPS * SIZE,)), tl.arange(0, PLACES)
    chosen, weight = tl.zeros((PLACES,), tl.int64), tl.zeros((PLACES,), tl.float32)
    for choice in tl.static_range(TOP_K):
        best = tl.argmax(flat, 0)
        chosen = tl.where(place == choice, best.to(tl.int64), chosen)
        weight = tl.where(place == choice, tl.sum(tl.where(number == best, scores, 0.0), 0), weight)
        flat = tl.where(number == best, float("-inf"), flat)
    if IS_NORMALISED:
        weight = weight / (tl.sum(weight, 0) + 1e-20)
    tl.store(experts + token * TOP_K + place, chosen, place < TOP_K)
    tl.store(weights + token * TOP_K + place, weight * factor, place < TOP_K)


@triton.jit
def take_turns(
    experts, slots, first, num_replicas, slots_of_pairs, num_pairs, turn, TOP_K: tl.constexpr, PAIRS: tl.constexpr
):
    """Write the slot of each of PAIRS (token, choice) pairs, as `Ops.replicas_in_turn` chooses it."""
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    is_inside = pair < num_pairs
    expert = tl.load(experts + pair, is_inside, 0)
    replica = ((pair // TOP_K).to(tl.int64) + tl.load(turn)) % tl.load(num_replicas + expert, is_inside, 1)
    place = tl.load(first + expert, is_inside, 0) + replica
    tl.store(slots_of_pairs + pair, tl.load(slots + place, is_inside, 0), is_inside)


@triton.jit
def count_pairs(slots, counts, num_pairs, num_slots, PAIRS: tl.constexpr):
    """Count the pairs of each slot in one block of PAIRS pairs."""
    block = tl.program_id(0)
    pair = block * PAIRS + tl.arange(0, PAIRS)
    slot_of_pair = tl.load(slots + pair, pair < num_pairs, -1)
    for slot in range(num_slots):
        tl.store(counts + block * num_slots + slot, tl.sum((slot_of_pair == slot).to(tl.int32), 0))


@triton.jit
def place_pairs(slots, first, places, num_pairs, num_slots, PAIRS: tl.constexpr):
    """Assign rows to one block's pairs, behind the `first` row that each slot has for this block."""
    block = tl.program_id(0)
    pair = block * PAIRS + tl.arange(0, PAIRS)
    slot_of_pair = tl.load(slots + pair, pair < num_pairs, -1)
    place = tl.full((PAIRS,), -1, tl.int64)
    for slot in range(num_slots):
        is_of_slot = (slot_of_pair == slot).to(tl.int32)
        before = tl.cumsum(is_of_slot, 0) - is_of_slot
        place = tl.where(is_of_slot == 1, tl.load(first + block * num_slots + slot) + before, place)
    tl.store(places + pair, place, pair < num_pairs)


@triton.jit
def copy_to_places(
    x,
    rows,
    scales,
    scales_of_rows,
    places,
    num_words,
    num_groups,
    token_stride,
    token_group_stride,
    row_stride,
    row_group_stride,
    GROUPS: tl.constexpr,
    TOP_K: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Copy WORDS words of one token to each of its rows. The first program copies the token's scales, too."""
    token = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)  # the first program has them all
    words = tl.load(x + token * num_words + word, word < num_words, 0)
    scale = tl.load(scales + token * token_stride + group * token_group_stride, group < num_groups, 0.0)
    for choice in tl.static_range(TOP_K):
        place = tl.load(places + token * TOP_K + choice)
        has_row = (place >= 0).to(tl.int32)
        tl.store(rows + place * num_words + word, words, word < num_words * has_row)
        of_row = scales_of_rows + place * row_stride + group * row_group_stride
        tl.store(of_row, scale, group < num_groups * has_row)


@triton.jit
def add_placed(rows, places, weights, sums, size, TOP_K: tl.constexpr, CHANNELS: tl.constexpr):
    """Write the weighted sum of one token's rows, for CHANNELS of the channels."""
    token = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    total = tl.zeros((CHANNELS,), tl.float32)
    for choice in tl.static_range(TOP_K):
        place = tl.load(places + token * TOP_K + choice)
        has_row = (place >= 0).to(tl.int32)
        weight = tl.load(weights + token * TOP_K + choice, has_row == 1, 0.0)
        row = tl.load(rows + place * size + channel, channel < size * has_row, 0.0)
        total += weight * row.to(tl.float32)
    tl.store(sums + token * size + channel, total.to(sums.dtype.element_ty), channel < size)
