"""The words that specs, plans and launch files share: phases, precisions, ways of overlapping, failure domains,
devices.
"""

from typing import Literal

__all__ = ["PHASES", "Coverage", "Device", "KvPrecision", "Overlap", "Phase", "Precision"]

Phase = Literal["prefill", "decode", "mixed"]
PHASES: tuple[Phase, ...] = ("prefill", "decode", "mixed")  # a spec has the first two, or the third
Precision = Literal["fp8", "bf16", "fp32", "fp4", "w4a8"]
KvPrecision = Literal["bf16", "fp8"]
Overlap = Literal["none", "dual_batch", "five_stage"]
Coverage = Literal["none", "node", "rack"]
Device = Literal["cpu", "cuda"]  # as PyTorch calls it; ROCm's is `cuda` too
