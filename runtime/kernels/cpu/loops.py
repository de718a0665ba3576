"""Matmuls of few rows, the MLPs that are made of them, and the norm, as compiled loops.

`kernels.py` says what they compute and when. `numbers.py` has numbers, arrays and compilation. Parameters are addresses
and sizes. Weights and rows are BF16; values between two matmuls stay in FP32.
"""

from typing import Any

import numpy as np

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

__all__ = ["experts_mlp", "gated_mlp", "linear", "matmul", "narrow", "rms_norm", "widen"]


@part("void(u2[:, ::1], f4[:, ::1])")
def widen(x_RD: Any, wide_RD: Any) -> None:
    """Write the BF16 numbers of `x_RD` to `wide_RD` as FP32."""
    for r in range(len(x_RD)):
        for d in range(x_RD.shape[1]):
            wide_RD[r, d] = bf16_to_fp32(x_RD[r, d])


@part("void(f4[:, ::1], u2[:, ::1])")
def narrow(wide_RD: Any, y_RD: Any) -> None:
    """Write the FP32 numbers of `wide_RD` to `y_RD` as BF16."""
    for r in range(len(wide_RD)):
        for d in range(wide_RD.shape[1]):
            y_RD[r, d] = fp32_to_bf16(wide_RD[r, d])


@part("void(f4[::1], u2[:, ::1], f4[::1])")
def _multiply_row(x_D: Any, w_OD: Any, y_O: Any) -> None:
    """Compute y = w x, four sums at a time: each read of x serves four sums, and no sum waits for another."""
    num_sums, size = w_OD.shape
    n = 0
    while n + 4 <= num_sums:
        sum_0 = sum_1 = sum_2 = sum_3 = np.float32(0)
        for d in range(size):
            x = x_D[d]
            sum_0 += bf16_to_fp32(w_OD[n, d]) * x
            sum_1 += bf16_to_fp32(w_OD[n + 1, d]) * x
            sum_2 += bf16_to_fp32(w_OD[n + 2, d]) * x
            sum_3 += bf16_to_fp32(w_OD[n + 3, d]) * x
        y_O[n], y_O[n + 1], y_O[n + 2], y_O[n + 3] = sum_0, sum_1, sum_2, sum_3
        n += 4
    while n < num_sums:
        sum_0 = np.float32(0)
        for d in range(size):
            sum_0 += bf16_to_fp32(w_OD[n, d]) * x_D[d]
        y_O[n] = sum_0
        n += 1


@part("void(f4[:, ::1], u2[:, ::1], f4[:, ::1])")
def matmul(x_RD: Any, w_OD: Any, y_RO: Any) -> None:
    """Compute y = x w^T: a row of w is read once for four rows of x, then once for two, then for one."""
    num_rows, size = x_RD.shape
    if num_rows == 1:
        _multiply_row(x_RD[0], w_OD, y_RO[0])
        return
    for n in range(len(w_OD)):
        r = 0
        while r + 4 <= num_rows:
            sum_0 = sum_1 = sum_2 = sum_3 = np.float32(0)
            for d in range(size):
                w = bf16_to_fp32(w_OD[n, d])
                sum_0 += w * x_RD[r, d]
                sum_1 += w * x_RD[r + 1, d]
                sum_2 += w * x_RD[r + 2, d]
                sum_3 += w * x_RD[r + 3, d]
            y_RO[r, n], y_RO[r + 1, n], y_RO[r + 2, n], y_RO[r + 3, n] = sum_0, sum_1, sum_2, sum_3
            r += 4
        if r + 2 <= num_rows:
            sum_0 = sum_1 = np.float32(0)
            for d in range(size):
                w = bf16_to_fp32(w_OD[n, d])
                sum_0 += w * x_RD[r, d]
                sum_1 += w * x_RD[r + 1, d]
            y_RO[r, n], y_RO[r + 1, n] = sum_0, sum_1
            r += 2
        if r < num_rows:
            sum_0 = np.float32(0)
            for d in range(size):
                sum_0 += bf16_to_fp32(w_OD[n, d]) * x_RD[r, d]
            y_RO[r, n] = sum_0


