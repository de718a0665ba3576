"""Formats of single matrices, and the precision by which a spec names a checkpoint's formats together.

A format belongs to one matrix: the bits of a weight, and a scale for a block of weights. A precision is a spec's word
for a whole checkpoint: it has a format for each role, as in checkpoints with that name. Values that a phase's precision
does not quantise have data types of their own: KV by default, and results of matmuls.
"""

from dataclasses import dataclass
from typing import Literal

from planner.facts.terms import KvPrecision, Precision

KvDtype = Literal["fp8", "bf16", "fp32"]
KV_BYTES: dict[KvDtype, int] = {"fp8": 1, "bf16": 2, "fp32": 4}

Format = Literal["fp32", "bf16", "fp8", "fp8_plain", "mxfp8", "nvfp4", "mxfp4", "int4", "int4_by_32", "int4_by_64"]


@dataclass(frozen=True)
class Formats:
    """The format of each role's matrices. `modules` lists the modules whose format differs from their role's."""

    attention: Format
    output: Format  # attention's output projection
    ffn: Format  # dense layers and shared experts
    expert: Format  # routed experts
    modules: tuple[tuple[str, Format], ...] = ()

    def of(self, role: str, module: str = "") -> Format:
        """Return the format of `module` if it has its own, else the format of its `role`."""
        found: Format = dict(self.modules).get(module) or getattr(self, role)
        return found


# Precision -> its formats, as in published checkpoints.
FORMATS: dict[Precision, Formats] = {
    "fp32": Formats("fp32", "fp32", "fp32", "fp32"),
    "bf16": Formats("bf16", "bf16", "bf16", "bf16"),
    "fp8": Formats("fp8", "fp8", "fp8", "fp8"),
    "fp4": Formats("bf16", "nvfp4", "nvfp4", "nvfp4"),
    "fp8_fp4": Formats("fp8", "fp8", "fp8", "nvfp4"),
    "mxfp4": Formats("bf16", "bf16", "bf16", "mxfp4"),
    "fp8_mxfp4": Formats("fp8", "fp8", "fp8", "mxfp4"),
    "w4a8": Formats("fp8", "fp8", "fp8", "int4"),
    "w4a16": Formats("bf16", "bf16", "bf16", "int4_by_32"),
}


@dataclass(frozen=True)
class Quantisation:
    """A checkpoint's quantisation: the precision that a spec gives for it, and a description in words."""

    precision: Precision
    words: str
    head: Format | None = None  # format of the output head, if it is quantised too
    said_in: str = "quantization_config"  # where it was read: a key of config.json, or a file beside that
    other_method: str | None = None  # a quant_method that is not the usual one of the precision
    kv: KvPrecision | None = None  # precision for KV that the checkpoint gives


# precision -> the usual quant_method of its checkpoints, which is also the engines' option
METHODS: dict[Precision, str] = {
    "fp8": "fp8",
    "fp4": "modelopt",
    "fp8_fp4": "modelopt",
    "mxfp4": "mxfp4",
    "fp8_mxfp4": "fp8",
    "w4a16": "compressed-tensors",
}

UNQUANTISED = Quantisation("bf16", "BF16")
FP8 = Quantisation("fp8", "FP8 in blocks of 128 x 128")
NVFP4 = Quantisation("fp4", "NVFP4")
FP8_NVFP4 = Quantisation("fp8_fp4", "NVFP4 experts beside FP8")
W4AFP8 = Quantisation("w4a8", "W4AFP8")
MXFP4 = Quantisation("mxfp4", "MXFP4 experts beside BF16")
FP8_MXFP4 = Quantisation("fp8_mxfp4", "MXFP4 experts beside FP8")
W4A16 = Quantisation("w4a16", "INT4 experts by 32 beside BF16")
KNOWN = (FP8, NVFP4, FP8_NVFP4, W4AFP8, MXFP4, FP8_MXFP4, W4A16)


def kv_dtype(precision: Precision, kv_precision: KvPrecision | None = None) -> KvDtype:
    """Return the data type of KV: `kv_precision` if given, else FP32 in fp32 and BF16 in all other precisions."""
    return kv_precision or ("fp32" if precision == "fp32" else "bf16")


def wide_bytes(precision: Precision) -> int:
    """Return the bytes of a value that is not quantised, such as a matmul's result: 4 for fp32, else 2."""
    return 4 if precision == "fp32" else 2
