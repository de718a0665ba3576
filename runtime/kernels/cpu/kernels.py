"""Compiled loops for operations that torch does slowly on one CPU thread in BF16 (`loops.py` and its neighbours).

A step that decodes few requests is many small operations. Torch takes microseconds to begin each, longer than its reads
from memory take. Each function here calls one loop instead of several operations of torch.

    matmuls of few rows     linear, gated_mlp, experts_mlp: they take as long as reading each matrix once. oneDNN,
                            which torch calls, takes longer to begin, and begins again for every expert. For more rows
                            its tiles are faster.
    many rows in FP32       wide_linear, for the gate. For FP32 inputs torch would multiply in FP32. oneDNN's matmul of
                            BF16 adds in FP32, so it differs only in the order of the sum.
    decode's attention      absorb_query, attend, up_project_values: all heads in one call, over the cache's pages
    single rows             rms_norm, rotate, causal_softmax, silu_product, choose_experts, weighted_sum: in one pass
    rows in order           sort_by_slot: by counting

`ops.py` decides when a loop is used instead of torch, the reference. Sums are in FP32. A row's result, or a request's
attention, does not depend on other rows, except in matmuls, where rounding may differ.

Loops get addresses, so each function here makes sure that its tensors, or at least their rows, are contiguous.
"""

from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "absorb_query",
    "attend",
    "causal_softmax",
    "choose_experts",
    "experts_mlp",
    "gated_mlp",
    "linear",
    "prepare",
    "rms_norm",
    "rotate",
    "silu_product",
    "sort_by_slot",
    "up_project_values",
    "weighted_sum",
    "wide_linear",
]


def wide_linear(x_RD: Tensor, w_OD: Tensor) -> Tensor:
    """Return x w^T, [R, O] in FP32. x and w hold BF16 numbers, so oneDNN may round them to BF16 without loss."""
    matmul = torch.backends.mkldnn.matmul
    precision = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        return F.linear(x_RD.float(), w_OD.float())
    finally:
        matmul.fp32_precision = precision


