"""Types for the words of specs, plans and launch files: phases, precisions, overlaps, devices, engines and others."""

from typing import Literal

Phase = Literal["prefill", "decode", "mixed"]
PHASES: tuple[Phase, ...] = ("prefill", "decode", "mixed")  # a spec has the first two, or the third
Precision = Literal["fp8", "bf16", "fp32", "fp4", "fp8_fp4", "mxfp4", "fp8_mxfp4", "w4a8", "w4a16"]
KvPrecision = Literal["bf16", "fp8"]
AttentionPrecision = Literal["bf16", "fp8"]
Overlap = Literal["none", "dual_batch", "five_stage"]
Coverage = Literal["none", "node", "rack"]
Device = Literal["cpu", "cuda"]  # as PyTorch calls it; ROCm's is `cuda` too
EngineName = Literal["tidemill", "sglang", "vllm"]
SplitRule = Literal["equal", "local_first", "first_on_node"]  # which of an expert's replicas a token goes to
