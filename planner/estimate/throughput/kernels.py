"""What kernels reach on a kind of GPU: shares of its nominal rates, and times that no size makes shorter.

The constants are fitted, kind by kind, to measured tables of operators (`kernels.json`, which
`tests/benchmarks/fit_kernels.py` writes: it has residuals and provenance beside each). A GPU without tables has those
of the reference kind, as shares of its own rates: its times are scaled, not measured. Where its large matmuls are known
to reach less of the nominal rate than the reference's, all of its matmuls are taken to (`matmuls`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any, Literal

__all__ = ["MATMULS", "Kernels", "Origin", "kernels_for", "kernels_json"]

Origin = Literal["measured", "scaled"]


@dataclass(frozen=True)
class Kernels:
    """Shares are of the GPU's nominal rates; times are in microseconds."""

    # Routed experts of decode: one matmul of few rows for each expert.
    expert_fixed_us: float
    expert_weight_share: float  # of the memory's bandwidth
    expert_matmul_share: float
    # Routed experts of prefill: long runs of rows, and what copies them.
    prompt_expert_fixed_us: float
    prompt_matmul_share: float
    copy_share: float  # of the memory's bandwidth
    # Shared experts and dense layers.
    ffn_fixed_us: float
    ffn_weight_share: float
    ffn_matmul_share: float
    # Attention of decode, latents absorbed.
    attention_fixed_us: float
    attention_weight_share: float
    projection_share: float
    core_share: float  # of the BF16 rate
    core_memory_share: float  # of the memory's bandwidth
    # Attention of prefill.
    prompt_floor_us: float  # what the host needs to launch it
    prompt_request_us: float
    prompt_projection_share: float
    prompt_core_share: float
    # Low-latency dispatch and combine.
    dispatch_nvlink_fixed_us: float
    dispatch_nvlink_share: float
    combine_nvlink_fixed_us: float
    combine_nvlink_share: float
    dispatch_rows_share: float  # of the memory's bandwidth, at which processors put rows out and take them in
    combine_rows_share: float
    dispatch_fixed_us: float
    dispatch_doubling_us: float  # for each doubling of the nodes
    dispatch_nic_share: float
    combine_fixed_us: float
    combine_doubling_us: float
    combine_nic_share: float
    # Normal dispatch and combine.
    normal_nvlink_share: float
    normal_nic_share: float


# Shares of the rate of matmuls.
MATMULS = ("expert_matmul", "prompt_matmul", "ffn_matmul", "projection", "core", "prompt_projection", "prompt_core")


@cache
def kernels_for(name: str) -> tuple[Kernels, Mapping[str, Origin]]:
    """Return the constants of the GPU called `name`, and which of them were measured on it or on an equal chip."""
    document = kernels_json()
    reference = document["gpus"][document["reference"]]["constants"]
    kind = document["gpus"].get(name, {"constants": {}})
    silicon = document["gpus"][kind["same_silicon_as"]]["constants"] if "same_silicon_as" in kind else {}
    own = silicon | kind["constants"]
    origins: dict[str, Origin] = {
        field.name: "measured" if field.name in own else "scaled" for field in fields(Kernels)
    }
    slower = {f"{each}_share": reference[f"{each}_share"] * kind.get("matmuls", 1) for each in MATMULS}
    return Kernels(**(reference | slower | own)), origins


@cache
def kernels_json() -> Any:
    """Return the document of constants, with residuals and provenance."""
    return json.loads(files("planner.estimate.throughput").joinpath("kernels.json").read_text())
