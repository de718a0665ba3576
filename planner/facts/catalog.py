"""The catalog of GPUs: figures with their sources, and other names of GPUs. Models are in `families`.

A source is a repository, a commit and a path, or the number of an issue. The source of a figure that was inferred
begins with `assumed`, and plans say so too. Unknown figures are left out, and so are those that no pass reads. For
other GPUs the spec gives the figures (`GpuSpec`).

A node label's `NVIDIA-H100-80GB-HBM3` is `h100`. A name means an entry of the catalog if chip, board and memory are the
same. A chip may be sold in several forms: the H100 NVL and the H20-3e have other figures than the H100 and the H20.

Units: bytes; GB is 1e9 bytes, GiB is 2^30. Link rates are one way, for one GPU. Compute rates are the maker's for dense
matrices; `estimate/throughput` has the share that kernels reach.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.facts.terms import Device
from planner.problems.fix import Fix, closest_choice, did_you_mean

ASSUMED = "assumed"
SUGGESTED_GPU = "h200"  # for a first plan: one node of eight holds DeepSeek-R1 in FP8


@dataclass(frozen=True)
class Gpu:
    """A type of GPU and its links to other GPUs. `cpu` has no figures, because its memory is the host's.

    GPUs of a domain are connected by switches, with the full rate between any two, or in a mesh. In a mesh each pair
    has its own links, and a GPU reaches its full rate only by sending to all others at once.
    """

    device: Device
    sources: Mapping[str, str]  # field -> source of its figure
    nominal_gb: int | None = None  # memory by the name it is sold under; used for names only
    usable_bytes: int | None = None  # memory that the driver lets a process allocate, the driver's context included
    nvlink_gb_per_s: float | None = None  # to all other GPUs of its domain together, by NVLink or its equivalent
    nvlink_domain: int | None = None  # number of GPUs that NVLink connects
    nvlink_leaves_node: bool = False  # whether a domain spans nodes: NVL72's is a rack, HGX's ends with its board
    node_gpus: int | None = None  # GPUs of one node, if a domain spans several nodes
    nic_gbps: float | None = None
    gpus_per_nic: int | None = None
    fp8_tflops: float | None = None  # for dense matrices, by the maker's figures; None if it has no FP8 matmuls
    bf16_tflops: float | None = None
    fp4_tflops: float | None = None  # None if it has no FP4 matmuls
    memory_gb_per_s: float | None = None
    kubernetes_resource: str | None = None  # the name by which a container requests this GPU
    lacks_fp4: bool = False  # whether it has no FP4 matmuls, as NVIDIA's before compute capability 10.0:
    # github.com/vllm-project/vllm 06f9c240 csrc/quantization/fp4/nvfp4_scaled_mm_entry.cu

    @property
    def is_rocm(self) -> bool:
        """Return whether this is an AMD GPU, which needs another FP8 (e4m3fnuz) and another build of PyTorch."""
        return self.kubernetes_resource == "amd.com/gpu"

    def domain_size(self, gpus_per_node: int) -> int:
        """Return the number of GPUs in an NVLink domain. An HGX domain is one node, even a node with few GPUs."""
        size = self.nvlink_domain or gpus_per_node
        return size if self.nvlink_leaves_node else min(size, gpus_per_node)


_AICONFIGURATOR = "github.com/ai-dynamo/aiconfigurator 095f58a5 aic-core/src/aiconfigurator_core"

_SYSTEMS = f"{_AICONFIGURATOR}/systems"
_AZURE = "articles/virtual-machines/sizes/gpu-accelerated/includes"
_GB200_NODE = f"github.com/MicrosoftDocs/azure-compute-docs 2af9ad07 {_AZURE}/nd-gb200-v6-series-summary.md"
_NVIDIA_RESOURCE = "github.com/NVIDIA/k8s-device-plugin 592307d8 docs/quick_start.md"


def _cite_system(system: str, *figures: str) -> dict[str, str]:
    """Return figure -> source for `figures` that one of aiconfigurator's system files gives."""
    return dict.fromkeys(figures, f"{system}.yaml")


