"""What KV is kept and sent in: it follows from a phase's precision."""

from typing import Literal

from planner.facts.terms import Precision

__all__ = ["KV_BYTES", "KvDtype", "kv_dtype"]

KvDtype = Literal["bf16", "fp32"]
KV_BYTES: dict[KvDtype, int] = {"bf16": 2, "fp32": 4}


def kv_dtype(precision: Precision) -> KvDtype:
    """Return the type of KV under matmuls of `precision`: DeepSeek keeps BF16 under FP8 matmuls."""
    return "fp32" if precision == "fp32" else "bf16"
