"""The loops of `cpu_kernels.py`, compiled by numba when this module is first imported, and kept in `__pycache__` then.

numba knows no BF16. A number in BF16 is the upper half of one in FP32, so its bits shifted up are its value, exactly:
`_widened`, which costs an instruction, where LLVM makes the loop of it one over whole vectors. `_narrowed` rounds to
the nearest, to the even one of two.

It knows arrays, not tensors. No compiler is needed where it installs. Where neither this folder nor the user's cache
folder can be written, every process compiles anew, which takes some two seconds.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = ["choose_experts", "grouped_matmul", "rms_norm"]

SUMS_IN_ANY_ORDER = {"reassoc", "contract", "nsz"}  # else a sum would be one number at a time


@intrinsic  # type: ignore[untyped-decorator]
def _widened(typing: Any, bits: Any) -> Any:
    """FP32 from the bits of a BF16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits_32 = builder.zext(arguments[0], ir.IntType(32))
        return builder.bitcast(builder.shl(bits_32, ir.Constant(bits_32.type, 16)), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic  # type: ignore[untyped-decorator]
def _narrowed(typing: Any, value: Any) -> Any:
    """The bits of the BF16 next to a FP32: half of the last place is added, less a bit where that is a tie to even."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], ir.IntType(32))
        sixteen = ir.Constant(bits.type, 16)
        is_odd = builder.and_(builder.lshr(bits, sixteen), ir.Constant(bits.type, 1))
        rounded = builder.add(builder.add(bits, ir.Constant(bits.type, 0x7FFF)), is_odd)
        return builder.trunc(builder.lshr(rounded, sixteen), ir.IntType(16))

    return types.uint16(types.float32), generate


def _matmul(x_RD: Any, w_ND: Any, y_RN: Any) -> None:
    """y = x w^T: a row of w is read once for four rows of x, then once for two, then for one."""
    num_rows, size = x_RD.shape
    for n in range(len(w_ND)):
        r = 0
        while r + 4 <= num_rows:
            sum_0 = sum_1 = sum_2 = sum_3 = np.float32(0)
            for d in range(size):
                w = _widened(w_ND[n, d])
                sum_0 += w * x_RD[r, d]
                sum_1 += w * x_RD[r + 1, d]
                sum_2 += w * x_RD[r + 2, d]
                sum_3 += w * x_RD[r + 3, d]
            y_RN[r, n], y_RN[r + 1, n], y_RN[r + 2, n], y_RN[r + 3, n] = sum_0, sum_1, sum_2, sum_3
            r += 4
        if r + 2 <= num_rows:
            sum_0 = sum_1 = np.float32(0)
            for d in range(size):
                w = _widened(w_ND[n, d])
                sum_0 += w * x_RD[r, d]
                sum_1 += w * x_RD[r + 1, d]
            y_RN[r, n], y_RN[r + 1, n] = sum_0, sum_1
            r += 2
        if r < num_rows:
            sum_0 = np.float32(0)
            for d in range(size):
                sum_0 += _widened(w_ND[n, d]) * x_RD[r, d]
            y_RN[r, n] = sum_0


def _grouped_matmul(x_RD: Any, counts_S: Any, w_SND: Any, y_RN: Any) -> None:
    """x: rows of BF16 bits, `counts_S` of each slot in turn; w: a matrix of BF16 bits for each slot; y: FP32."""
    wide_RD = np.empty((counts_S.max(), x_RD.shape[1]), np.float32)
    first = 0
    for slot in range(len(counts_S)):
        count = counts_S[slot]
        for r in range(count):
            for d in range(x_RD.shape[1]):
                wide_RD[r, d] = _widened(x_RD[first + r, d])
        _matmul(wide_RD[:count], w_SND[slot], y_RN[first : first + count])
        first += count


def _rms_norm(x_RD: Any, weight_D: Any, eps: float, y_RD: Any) -> None:
    """All but `eps` are BF16 bits."""
    num_rows, size = x_RD.shape
    for r in range(num_rows):
        squares = np.float32(0)
        for d in range(size):
            x = _widened(x_RD[r, d])
            squares += x * x
        scale = np.float32(1 / np.sqrt(squares / size + eps))
        for d in range(size):
            y_RD[r, d] = _narrowed(_widened(x_RD[r, d]) * scale * _widened(weight_D[d]))


def _choose_experts(scores_TE: Any, num_groups: int, num_best: int, topk_group: int, experts_TK: Any) -> None:
    """Of equals, the first is the best."""
    num_tokens, num_experts = scores_TE.shape
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
        for k in range(experts_TK.shape[1]):
            experts_TK[t, k] = _take_best(left_E)


def _take_best(values: Any) -> int:
    """Where the largest is, which is then no more."""
    best = 0
    for place in range(1, len(values)):
        if values[place] > values[best]:
            best = place
    values[best] = -np.inf
    return best


def _compiled(function: Any, signature: str) -> Any:
    options: dict[str, Any] = {"fastmath": SUMS_IN_ANY_ORDER, "error_model": "numpy"}
    try:
        return numba.njit(signature, cache=True, **options)(function)
    except RuntimeError:  # nowhere to keep it
        return numba.njit(signature, **options)(function)


_matmul = _compiled(_matmul, "void(f4[:, ::1], u2[:, ::1], f4[:, ::1])")
grouped_matmul = _compiled(_grouped_matmul, "void(u2[:, ::1], i8[::1], u2[:, :, ::1], f4[:, ::1])")
rms_norm = _compiled(_rms_norm, "void(u2[:, ::1], u2[::1], f8, u2[:, ::1])")
_take_best = _compiled(_take_best, "i8(f4[::1])")
choose_experts = _compiled(_choose_experts, "void(f4[:, ::1], i8, i8, i8, i8[:, ::1])")