_B300_SYSTEM = "github.com/simone-chen/aiconfigurator 84ba8996 src/aiconfigurator/systems/b300_sxm"
_GB300_SYSTEM = "github.com/simone-chen/aiconfigurator 865aa0e0 src/aiconfigurator/systems/gb300"
_GPU_SPECS = "github.com/SemiAnalysisAI/InferenceX-app 39a99115 packages/app/src/lib/gpu-specs.ts"
_AMD_RESOURCE = "github.com/ROCm/k8s-device-plugin 8bfe66bd example/pod/jax-multi-gpu.yaml"


def _cite_specs(*figures: str) -> dict[str, str]:
    """Return figure -> source for `figures` of InferenceX's table of GPUs."""
    return dict.fromkeys(figures, _GPU_SPECS)


_H800_SYSTEM = "github.com/ai-dynamo/aiconfigurator 77f0282e src/aiconfigurator/systems/h800_sxm"
_H20_SYSTEM = "github.com/ai-dynamo/aiconfigurator 16417930 src/aiconfigurator/systems/h20_sxm"
_H20_MEMORY = "github.com/modelscope/DiffSynth-Studio issue 1238: 96G, PyTorch's total capacity 95.00 GiB"
_MI300X = "github.com/ROCm/legacy-rocm-build 089d7513 docs/conceptual/gpu-arch/mi300.md"