def linear(x_RD: Tensor, w_OD: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return x w^T, [R, O] in BF16 or FP32."""
    x_RD, y_RO = x_RD.contiguous(), torch.empty(x_RD.shape[0], w_OD.shape[0], dtype=dtype)
    _loops().linear(
        _address(x_RD), *x_RD.shape, _address(w_OD), w_OD.shape[0], _address(y_RO, dtype), dtype == torch.float32
    )
    return y_RO


def gated_mlp(x_RD: Tensor, gate_ID: Tensor, up_ID: Tensor, down_DI: Tensor) -> Tensor:
    """Return down(silu(gate x) * up x), [R, D]."""
    x_RD, y_RD = x_RD.contiguous(), torch.empty_like(x_RD, memory_format=torch.contiguous_format)
    weights = _address(gate_ID), _address(up_ID), _address(down_DI)
    _loops().gated_mlp(_address(x_RD), *x_RD.shape, *weights, gate_ID.shape[0], _address(y_RD))
    return y_RD


def experts_mlp(rows_RD: Tensor, counts_M: Tensor, gate_up_MXD: Tensor, down_MDI: Tensor) -> None:
    """Replace each slot's rows with the results of its expert's gated MLP.

    The rows [R, D] lie slot after slot; slot i has `counts_M[i]` rows. Gate and up are one matrix, [M, 2 I, D]; down is
    [M, D, I].
    """
    weights = _address(gate_up_MXD), _address(down_MDI)
    _loops().experts_mlp(
        _address(rows_RD), rows_RD.shape[1], _address(counts_M, torch.long), len(counts_M), *weights, down_MDI.shape[2]
    )


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean of x^2 + eps) * weight, [..., D]."""
    x = x if x.dim() == 2 and x.stride(1) == 1 else x.contiguous()
    y, size = torch.empty_like(x, memory_format=torch.contiguous_format), x.shape[-1]
    stride = x.stride(0) if x.dim() == 2 else size
    _loops().rms_norm(x.data_ptr(), stride, x.numel() // size, size, _address(weight_D), eps, _address(y))
    return y


def rotate(x: Tensor, cos_TX: Tensor, sin_TX: Tensor, neighbours: bool) -> None:
    """Rotate pairs of numbers in place. `x` has tokens [T, P] or their heads [T, H, P]; cos and sin are [T, P / 2].

    The pairs are neighbours, or one number from each half.
    """
    assert x.stride(-1) == 1
    num_heads, head_stride = (x.shape[1], x.stride(1)) if x.dim() == 3 else (1, 0)
    angles = _address(cos_TX, torch.float32), _address(sin_TX, torch.float32), cos_TX.shape[1]
    _loops().rotate(x.data_ptr(), x.shape[0], num_heads, x.stride(0), head_stride, *angles, neighbours)


def causal_softmax(scores_HTS: Tensor) -> Tensor:
    """Replace scores [H, T, S] with softmaxes, and return them.

    Each of the last T of S tokens sees itself and all before. Keys that a token does not see get 0.
    """
    _loops().causal_softmax(_address(scores_HTS), *scores_HTS.shape)
    return scores_HTS


def silu_product(gate_RI: Tensor, up_RI: Tensor) -> Tensor:
    """Return silu(gate) * up, [R, I]; gate and up may be parts of one tensor's rows."""
    assert gate_RI.stride(1) == up_RI.stride(1) == 1
    y_RI = torch.empty(gate_RI.shape, dtype=torch.bfloat16)
    _loops().silu_product(
        gate_RI.data_ptr(), gate_RI.stride(0), up_RI.data_ptr(), up_RI.stride(0), _address(y_RI), *y_RI.shape
    )
    return y_RI


def absorb_query(q_BHQ: Tensor, up_XL: Tensor, rope: int, value: int) -> Tensor:
    """Map queries [B, H, N + P] by the key half of `kv_b_proj` (`up_XL`) to [B, H, L + P]. P is `rope`."""
    (requests, heads, size), latent = q_BHQ.shape, up_XL.shape[1]
    q_BHQ, y_BHC = q_BHQ.contiguous(), torch.empty(requests, heads, latent + rope, dtype=torch.bfloat16)
    sizes = requests, heads, size - rope, rope, value, latent
    _loops().absorb_query(_address(q_BHQ), _address(up_XL), _address(y_BHC), *sizes)
    return y_BHC


def attend(q_BHC: Tensor, pages_JSC: Tensor, tables_BJ: Tensor, lengths_B: Tensor, latent: int, scale: float) -> Tensor:
    """Return each request's softmax(scale x q k) over its first positions, times their compressed KV: [B, H, L]."""
    assert pages_JSC.shape[1] % 4 == 0
    requests, heads, size = q_BHC.shape
    q_BHC, y_BHL = q_BHC.contiguous(), torch.empty(requests, heads, latent, dtype=torch.bfloat16)
    addresses = (
        _address(q_BHC),
        _address(pages_JSC),
        _address(tables_BJ, torch.long),
        _address(lengths_B, torch.long),
        _address(y_BHL),
    )
    sizes = requests, heads, *pages_JSC.shape[:2], tables_BJ.shape[1], latent, size
    _loops().attend(*addresses, *sizes, scale)
    return y_BHL


def up_project_values(context_BHL: Tensor, up_XL: Tensor, value: int) -> Tensor:
    """Map the heads' contexts by the value half of `kv_b_proj` (`up_XL`): [B, H x U]."""
    requests, heads, latent = context_BHL.shape
    context_BHL, y_BX = context_BHL.contiguous(), torch.empty(requests, heads * value, dtype=torch.bfloat16)
    sizes = requests, heads, up_XL.shape[0] // heads - value, value, latent
    _loops().up_project_values(_address(context_BHL), _address(up_XL), _address(y_BX), *sizes)
    return y_BX


def choose_experts(scores_TE: Tensor, num_groups: int, num_best: int, topk_group: int, top_k: int) -> Tensor:
    """Return the `top_k` best experts of each token, best first: [T, K].

    The experts are chosen from the token's `topk_group` best groups. A group is judged by the sum of its `num_best`
    best scores.
    """
    scores_TE, experts_TK = scores_TE.contiguous(), torch.empty(scores_TE.shape[0], top_k, dtype=torch.long)
    _loops().choose_experts(
        _address(scores_TE, torch.float32),
        *scores_TE.shape,
        num_groups,
        num_best,
        topk_group,
        top_k,
        _address(experts_TK, torch.long),
    )
    return experts_TK


def sort_by_slot(slots_TK: Tensor, num_slots: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort (token, choice) pairs by slot.

    Return the number of pairs of each slot [M], the pair in each row [T x K], and the row of each pair [T x K].
    """
    slots_TK, num_pairs = slots_TK.contiguous(), slots_TK.numel()
    counts_M, pair_of_row, row_of_pair = (
        torch.empty(size, dtype=torch.long) for size in (num_slots, num_pairs, num_pairs)
    )
    addresses = (
        _address(whole_numbers, torch.long) for whole_numbers in (slots_TK, counts_M, pair_of_row, row_of_pair)
    )
    _loops().sort_by_slot(*addresses, num_pairs, num_slots)
    return counts_M, pair_of_row, row_of_pair


def weighted_sum(rows_RD: Tensor, row_of_pair_TK: Tensor, weights_TK: Tensor) -> Tensor:
    """Return the weighted sum of each token's rows, in the order of its choices: [T, D]."""
    y_TD = torch.empty(row_of_pair_TK.shape[0], rows_RD.shape[1], dtype=torch.bfloat16)
    rows_RD, row_of_pair_TK, weights_TK = rows_RD.contiguous(), row_of_pair_TK.contiguous(), weights_TK.contiguous()
    sizes = rows_RD.shape[1], rows_RD.shape[0]
    _loops().weighted_sum(
        _address(rows_RD),
        *sizes,
        _address(row_of_pair_TK, torch.long),
        _address(weights_TK, torch.float32),
        *row_of_pair_TK.shape,
        _address(y_TD),
    )
    return y_TD


def prepare() -> None:
    """Load the compiled loops, or compile them, before the first step."""
    _loops()


@cache
def _loops() -> Any:
    """Return an object with all loops. The loops are imported only here, because not every process needs numba."""
    from runtime.kernels.cpu import attention_loops as cpu_attention_loops
    from runtime.kernels.cpu import choice_loops as cpu_choice_loops
    from runtime.kernels.cpu import loops as cpu_loops
    from runtime.kernels.cpu import prompt_loops as cpu_prompt_loops

    modules = cpu_loops, cpu_prompt_loops, cpu_attention_loops, cpu_choice_loops
    return SimpleNamespace(**{name: getattr(module, name) for module in modules for name in module.__all__})


def _address(x: Tensor, dtype: torch.dtype = torch.bfloat16) -> int:
    """Return the memory address of `x`, which must be contiguous and of type `dtype`."""
    assert x.dtype == dtype
    assert x.is_contiguous()
    return x.data_ptr()
