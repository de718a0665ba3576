"""What a checkpoint keeps its matrices in, as its `quantization_config` says, and the precision that a spec calls it.

Source of the keys: the files that `published.json` of `planner/families` names, and NVIDIA's and vLLM's writers,
github.com/NVIDIA/Model-Optimizer 0bb92910 examples/deepseek/ptq.py and the compressed-tensors files among those.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from planner.facts.terms import Precision

__all__ = ["FORMATS", "KNOWN", "UNQUANTISED", "Format", "Formats", "Quantisation", "quantisation_of"]

Format = Literal["fp32", "bf16", "fp8", "nvfp4", "mxfp4", "int4", "int4_by_32"]


@dataclass(frozen=True)
class Formats:
    """What matrices are kept in, by role."""

    attention: Format
    output: Format  # of attention
    ffn: Format  # of dense layers and shared experts
    expert: Format  # routed


# As the checkpoints are made that are named so; a checkpoint may have formats of its own under one of the names.
FORMATS: dict[Precision, Formats] = {
    "fp32": Formats("fp32", "fp32", "fp32", "fp32"),
    "bf16": Formats("bf16", "bf16", "bf16", "bf16"),
    "fp8": Formats("fp8", "fp8", "fp8", "fp8"),
    "fp4": Formats("bf16", "nvfp4", "nvfp4", "nvfp4"),
    "w4a8": Formats("fp8", "fp8", "fp8", "int4"),
}


@dataclass(frozen=True)
class Quantisation:
    """How a checkpoint is quantised, in a spec's word, by role, and in words for people."""

    precision: Precision = "bf16"
    formats: Formats = FORMATS["bf16"]
    words: str = "BF16"

    def formats_in(self, precision: Precision) -> Formats:
        """Return the formats of `precision`: the checkpoint's own where it is in that, else the usual ones."""
        return self.formats if precision == self.precision else FORMATS[precision]


UNQUANTISED = Quantisation()
FP8 = Quantisation("fp8", FORMATS["fp8"], "FP8 in blocks of 128 x 128")
NVFP4 = Quantisation("fp4", FORMATS["fp4"], "NVFP4")
W4AFP8 = Quantisation("w4a8", FORMATS["w4a8"], "W4AFP8")
KNOWN = (FP8, NVFP4, W4AFP8)


def quantisation_of(config: Mapping[str, Any]) -> Quantisation | None:
    """Return what `config`, a checkpoint's config.json, says; None where no precision of a spec says that."""
    said = config.get("quantization_config")
    if not said:
        return UNQUANTISED
    return next((each for each in KNOWN if isinstance(said, Mapping) and _is(each, said)), None)


def _is(kind: Quantisation, said: Mapping[str, Any]) -> bool:
    method = said.get("quant_method")
    if kind is FP8:
        return method == "fp8" and said.get("weight_block_size") == [128, 128]
    if kind is NVFP4:
        return method == "modelopt" and said.get("quant_algo") == "NVFP4"
    return method == "w4afp8"