GPUS = {
    "cpu": Gpu(device="cpu", sources={}),  # no GPU at all: each rank is a process
    "h800": Gpu(
        device="cuda",
        nominal_gb=80,
        usable_bytes=84_943_110_144,
        nvlink_gb_per_s=200,
        nvlink_domain=8,
        nic_gbps=400,
        gpus_per_nic=1,
        fp8_tflops=1_978,
        bf16_tflops=989,
        memory_gb_per_s=3_350,
        kubernetes_resource="nvidia.com/gpu",
        lacks_fp4=True,
        sources=_cite_system(
            _H800_SYSTEM,
            "nominal_gb",
            "nvlink_gb_per_s",
            "nvlink_domain",
            "fp8_tflops",
            "bf16_tflops",
            "memory_gb_per_s",
        )
        | {
            "usable_bytes": "github.com/deepseek-ai/profile-data 44960242 train.json, totalGlobalMem",
            "nic_gbps": "github.com/deepseek-ai/DeepEP dd758caf docs/legacy.md: CX7 400 Gb/s",
            "gpus_per_nic": "github.com/deepseek-ai/DeepEP dd758caf docs/legacy.md: each with one",
            "kubernetes_resource": _NVIDIA_RESOURCE,
        },
    ),
    "h100": Gpu(
        device="cuda",
        nominal_gb=80,
        usable_bytes=84_943_110_144,
        nvlink_gb_per_s=450,
        nvlink_domain=8,
        nic_gbps=400,
        gpus_per_nic=1,
        fp8_tflops=1_978,
        bf16_tflops=989,
        memory_gb_per_s=3_350,
        kubernetes_resource="nvidia.com/gpu",
        lacks_fp4=True,
        sources=_cite_system(
            f"{_SYSTEMS}/h100_sxm",
            "nominal_gb",
            "nvlink_gb_per_s",
            "nvlink_domain",
            "fp8_tflops",
            "bf16_tflops",
            "memory_gb_per_s",
            "nic_gbps",
        )
        | {
            "usable_bytes": "github.com/vllm-project/vllm issue 27508: total capacity 79.11 GiB, as the H800's rounds",
            "gpus_per_nic": f"github.com/MicrosoftDocs/azure-compute-docs a18807c4 {_AZURE}/ndh100v5-series-summary.md",
            "kubernetes_resource": _NVIDIA_RESOURCE,
        },
    ),
    "h200": Gpu(
        device="cuda",
        nominal_gb=141,
        usable_bytes=150_109_106_995,
        nvlink_gb_per_s=450,
        nvlink_domain=8,
        nic_gbps=400,
        gpus_per_nic=1,
        fp8_tflops=1_978,
        bf16_tflops=989,
        memory_gb_per_s=4_800,
        kubernetes_resource="nvidia.com/gpu",
        lacks_fp4=True,
        sources=_cite_system(
            f"{_SYSTEMS}/h200_sxm",
            "nominal_gb",
            "nvlink_gb_per_s",
            "nvlink_domain",
            "fp8_tflops",
            "bf16_tflops",
            "memory_gb_per_s",
            "nic_gbps",
        )
        | {
            "usable_bytes": "github.com/vllm-project/vllm issue 34553: PyTorch's total capacity 139.81 GiB, rounded "
            "down to 139.80 GiB",
            "gpus_per_nic": "github.com/MicrosoftDocs/azure-compute-docs a18807c4 "
            f"{_AZURE}/nd-h200-v5-series-summary.md",
            "kubernetes_resource": _NVIDIA_RESOURCE,
        },
    ),
    "h20": Gpu(
        device="cuda",
        nominal_gb=96,
        usable_bytes=102_005_473_280,
        nvlink_gb_per_s=450,
        nvlink_domain=8,
        nic_gbps=400,
        gpus_per_nic=2,
        fp8_tflops=294,
        bf16_tflops=148,
        memory_gb_per_s=4_000,
        kubernetes_resource="nvidia.com/gpu",
        lacks_fp4=True,
        sources=_cite_system(
            _H20_SYSTEM, "nvlink_gb_per_s", "nvlink_domain", "fp8_tflops", "bf16_tflops", "memory_gb_per_s"
        )
        | {
            "nominal_gb": _H20_MEMORY,
            "usable_bytes": _H20_MEMORY,
            "nic_gbps": f"{_H20_SYSTEM}.yaml: 25 GB/s a GPU, that is 400 Gb/s for two",
            "gpus_per_nic": "github.com/deepseek-ai/DeepEP issue 137: nvidia-smi topo, a NIC beside every second GPU",
            "kubernetes_resource": _NVIDIA_RESOURCE,
        },
    ),
    "b200": Gpu(
        device="cuda",
        nominal_gb=180,
        usable_bytes=191_501_854_310,
        nvlink_gb_per_s=900,
        nvlink_domain=8,
        nic_gbps=400,
        gpus_per_nic=1,
        fp8_tflops=4_500,
        bf16_tflops=2_250,
        fp4_tflops=9_000,
        memory_gb_per_s=7_700,
        kubernetes_resource="nvidia.com/gpu",
        sources=_cite_system(
            f"{_SYSTEMS}/b200_sxm",
            "nominal_gb",
            "nvlink_gb_per_s",
            "nvlink_domain",
            "fp8_tflops",
            "bf16_tflops",
            "fp4_tflops",
            "memory_gb_per_s",
        )
        | {
            "usable_bytes": "github.com/pytorch/ao pull request 4002: the driver's 178.35 GiB",
            "nic_gbps": "github.com/eawlot3000/reading 2591c779 nvidia/DGX-B200.md: 400 Gb/s; nodes with 800 are built",
            "gpus_per_nic": "github.com/eawlot3000/reading 2591c779 nvidia/DGX-B200.md: 8 for 8 GPUs",
            "kubernetes_resource": _NVIDIA_RESOURCE,
        },
    ),
    "gb200": Gpu(
        device="cuda",
        nominal_gb=186,
        usable_bytes=197_901_355_581,
        nvlink_gb_per_s=900,
        nvlink_domain=72,
        nvlink_leaves_node=True,
        node_gpus=4,
        nic_gbps=800,
        gpus_per_nic=1,
        fp8_tflops=5_000,
        bf16_tflops=2_500,
        fp4_tflops=10_000,
        memory_gb_per_s=8_000,
        kubernetes_resource="nvidia.com/gpu",
        sources=_cite_system(
            f"{_SYSTEMS}/gb200",
            "nvlink_gb_per_s",
            "nvlink_domain",
            "fp8_tflops",
            "bf16_tflops",
            "fp4_tflops",
            "memory_gb_per_s",
            "nic_gbps",
        )
        | {
            "nominal_gb": "assumed: what is said of it is 186 to 192 GB",
            "usable_bytes": "github.com/vllm-project/vllm issue 43951: total capacity 184.31 GiB",
            "node_gpus": f"{_GB200_NODE}: 4 GPUs",
            "gpus_per_nic": f"{_GB200_NODE}: 4 for 4 GPUs",
            "kubernetes_resource": _NVIDIA_RESOURCE,
        },
    ),
    "b300": Gpu(
        device="cuda",
        nominal_gb=288,
        usable_bytes=288_400_343_040,
        nvlink_gb_per_s=900,
        nvlink_domain=8,
        nic_gbps=800,
        gpus_per_nic=1,
        fp8_tflops=4_500,
        bf16_tflops=2_250,
        fp4_tflops=14_000,
        memory_gb_per_s=7_750,
        kubernetes_resource="nvidia.com/gpu",
        sources=_cite_system(
            _B300_SYSTEM,
            "usable_bytes",
            "nvlink_gb_per_s",
            "nvlink_domain",
            "nic_gbps",
            "gpus_per_nic",
            "fp8_tflops",
            "bf16_tflops",
            "fp4_tflops",
            "memory_gb_per_s",
        )
        | {
            "nominal_gb": _GPU_SPECS,
            "kubernetes_resource": _NVIDIA_RESOURCE,
        },
    ),
    "gb300": Gpu(
        device="cuda",
        nominal_gb=288,
        usable_bytes=298_013_687_808,
        nvlink_gb_per_s=900,
        nvlink_domain=72,
        nvlink_leaves_node=True,
        node_gpus=4,
        nic_gbps=800,
        gpus_per_nic=1,
        fp8_tflops=5_000,
        bf16_tflops=2_500,
        fp4_tflops=15_000,
        memory_gb_per_s=8_000,
        kubernetes_resource="nvidia.com/gpu",
        sources=_cite_system(
            _GB300_SYSTEM,
            "usable_bytes",
            "nvlink_gb_per_s",
            "nvlink_domain",
            "node_gpus",
            "nic_gbps",
            "gpus_per_nic",
            "fp8_tflops",
            "bf16_tflops",
            "fp4_tflops",
            "memory_gb_per_s",
        )
        | {
            "nominal_gb": _GPU_SPECS,
            "kubernetes_resource": _NVIDIA_RESOURCE,
        },
    ),
    "mi300x": Gpu(
        device="cuda",
        nominal_gb=192,
        usable_bytes=206_141_652_992,
        nvlink_gb_per_s=448,
        nvlink_domain=8,
        nic_gbps=400,
        gpus_per_nic=1,
        fp8_tflops=2614.9,
        bf16_tflops=1307.4,
        memory_gb_per_s=5_300,
        kubernetes_resource="amd.com/gpu",
        sources={
            "nominal_gb": f"github.com/MicrosoftDocs/azure-compute-docs 4e09f799 {_AZURE}/ndmi300xv5-series-specs.md",
            "usable_bytes": "github.com/ROCm/legacy-rocm-build issue 4750: rocm-smi's VRAM Total Memory",
            "nvlink_gb_per_s": "github.com/MicrosoftDocs/azure-compute-docs 2bc777fd "
            f"{_AZURE}/ndmi300xv5-series-summary.md: 896 GB/s a GPU, both ways",
            "nvlink_domain": f"{_MI300X}: 7 links a GPU, 8 GPUs fully connected",
            "nic_gbps": "github.com/MicrosoftDocs/azure-compute-docs 2bc777fd "
            f"{_AZURE}/ndmi300xv5-series-summary.md: 400 Gb/s",
            "fp8_tflops": _MI300X,
            "bf16_tflops": _MI300X,
            "memory_gb_per_s": _MI300X,
            "gpus_per_nic": "github.com/MicrosoftDocs/azure-compute-docs 2bc777fd "
            f"{_AZURE}/ndmi300xv5-series-summary.md: each its own",
            "kubernetes_resource": _AMD_RESOURCE,
        },
    ),
    "mi325x": Gpu(
        device="cuda",
        nominal_gb=256,
        usable_bytes=274_857_984_000,
        nvlink_gb_per_s=448,
        nvlink_domain=8,
        nic_gbps=400,
        gpus_per_nic=1,
        fp8_tflops=2614.9,
        bf16_tflops=1307.4,
        memory_gb_per_s=6_000,
        kubernetes_resource="amd.com/gpu",
        sources=_cite_specs("nominal_gb", "nvlink_gb_per_s", "nvlink_domain", "nic_gbps", "gpus_per_nic")
        | _cite_specs("fp8_tflops", "bf16_tflops", "memory_gb_per_s")
        | {
            "usable_bytes": "assumed: nearly 256 GiB, as an MI300X has nearly 192",
            "kubernetes_resource": _AMD_RESOURCE,
        },
    ),
    "mi355x": Gpu(
        device="cuda",
        nominal_gb=288,
        usable_bytes=309_216_000_000,
        nvlink_gb_per_s=538,
        nvlink_domain=8,
        nic_gbps=400,
        gpus_per_nic=1,
        fp8_tflops=5_033,
        bf16_tflops=2_516,
        fp4_tflops=10_066,
        memory_gb_per_s=8_000,
        kubernetes_resource="amd.com/gpu",
        sources=_cite_specs("nominal_gb", "nvlink_gb_per_s", "nvlink_domain", "nic_gbps", "gpus_per_nic")
        | _cite_specs("fp8_tflops", "bf16_tflops", "fp4_tflops", "memory_gb_per_s")
        | {
            "usable_bytes": "assumed: nearly 288 GiB, as an MI300X has nearly 192",
            "kubernetes_resource": _AMD_RESOURCE,
        },
    ),
}

