"""The parts of the compiled loops (`loops.py` and its neighbours): numbers, arrays, compilation by numba.

    numbers    numba has no BF16. A BF16 is the upper half of an FP32, so its bits shifted up are exactly its value:
               `bf16_to_fp32` costs one instruction. `fp32_to_bf16` rounds to the nearest, ties to even.
               `exp` is a polynomial, because the library's would be called for one number at a time.
    arrays     A loop gets addresses and sizes, and makes its arrays itself. torch and numpy take longer to make one
               from a tensor than many a loop takes to run. The caller is responsible for type, order and size.
    compiled   `loop` compiles a function when its module is first imported and keeps the code in `__pycache__`. No
               compiler is needed where it installs. Where neither that folder nor the user's cache folder can be
               written, every process compiles anew.

LLVM turns all this into vector instructions. On Intel's cores it would use only half of an AVX-512 vector, because the
first such cores lowered their clock for whole vectors. With whole vectors, decode of one request took 12 to 20 % less
time (Xeon with AMX, 2026), so the loops ask for them.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

__all__ = [
    "LAST_INDEX",
    "NO_KEY",
    "Address",
    "bf16_to_fp32",
    "exp",
    "fp32_to_bf16",
    "key",
    "larger",
    "loop",
    "part",
    "view_bf16",
    "view_fp32",
    "view_integers",
]

Address = int  # of a tensor's first number; the caller makes sure of its type, order and size

SUMS_IN_ANY_ORDER = {"reassoc", "contract", "nsz"}  # otherwise a sum would add one number at a time
OPTIONS: dict[str, Any] = {"fastmath": SUMS_IN_ANY_ORDER, "error_model": "numpy"}
TYPES = {int: "i8", float: "f8", bool: "b1"}

FEATURES = get_host_cpu_features()
if "+avx512f" in FEATURES and numba.config.CPU_FEATURES is None:  # or the user's setting
    numba.config.CPU_FEATURES = f"{FEATURES},-prefer-256-bit"

LOG2_E = np.float32(1.4426950408889634)
LN_2 = np.float32(0.6931471805599453)
LAST_INDEX = 2**31 - 1  # the largest that a key has room for
NO_KEY = -(2**63)  # less than any key
MIN_LOG, LARGEST_LOG = np.float32(-87.3), np.float32(88.3)  # of FP32's normal numbers


@intrinsic  # type: ignore[untyped-decorator]
def bf16_to_fp32(typing: Any, bits: Any) -> Any:
    """Return the value of a BF16 as an FP32. `bits` are the BF16's 16 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits_32 = builder.zext(arguments[0], ir.IntType(32))
        return builder.bitcast(builder.shl(bits_32, ir.Constant(bits_32.type, 16)), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic  # type: ignore[untyped-decorator]
def fp32_to_bf16(typing: Any, value: Any) -> Any:
    """Return the 16 bits of the BF16 nearest to the FP32 `value`.

    Rounding adds half of the last place, less one bit if a tie must go to the even number below.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], ir.IntType(32))
        sixteen = ir.Constant(bits.type, 16)
        is_odd = builder.and_(builder.lshr(bits, sixteen), ir.Constant(bits.type, 1))
        rounded = builder.add(builder.add(bits, ir.Constant(bits.type, 0x7FFF)), is_odd)
        return builder.trunc(builder.lshr(rounded, sixteen), ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def _power_of_two(typing: Any, exponent: Any) -> Any:
    """Return 2^exponent as an FP32, made from its bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        biased = builder.add(arguments[0], ir.Constant(ir.IntType(32), 127))
        return builder.bitcast(builder.shl(biased, ir.Constant(biased.type, 23)), ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic  # type: ignore[untyped-decorator]
def larger(typing: Any, x: Any, y: Any) -> Any:
    """Return the larger of two FP32, or NaN if one is NaN. LLVM makes no vector instructions of Python's `max`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.FloatType()
        kind = ir.FunctionType(number, [number, number])
        return builder.call(builder.module.declare_intrinsic("llvm.maximum", [number], kind), arguments)

    return types.float32(types.float32, types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def key(typing: Any, value: Any, index: Any) -> Any:
    """Return an integer that is larger for a larger FP32 and, among equals, for a smaller index.

    The integer is the FP32's bits, then LAST_INDEX - index. Vector instructions find the largest integer. For negative
    FP32, the bits count the other way round.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, index = arguments
        bits = builder.bitcast(value, ir.IntType(32))
        turned = builder.and_(builder.ashr(bits, ir.Constant(bits.type, 31)), ir.Constant(bits.type, LAST_INDEX))
        high = builder.shl(builder.sext(builder.xor(bits, turned), index.type), ir.Constant(index.type, 32))
        return builder.or_(high, builder.sub(ir.Constant(index.type, LAST_INDEX), index))

    return types.int64(types.float32, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(typing: Any, address: Any) -> Any:
    """Return an address as the pointer type of numba's arrays."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.intp), generate


@numba.njit(**OPTIONS)  # type: ignore[untyped-decorator]
def exp(x: Any) -> Any:
    """Return e^x, with a relative error below 1e-6.

    The formula is 2^n e^r with |r| <= ln 2 / 2, and the series of e^r ends at r^6 / 720. Results beyond FP32's normal
    numbers become the smallest or the largest of them. NaN stays NaN.
    """
    x = MIN_LOG if x < MIN_LOG else x
    x = LARGEST_LOG if x > LARGEST_LOG else x
    n = np.floor(x * LOG2_E + np.float32(0.5))
    r = x - n * LN_2
    series = r * np.float32(1 / 720) + np.float32(1 / 120)
    series = (series * r + np.float32(1 / 24)) * r + np.float32(1 / 6)
    series = ((series * r + np.float32(0.5)) * r + np.float32(1)) * r + np.float32(1)
    return series * _power_of_two(np.int32(n))


@numba.njit(**OPTIONS)  # type: ignore[untyped-decorator]
def view_bf16(address: Address, shape: Any) -> Any:
    """View the BF16 numbers at `address` as uint16 of `shape`. Nothing is copied."""
    return numba.carray(_pointer(address), shape, np.uint16)


@numba.njit(**OPTIONS)  # type: ignore[untyped-decorator]
def view_fp32(address: Address, shape: Any) -> Any:
    """View the FP32 numbers at `address` as an array of `shape`. Nothing is copied."""
    return numba.carray(_pointer(address), shape, np.float32)


@numba.njit(**OPTIONS)  # type: ignore[untyped-decorator]
def view_integers(address: Address, shape: Any) -> Any:
    """View the 64-bit integers at `address` as an array of `shape`. Nothing is copied."""
    return numba.carray(_pointer(address), shape, np.int64)


def loop(function: Any) -> Any:
    """Return `function`, compiled for its annotated parameters: Address, int, float or bool."""
    return _compile(function, "void({})".format(", ".join(TYPES[kind] for kind in _kinds(function))))


def part(signature: str | list[str]) -> Any:
    """Return a decorator that compiles a function of arrays, once for each signature.

    The loops of the same module call such functions.
    """
    return lambda function: _compile(function, signature)


def _kinds(function: Any) -> list[type]:
    return [kind for name, kind in function.__annotations__.items() if name != "return"]


def _compile(function: Any, signature: str | list[str]) -> Any:
    try:
        return numba.njit(signature, cache=True, **OPTIONS)(function)
    except RuntimeError:  # there is no folder for the cache
        return numba.njit(signature, **OPTIONS)(function)
