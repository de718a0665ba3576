"""The data types of values that a phase's precision does not quantise: KV by default, and results of matmuls."""

from typing import Literal

from planner.facts.terms import KvPrecision, Precision

KvDtype = Literal["fp8", "bf16", "fp32"]
KV_BYTES: dict[KvDtype, int] = {"fp8": 1, "bf16": 2, "fp32": 4}


def kv_dtype(precision: Precision, kv_precision: KvPrecision | None = None) -> KvDtype:
    """Return the data type of KV: `kv_precision`, else FP32 in fp32, else BF16, as DeepSeek has beside FP8 matmuls."""
    return kv_precision or ("fp32" if precision == "fp32" else "bf16")


def wide_bytes(precision: Precision) -> int:
    """Return the bytes of a value that is not quantised, such as a matmul's result: BF16, or FP32 in fp32."""
    return 4 if precision == "fp32" else 2