# Chips that the catalog lacks, so that none of them is confused with a similar name.
UNPLANNED = (
    *("a10", "a30", "a40", "a100", "a800", "b100", "gh200", "h20e", "l2", "l4", "l20", "l40", "l40s"),
    *("t4", "v100", "mi250", "mi250x", "mi300a", "mi308x", "mi350x"),
)
UNPLANNED_SERIES = ("rtx", "gaudi", "ascend")  # a chip's name is one of these with a number: gaudi3

# Words of a name that do not change the GPU: the maker, and the board and memory that the catalog's entry has too.
SAME_CHIP = frozenset(
    (*("nvidia", "amd", "instinct", "tensor", "core", "gpu"), *("hgx", "dgx", "sxm", "sxm5", "oam", "hbm3", "hbm3e"))
)
WORD = re.compile(r"[a-z0-9.]+")
COUNTED = re.compile(r"[0-9]+x(?=[a-z])|(?<=[0-9])x[0-9]+$")  # 8xh100, h100x8


def same_gpu(written: str) -> str | None:
    """Return the catalog's name for the GPU that `written` names in another way; None if the catalog lacks the GPU."""
    words = [each for each in _words(written) if each not in SAME_CHIP]
    for name, gpu in GPUS.items():
        said_too = {f"{gpu.nominal_gb}gb", f"{gpu.nominal_gb}g", f"nvl{gpu.nvlink_domain}"} if gpu.nominal_gb else set()
        if "".join(each for each in words if each not in said_too) == name:
            return name
    return None


def suggest_gpu(written: str, known: Sequence[str]) -> Fix:
    """Suggest the name in `known` that means the same GPU as `written`, or else all of `known`."""
    own = [each for each in known if each not in GPUS]
    meant = same_gpu(written) or closest_choice(written, own)
    return did_you_mean(meant, [meant]) if meant in known else Fix(f"write {' or '.join(known)}", ())


def unplanned_gpu(written: str) -> str | None:
    """Return the GPU that `written` names, if GPUs of that name exist but the catalog lacks them; None otherwise.

    A chip of the catalog on another board or with other memory is another GPU. For it, return all of `written`.
    """
    words = _words(written)
    listed = [each for each in words if each in UNPLANNED or each.startswith(UNPLANNED_SERIES)]
    if listed:
        return listed[0]
    is_of_catalog = any(each in GPUS for each in words)
    return written.casefold() if is_of_catalog and same_gpu(written) is None else None


def _words(written: str) -> list[str]:
    return WORD.findall(COUNTED.sub("", written.casefold()))
