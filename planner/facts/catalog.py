"""Facts about models and GPUs, each with its source. No other file names a model or a GPU.

A source is a repository, a commit and a path, or the number of an issue. A figure that was not read anywhere, only
concluded, has a source that begins with `assumed`: plans say so too. What could not be found is left out. Only what a
pass reads stands here: speeds join with the passes that use them. A model that is not listed comes with its
`config.json` (`model_config.py`), a GPU with its figures in the spec (`GpuSpec`).

Units: bytes; GB is 1e9 bytes, GiB is 2^30. Links are one way, as one GPU sees them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from planner.facts.terms import Device

__all__ = [
    "ASSUMED",
    "GPUS",
    "MODELS",
    "Attention",
    "Gpu",
    "GroupedAttention",
    "Indexer",
    "LatentAttention",
    "Model",
    "unplanned_gpu",
]

ASSUMED = "assumed"
KV_SCALE_VALUES = 128  # that share a scale in sparse attention's FP8 KV

# GPUs that are sold and not listed here, so that none of them is taken for one that is called alike.
UNPLANNED_GPUS = (
    *("a100", "a800", "h20e", "gh200", "b100", "b300", "gb300", "rtx", "l40s", "mi250", "mi308x", "mi325x"),
    *("mi350x", "mi355x", "gaudi", "ascend"),
)


@dataclass(frozen=True)
class Indexer:
    """The small attention that picks which tokens the large one reads (DeepSeek sparse attention).

    Source: github.com/deepseek-ai/DeepSeek-V3.2-Exp 3b99a535 inference/model.py, class Indexer.
    """

    num_heads: int
    head_dim: int

    @property
    def kv_bytes_per_token(self) -> int:
        """Of one layer: one FP8 key and one FP32 scale."""
        return self.head_dim + 4


@dataclass(frozen=True)
class LatentAttention:
    """MLA: keys and values are kept as one latent vector of all heads, beside one rotated key."""

    num_heads: int
    q_lora_rank: int | None  # None: queries are computed in one step
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    indexer: Indexer | None = None

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Of one layer: 1,152 B for (512 + 64) values in BF16, 576 B in FP8, whose scale is one for all tokens.

        Sparse attention's FP8 has an FP32 scale for each 128 values of the latent vector, and the rotated key in BF16:
        512 + 16 + 128 = 656 B. Source: github.com/deepseek-ai/FlashMLA 066b5ba6 README.md.
        """
        if self.indexer is None:
            return (self.kv_lora_rank + self.qk_rope_head_dim) * bytes_per_value
        if bytes_per_value == 1:
            scales = 4 * -(-self.kv_lora_rank // KV_SCALE_VALUES)
            return self.kv_lora_rank + scales + 2 * self.qk_rope_head_dim + self.indexer.kv_bytes_per_token
        return (self.kv_lora_rank + self.qk_rope_head_dim) * bytes_per_value + self.indexer.kv_bytes_per_token

    def one_of(self, num_gpus: int) -> "LatentAttention":
        """What one of `num_gpus` that share the heads holds: all heads read the one latent vector, so it is on each.

        Source: github.com/deepseek-ai/DeepSeek-V3 9b4e9788 inference/model.py, class MLA: wq_b, wkv_b and wo are split
        by heads, wq_a and wkv_a are not, and each rank caches the latent vector.
        """
        return replace(self, num_heads=self.num_heads // num_gpus)


@dataclass(frozen=True)
class GroupedAttention:
    """GQA: several query heads share one key head and one value head."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Of one layer: a key and a value of each KV head."""
        return 2 * self.num_kv_heads * self.head_dim * bytes_per_value

    def one_of(self, num_gpus: int) -> "GroupedAttention":
        """What one of `num_gpus` that share the heads holds; beyond one GPU a KV head, these are held several times.

        Source: github.com/vllm-project/vllm 0036d38d vllm/model_executor/layers/linear.py, QKVParallelLinear: KV heads
        are split, or held several times if fewer.
        """
        kv_heads = max(1, self.num_kv_heads // num_gpus)
        return replace(self, num_heads=self.num_heads // num_gpus, num_kv_heads=kv_heads)


Attention = LatentAttention | GroupedAttention


@dataclass(frozen=True)
class Model:
    """The shapes of a mixture-of-experts model."""

    model_type: str  # as transformers calls the family in a checkpoint's config.json
    num_layers: int
    num_dense_layers: int  # the first ones; the others are MoE layers
    hidden_size: int
    vocab_size: int
    attention: Attention
    dense_intermediate_size: int
    expert_intermediate_size: int  # of one expert, routed or shared
    num_routed_experts: int  # logical experts of one MoE layer
    num_experts_per_token: int
    num_shared_experts: int
    num_expert_groups: int  # the gate picks groups first; a group is a run of consecutive experts
    num_groups_per_token: int  # at most: a token's experts are in the groups that the gate picked
    max_position_embeddings: int
    source: str
    weights_in: Literal["fp8", "bf16", "fp4", "w4a8"] = "bf16"  # the precision of the published checkpoint
    ties_embeddings: bool = False  # one matrix reads tokens and makes logits

    @property
    def num_moe_layers(self) -> int:
        """Layers that have an expert map."""
        return self.num_layers - self.num_dense_layers

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """KV of one token over all layers: 61 x (512 + 64) x 2 B = 70,272 B for DeepSeek-V3 in BF16."""
        return self.num_layers * self.attention.kv_bytes_per_token(bytes_per_value)

    def one_of(self, num_gpus: int) -> "Model":
        """The model as one of `num_gpus` sees it that share attention: its part of the heads, and all else."""
        return replace(self, attention=self.attention.one_of(num_gpus))


@dataclass(frozen=True)
class Gpu:
    """What a rank runs on, and how it is tied to others. `cpu` has none of the figures: its memory is the host's.

    GPUs of a domain are tied by switches, where one GPU can send all it has to one other, or in a mesh, where each pair
    has links of its own (`peer_gb_per_s`) and the whole is reached only by sending to all others at once.
    """

    device: Device
    sources: Mapping[str, str]  # of each figure
    nominal_gb: int | None = None  # what it is sold as: no pass counts with it
    usable_bytes: int | None = None  # what the driver lets a process allocate, its own context included
    nvlink_gb_per_s: float | None = None  # to all of its domain together; or what takes NVLink's place inside a node
    peer_gb_per_s: float | None = None  # to one other of a mesh; without it, all of `nvlink_gb_per_s`
    nvlink_domain: int | None = None  # GPUs that reach each other by it
    nvlink_leaves_node: bool = False  # no figure: a domain of HGX ends with its board, one of NVL72 with its rack
    nic_gbps: float | None = None
    gpus_per_nic: int | None = None
    kubernetes_resource: str | None = None  # what a container asks for
    lacks_fp4: bool = False  # no figure: its matmuls take no FP4, as before compute capability 10.0:
    # github.com/vllm-project/vllm 06f9c240 csrc/quantization/fp4/nvfp4_scaled_mm_entry.cu

    @property
    def is_rocm(self) -> bool:
        """Whether it is AMD's, whose FP8 (e4m3fnuz) and whose build of PyTorch are others."""
        return self.kubernetes_resource == "amd.com/gpu"


_AICONFIGURATOR = "github.com/ai-dynamo/aiconfigurator 095f58a5 aic-core/src/aiconfigurator_core"

_DEEPSEEK_V3_ATTENTION = LatentAttention(
    num_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
)

_DEEPSEEK_V3 = Model(
    model_type="deepseek_v3",
    num_layers=61,
    num_dense_layers=3,
    hidden_size=7168,
    vocab_size=129_280,
    attention=_DEEPSEEK_V3_ATTENTION,
    dense_intermediate_size=18_432,
    expert_intermediate_size=2048,
    num_routed_experts=256,
    num_experts_per_token=8,
    num_shared_experts=1,
    num_expert_groups=8,
    num_groups_per_token=4,
    max_position_embeddings=163_840,
    weights_in="fp8",
    source="github.com/deepseek-ai/DeepSeek-V3 9b4e9788 inference/configs/config_671B.json; "
    f"positions, and that R1 is alike: {_AICONFIGURATOR}/model_configs/deepseek-ai--DeepSeek-{{V3,R1}}_config.json",
)

_DEEPSEEK_V32 = replace(
    _DEEPSEEK_V3,
    model_type="deepseek_v32",
    attention=replace(_DEEPSEEK_V3_ATTENTION, indexer=Indexer(num_heads=64, head_dim=128)),
    source="github.com/deepseek-ai/DeepSeek-V3.2-Exp 3b99a535 inference/config_671B_v3.2.json; "
    f"positions: {_AICONFIGURATOR}/model_configs/deepseek-ai--DeepSeek-V3.2_config.json",
)

_DEEPSEEK_V2 = Model(
    model_type="deepseek_v2",
    num_layers=60,
    num_dense_layers=1,
    hidden_size=5120,
    vocab_size=102_400,
    attention=_DEEPSEEK_V3_ATTENTION,  # equal, shape by shape
    dense_intermediate_size=12_288,
    expert_intermediate_size=1536,
    num_routed_experts=160,
    num_experts_per_token=6,
    num_shared_experts=2,
    num_expert_groups=8,
    num_groups_per_token=3,
    max_position_embeddings=163_840,
    source="github.com/deepseek-ai/DeepSeek-V3 9b4e9788 inference/configs/config_236B.json; "
    "positions: original_seq_len 4096 x rope_factor 40, inference/model.py there",
)

_DEEPSEEK_V2_LITE = Model(
    model_type="deepseek_v2",
    num_layers=27,
    num_dense_layers=1,
    hidden_size=2048,
    vocab_size=102_400,
    attention=LatentAttention(
        num_heads=16, q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    ),
    dense_intermediate_size=10_944,
    expert_intermediate_size=1408,
    num_routed_experts=64,
    num_experts_per_token=6,
    num_shared_experts=2,
    num_expert_groups=1,
    num_groups_per_token=1,
    max_position_embeddings=163_840,
    source="github.com/deepseek-ai/DeepSeek-V3 9b4e9788 inference/configs/config_16B.json; groups and positions "
    "(original_seq_len 4096 x rope_factor 40): the defaults of inference/model.py there",
)

_QWEN3_235B = Model(
    model_type="qwen3_moe",
    num_layers=94,
    num_dense_layers=0,
    hidden_size=4096,
    vocab_size=151_936,
    attention=GroupedAttention(num_heads=64, num_kv_heads=4, head_dim=128),
    dense_intermediate_size=12_288,
    expert_intermediate_size=1536,
    num_routed_experts=128,
    num_experts_per_token=8,
    num_shared_experts=0,
    num_expert_groups=1,
    num_groups_per_token=1,
    max_position_embeddings=40_960,
    source=f"{_AICONFIGURATOR}/model_configs/Qwen--Qwen3-235B-A22B_config.json",
)

_KIMI_K2 = Model(
    model_type="kimi_k2",
    num_layers=61,
    num_dense_layers=1,
    hidden_size=7168,
    vocab_size=163_840,
    attention=replace(_DEEPSEEK_V3_ATTENTION, num_heads=64),
    dense_intermediate_size=18_432,
    expert_intermediate_size=2048,
    num_routed_experts=384,
    num_experts_per_token=8,
    num_shared_experts=1,
    num_expert_groups=1,
    num_groups_per_token=1,
    max_position_embeddings=131_072,
    weights_in="fp8",
    source=f"{_AICONFIGURATOR}/model_configs/moonshotai--Kimi-K2-Instruct_config.json",
)

MODELS = {
    "deepseek-r1": _DEEPSEEK_V3,
    "deepseek-v3": _DEEPSEEK_V3,
    "deepseek-v3.2": _DEEPSEEK_V32,
    "deepseek-v2": _DEEPSEEK_V2,
    "deepseek-v2-lite": _DEEPSEEK_V2_LITE,
    "qwen3-235b-a22b": _QWEN3_235B,
    "kimi-k2": _KIMI_K2,
}

_SYSTEMS = f"{_AICONFIGURATOR}/systems"
_AZURE = "articles/virtual-machines/sizes/gpu-accelerated/includes"
_NVIDIA_RESOURCE = "github.com/NVIDIA/k8s-device-plugin 592307d8 docs/quick_start.md"


def _of_system(system: str, *figures: str) -> dict[str, str]:
    """One file that says several figures."""
    return dict.fromkeys(figures, f"{system}.yaml")


_H800_SYSTEM = "github.com/ai-dynamo/aiconfigurator 77f0282e src/aiconfigurator/systems/h800_sxm"
_H20_SYSTEM = "github.com/ai-dynamo/aiconfigurator 16417930 src/aiconfigurator/systems/h20_sxm"
_H20_MEMORY = "github.com/modelscope/DiffSynth-Studio issue 1238: 96G, PyTorch's total capacity 95.00 GiB"
_MI300X_LINKS = (
    f"github.com/MicrosoftDocs/azure-compute-docs 2bc777fd {_AZURE}/ndmi300xv5-series-summary.md: 128 GB/s a link and "
    "896 GB/s a GPU, both ways"
)

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
        kubernetes_resource="nvidia.com/gpu",
        lacks_fp4=True,
        sources=_of_system(_H800_SYSTEM, "nominal_gb", "nvlink_gb_per_s", "nvlink_domain")
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
        kubernetes_resource="nvidia.com/gpu",
        lacks_fp4=True,
        sources=_of_system(f"{_SYSTEMS}/h100_sxm", "nominal_gb", "nvlink_gb_per_s", "nvlink_domain", "nic_gbps")
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
        kubernetes_resource="nvidia.com/gpu",
        lacks_fp4=True,
        sources=_of_system(f"{_SYSTEMS}/h200_sxm", "nominal_gb", "nvlink_gb_per_s", "nvlink_domain", "nic_gbps")
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
        kubernetes_resource="nvidia.com/gpu",
        lacks_fp4=True,
        sources=_of_system(_H20_SYSTEM, "nvlink_gb_per_s", "nvlink_domain")
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
        kubernetes_resource="nvidia.com/gpu",
        sources=_of_system(f"{_SYSTEMS}/b200_sxm", "nominal_gb", "nvlink_gb_per_s", "nvlink_domain")
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
        nic_gbps=800,
        gpus_per_nic=1,
        kubernetes_resource="nvidia.com/gpu",
        sources=_of_system(f"{_SYSTEMS}/gb200", "nvlink_gb_per_s", "nvlink_domain", "nic_gbps")
        | {
            "nominal_gb": "assumed: what is said of it is 186 to 192 GB",
            "usable_bytes": "github.com/vllm-project/vllm issue 43951: total capacity 184.31 GiB",
            "gpus_per_nic": "github.com/MicrosoftDocs/azure-compute-docs 2af9ad07 "
            f"{_AZURE}/nd-gb200-v6-series-summary.md: 4 for 4 GPUs",
            "kubernetes_resource": _NVIDIA_RESOURCE,
        },
    ),
    "mi300x": Gpu(
        device="cuda",
        nominal_gb=192,
        usable_bytes=206_141_652_992,
        nvlink_gb_per_s=448,
        peer_gb_per_s=64,
        nvlink_domain=8,
        nic_gbps=400,
        gpus_per_nic=1,
        kubernetes_resource="amd.com/gpu",
        sources={
            "nominal_gb": f"github.com/MicrosoftDocs/azure-compute-docs 4e09f799 {_AZURE}/ndmi300xv5-series-specs.md",
            "usable_bytes": "github.com/ROCm/legacy-rocm-build issue 4750: rocm-smi's VRAM Total Memory",
            "nvlink_gb_per_s": _MI300X_LINKS,
            "peer_gb_per_s": _MI300X_LINKS,
            "nvlink_domain": "github.com/ROCm/legacy-rocm-build 089d7513 docs/conceptual/gpu-arch/mi300.md: 7 links a "
            "GPU, 8 GPUs fully connected",
            "nic_gbps": "github.com/MicrosoftDocs/azure-compute-docs 2bc777fd "
            f"{_AZURE}/ndmi300xv5-series-summary.md: 400 Gb/s",
            "gpus_per_nic": "github.com/MicrosoftDocs/azure-compute-docs 2bc777fd "
            f"{_AZURE}/ndmi300xv5-series-summary.md: each its own",
            "kubernetes_resource": "github.com/ROCm/k8s-device-plugin 8bfe66bd example/pod/jax-multi-gpu.yaml",
        },
    ),
}


def unplanned_gpu(name: str) -> str | None:
    """Return the GPU that `name` says and that the catalog does not have; None where it says none of these."""
    written = name.casefold()
    return max((each for each in UNPLANNED_GPUS if each in written), key=len, default=None)
