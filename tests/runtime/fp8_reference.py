"""FP8 one number at a time, in float64: what `runtime/kernels/fp8.py` must equal, written from the format alone.

A value of e4m3 with exponent bits e and mantissa bits m is m * 2^-9 if e is 0, else (8 + m) * 2^(e - 10); the code
0x7F is not a number, so 448 is the largest. Between two values the nearer one is taken, in the middle the even one.
"""

import math
import struct
from bisect import bisect_left

import torch

BLOCK = 128
VALUES = [m * 2.0**-9 if e == 0 else (8 + m) * 2.0 ** (e - 10) for e in range(16) for m in range(8)][:-1]


def float32(value):
    """The FP32 number nearest to `value`, as FP32 arithmetic rounds a quotient or product."""
    return struct.unpack("f", struct.pack("f", value))[0]


def nearest_code(value):
    """The byte of the e4m3 number nearest to `value`."""
    sign, magnitude = 128 if math.copysign(1, value) < 0 else 0, abs(value)
    above = min(bisect_left(VALUES, magnitude), len(VALUES) - 1)
    below = max(above - 1, 0)
    to_below, to_above = magnitude - VALUES[below], VALUES[above] - magnitude
    if above == below or to_above < to_below or (to_above == to_below and above % 2 == 0):
        return sign | above
    return sign | below


def code_value(code):
    """Return the value that a byte stands for."""
    return -VALUES[code - 128] if code >= 128 else VALUES[code]


def quantise_block(block, power_of_two=False):
    """A block of numbers, in any order: (their codes, the scale)."""
    scale = float32(max(float32(1e-4), *map(abs, block)) / 448)
    if power_of_two:
        scale = next(2.0**exponent for exponent in range(-149, 128) if 2.0**exponent >= scale)
    return [nearest_code(float32(value / scale)) for value in block], scale


def quantise_rows(x, power_of_two=False):
    """[R][D] codes and [R][D / 128] scales of lists of rows."""
    rows = [
        [quantise_block(row[start : start + BLOCK], power_of_two) for start in range(0, len(row), BLOCK)] for row in x
    ]
    return [[code for codes, _ in row for code in codes] for row in rows], [[scale for _, scale in row] for row in rows]


def quantise_matrix(w):
    """[N][K] codes and [N / 128][K / 128] scales."""
    codes = [[0] * len(w[0]) for _ in w]
    scales = []
    for top in range(0, len(w), BLOCK):
        scales.append([])
        for left in range(0, len(w[0]), BLOCK):
            places = [
                (n, k) for n in range(top, min(top + BLOCK, len(w))) for k in range(left, min(left + BLOCK, len(w[0])))
            ]
            found, scale = quantise_block([w[n][k] for n, k in places])
            scales[-1].append(scale)
            for (n, k), code in zip(places, found, strict=True):
                codes[n][k] = code
    return codes, scales


def product(x, w):
    """x W^T of FP32 tensors in float64, both quantised first."""
    return _rows_in_float64(x) @ matrix_in_float64(w).T


def matrix_in_float64(w):
    """A matrix after it was in FP8."""
    codes, scales = quantise_matrix(w.tolist())
    return _float64(codes, lambda n, k: scales[n // BLOCK][k // BLOCK])


def _rows_in_float64(x):
    codes, scales = quantise_rows(x.tolist())
    return _float64(codes, lambda r, d: scales[r][d // BLOCK])


def _float64(codes, scale_of):
    values = [[code_value(code) * scale_of(n, k) for k, code in enumerate(row)] for n, row in enumerate(codes)]
    return torch.tensor(values, dtype=torch.float64)