@loop
def linear(x: Address, num_rows: int, size: int, w: Address, num_sums: int, y: Address, is_y_wide: bool) -> None:
    """Compute y = x w^T for x [rows, size] and w [sums, size].

    y is [rows, sums], in FP32 if `is_y_wide`, else in BF16.
    """
    x_RD, w_OD = view_bf16(x, (num_rows, size)), view_bf16(w, (num_sums, size))
    wide_RD = np.empty((num_rows, size), np.float32)
    widen(x_RD, wide_RD)
    if is_y_wide:
        matmul(wide_RD, w_OD, view_fp32(y, (num_rows, num_sums)))
    else:
        y_RO = np.empty((num_rows, num_sums), np.float32)
        matmul(wide_RD, w_OD, y_RO)
        narrow(y_RO, view_bf16(y, (num_rows, num_sums)))


@part("void(u2[:, ::1], u2[:, ::1], u2[:, ::1], u2[:, ::1], u2[:, ::1])")
def _gated_mlp(x_RD: Any, gate_ID: Any, up_ID: Any, down_DI: Any, y_RD: Any) -> None:
    """Compute y = down(silu(gate x) * up x); y may be x."""
    shape_RD, shape_RI = x_RD.shape, (len(x_RD), len(gate_ID))
    wide_RD = np.empty(shape_RD, np.float32)
    gate_RI, up_RI = np.empty(shape_RI, np.float32), np.empty(shape_RI, np.float32)
    widen(x_RD, wide_RD)
    matmul(wide_RD, gate_ID, gate_RI)
    matmul(wide_RD, up_ID, up_RI)
    for r in range(len(gate_RI)):
        for i in range(gate_RI.shape[1]):
            gate_RI[r, i] = gate_RI[r, i] / (np.float32(1) + exp(-gate_RI[r, i])) * up_RI[r, i]
    matmul(gate_RI, down_DI, wide_RD)
    narrow(wide_RD, y_RD)


@loop
def gated_mlp(
    x: Address, num_rows: int, size: int, gate: Address, up: Address, down: Address, width: int, y: Address
) -> None:
    """Compute y = down(silu(gate x) * up x).

    x and y are [rows, size], gate and up [width, size], down [size, width].
    """
    gate_ID, up_ID = view_bf16(gate, (width, size)), view_bf16(up, (width, size))
    down_DI = view_bf16(down, (size, width))
    _gated_mlp(view_bf16(x, (num_rows, size)), gate_ID, up_ID, down_DI, view_bf16(y, (num_rows, size)))


@loop
def experts_mlp(
    rows: Address, size: int, counts: Address, num_slots: int, gate_up: Address, down: Address, width: int
) -> None:
    """Replace each slot's rows with the results of its expert's gated MLP.

    `rows` [rows, size] lie slot after slot; `counts` has each slot's number of rows. `gate_up` is [slots, 2 width,
    size], `down` [slots, size, width].
    """
    counts_M = view_integers(counts, (num_slots,))
    rows_RD = view_bf16(rows, (counts_M.sum(), size))
    gate_up_MXD, down_MDI = view_bf16(gate_up, (num_slots, 2 * width, size)), view_bf16(down, (num_slots, size, width))
    first = 0
    for slot in range(num_slots):
        if counts_M[slot]:
            own_RD = rows_RD[first : first + counts_M[slot]]
            _gated_mlp(own_RD, gate_up_MXD[slot, :width], gate_up_MXD[slot, width:], down_MDI[slot], own_RD)
        first += counts_M[slot]


@loop
def rms_norm(x: Address, stride: int, num_rows: int, size: int, weight: Address, eps: float, y: Address) -> None:
    """Write the RMS norm of each row of x, scaled by `weight` [size], to y [rows, size].

    The rows of x are `stride` numbers apart.
    """
    x_RX, weight_D, y_RD = view_bf16(x, (num_rows, stride)), view_bf16(weight, (size,)), view_bf16(y, (num_rows, size))
    for r in range(num_rows):
        squares = np.float32(0)
        for d in range(size):
            x_d = bf16_to_fp32(x_RX[r, d])
            squares += x_d * x_d
        scale = np.float32(1 / np.sqrt(squares / size + eps))
        for d in range(size):
            y_RD[r, d] = fp32_to_bf16(bf16_to_fp32(x_RX[r, d]) * scale * bf16_to_fp32(weight_D[d]))
