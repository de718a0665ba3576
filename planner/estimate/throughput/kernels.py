"""The efficiency of kernels on a GPU: the shares of its nominal rates that they reach, and their fixed times.

The constants are fitted to measured tables of operators, GPU by GPU. `tests/benchmarks/fit_kernels.py` writes them to
`kernels.json`, with residuals and provenance. A GPU without tables is assumed to reach the same shares of its rates as
the reference GPU, or as the one that it is `like`: its constants are scaled, not measured. If its large matmuls are
known to be less efficient than the reference's, all its matmuls are assumed to be (`matmuls`).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any, Literal

Origin = Literal["measured", "scaled"]


@dataclass(frozen=True)
class Kernels:
    """Constants of a GPU's kernels: the shares of the GPU's nominal rates that kernels reach, and fixed times in µs."""

    # Routed experts of decode: one matmul of few rows for each expert.
    expert_fixed_us: float
    expert_weight_share: float  # of the memory's bandwidth
    expert_matmul_share: float
    # Routed experts of prefill: long runs of rows, and the kernels that copy them.
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
    state_share: float  # of the memory's bandwidth, while linear attention's states are read and written
    core_fp8_speedup: float  # times that core attention is faster in FP8 than in BF16
    # Attention of prefill.
    prompt_floor_us: float  # the host's launch time
    prompt_request_us: float
    prompt_projection_share: float
    prompt_core_share: float
    prompt_core_fp8_speedup: float
    scan_share: float  # of the memory's bandwidth, while linear attention scans prompts
    # Sparse attention of prefill: core attention over picked tokens, the indexer, absorbed queries and results.
    sparse_core_share: float  # of the BF16 rate
    index_share: float
    absorbed_share: float  # of the memory's bandwidth
    # Compressed attention of prefill, and the mixing of residual streams in both phases.
    compressed_core_share: float  # of the BF16 rate
    compressed_share: float  # of the memory's bandwidth, of queries and results
    stream_fixed_us: float
    stream_share: float  # of the memory's bandwidth
    # Low-latency dispatch and combine.
    dispatch_nvlink_fixed_us: float
    dispatch_nvlink_share: float
    combine_nvlink_fixed_us: float
    combine_nvlink_share: float
    dispatch_rows_share: float  # of the memory's bandwidth, while processors send and receive rows
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


# Constants that are shares of the matmul rate.
MATMULS = (
    *("expert_matmul", "prompt_matmul", "ffn_matmul", "projection", "core", "prompt_projection", "prompt_core"),
    *("sparse_core", "index", "compressed_core"),
)


@cache
def kernels_for(name: str) -> tuple[Kernels, Mapping[str, Origin]]:
    """Return the kernel constants of GPU `name`, and for each whether it was measured on that silicon or is scaled."""
    document = kernels_json()
    kind = document["gpus"].get(name, {"constants": {}})
    reference = document["gpus"][document["reference"]]["constants"]
    if "like" in kind:
        reference = asdict(kernels_for(kind["like"])[0])
    silicon = document["gpus"][kind["same_silicon_as"]]["constants"] if "same_silicon_as" in kind else {}
    own = silicon | kind["constants"]
    origins: dict[str, Origin] = {
        field.name: "measured" if field.name in own else "scaled" for field in fields(Kernels)
    }
    slower = {f"{each}_share": reference[f"{each}_share"] * kind.get("matmuls", 1) for each in MATMULS}
    return Kernels(**(reference | slower | own)), origins


@cache
def kernels_json() -> Any:
    """Return the content of `kernels.json`: the constants of each GPU, with residuals and provenance."""
    return json.loads(files("planner.estimate.throughput").joinpath("kernels.json").read_text())
