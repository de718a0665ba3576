"""What a checkpoint keeps its matrices in, as its `quantization_config` says, and the precision that a spec calls it.

Source of the keys: the files that `published.json` of `planner/families` names, and NVIDIA's and vLLM's writers,
github.com/NVIDIA/Model-Optimizer 0bb92910 examples/deepseek/ptq.py and the compressed-tensors files among those.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from planner.facts.terms import Precision

__all__ = ["FORMATS", "KNOWN", "UNQUANTISED", "W4A16", "Format", "Formats", "Quantisation", "quantisation_of"]

Format = Literal["fp32", "bf16", "fp8", "nvfp4", "mxfp4", "int4", "int4_by_32"]


@dataclass(frozen=True)
class Formats:
    """What matrices are kept in, by role."""

    attention: Format
    output: Format  # of attention
    ffn: Format  # of dense layers and shared experts
    expert: Format  # routed


# As the checkpoints are made that are named so.
FORMATS: dict[Precision, Formats] = {
    "fp32": Formats("fp32", "fp32", "fp32", "fp32"),
    "bf16": Formats("bf16", "bf16", "bf16", "bf16"),
    "fp8": Formats("fp8", "fp8", "fp8", "fp8"),
    "fp4": Formats("bf16", "nvfp4", "nvfp4", "nvfp4"),
    "mxfp4": Formats("bf16", "bf16", "bf16", "mxfp4"),
    "fp8_mxfp4": Formats("fp8", "fp8", "fp8", "mxfp4"),
    "w4a8": Formats("fp8", "fp8", "fp8", "int4"),
    "w4a16": Formats("bf16", "bf16", "bf16", "int4_by_32"),
}


@dataclass(frozen=True)
class Quantisation:
    """How a checkpoint is quantised, as a spec says it and in words for people."""

    precision: Precision
    words: str


UNQUANTISED = Quantisation("bf16", "BF16")
FP8 = Quantisation("fp8", "FP8 in blocks of 128 x 128")
NVFP4 = Quantisation("fp4", "NVFP4")
W4AFP8 = Quantisation("w4a8", "W4AFP8")
MXFP4 = Quantisation("mxfp4", "MXFP4 experts beside BF16")
FP8_MXFP4 = Quantisation("fp8_mxfp4", "MXFP4 experts beside FP8")
W4A16 = Quantisation("w4a16", "INT4 experts by 32 beside BF16")
KNOWN = (FP8, NVFP4, W4AFP8, MXFP4, FP8_MXFP4, W4A16)


def quantisation_of(config: Mapping[str, Any]) -> Quantisation | None:
    """Return what `config`, a checkpoint's config.json, says; None where no precision of a spec says that."""
    said = config.get("quantization_config")
    if not said:
        return UNQUANTISED
    if not isinstance(said, Mapping):
        return None
    method = said.get("quant_method")
    if method == "fp8":
        return _fp8(said, said.get("expert_dtype", config.get("expert_dtype")))
    if method == "modelopt" and said.get("quant_algo") == "NVFP4":
        return NVFP4
    if method == "compressed-tensors":
        return W4A16 if _has_int4_experts(said) else None
    return {"w4afp8": W4AFP8, "mxfp4": MXFP4}.get(method if isinstance(method, str) else "")


def _fp8(said: Mapping[str, Any], experts: Any) -> Quantisation | None:
    """Return FP8 in blocks, with experts like the rest or in MXFP4; None for others.

    Files with experts in NVFP4 have a `moe_quant_algo`.
    """
    if said.get("weight_block_size") != [128, 128] or said.get("moe_quant_algo"):
        return None
    return FP8_MXFP4 if experts == "fp4" else FP8 if experts is None else None


def _has_int4_experts(said: Mapping[str, Any]) -> bool:
    """Return whether routed experts are in INT4 by 32 weights, and all else is as it was."""
    groups, left_out = said.get("config_groups"), said.get("ignore")
    if not isinstance(groups, Mapping) or len(groups) != 1 or not isinstance(left_out, list):
        return False
    (group,) = groups.values()
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping) or group.get("input_activations"):
        return False
    is_int4 = (weights.get("num_bits"), weights.get("type"), weights.get("group_size")) == (4, "int", 32)
    return is_int4 and all(
        any(part in each for each in left_out if isinstance(each, str)) for part in ("self_attn", "shared_experts")
    )
