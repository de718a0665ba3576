"""Facts about models and GPUs, each with its source. No other file names a model or a GPU.

A figure that was not read anywhere, only concluded, has a source that begins with `assumed`: plans say so too. What
could not be found is left out. Only what a pass reads stands here: speeds join with the passes that use them. A model
that is not listed comes with its `config.json` (`model_config.py`), a GPU with its figures in the spec (`GpuSpec`).

Units: bytes; GB is 1e9 bytes, GiB is 2^30. Links are one way, as one GPU sees them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["GPUS", "MODELS", "Attention", "Gpu", "GroupedAttention", "Indexer", "LatentAttention", "Model"]

ASSUMED = "assumed"


@dataclass(frozen=True)
class Indexer:
    """The small attention that picks which tokens the large one reads (DeepSeek sparse attention).

    Source: github.com/deepseek-ai/DeepSeek-V3.2-Exp inference/model.py, class Indexer.
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
        """Of one layer: 1,152 B for (512 + 64) values in BF16."""
        indexed = self.indexer.kv_bytes_per_token if self.indexer else 0
        return (self.kv_lora_rank + self.qk_rope_head_dim) * bytes_per_value + indexed

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

        Source: github.com/vllm-project/vllm, QKVParallelLinear: KV heads are split, or held several times if fewer.
        """
        kv_heads = max(1, self.num_kv_heads // num_gpus)
        return replace(self, num_heads=self.num_heads // num_gpus, num_kv_heads=kv_heads)


Attention = LatentAttention | GroupedAttention


@dataclass(frozen=True)
class Model:
    """The shapes of a mixture-of-experts model."""

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
    max_position_embeddings: int
    source: str

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
    """What a rank runs on, and how it is tied to others. `cpu` has none of the figures: its memory is the host's."""

    device: Literal["cpu", "cuda"]  # as PyTorch calls it; ROCm's is `cuda` too
    sources: Mapping[str, str]  # of each figure
    nominal_gb: int | None = None  # what it is sold as
    usable_bytes: int | None = None  # what the driver lets a process allocate, its own context included
    nvlink_gb_per_s: float | None = None  # or what takes its place inside a node
    nvlink_domain: int | None = None  # GPUs that reach each other by it
    nic_gbps: float | None = None
    gpus_per_nic: int | None = None
    kubernetes_resource: str | None = None  # what a container asks for

    @property
    def assumed(self) -> tuple[str, ...]:
        """The figures that nobody read anywhere."""
        return tuple(name for name, source in self.sources.items() if source.startswith(ASSUMED))


_AICONFIGURATOR = "github.com/ai-dynamo/aiconfigurator 095f58a5 aic-core/src/aiconfigurator_core"

_DEEPSEEK_V3_ATTENTION = LatentAttention(
    num_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
)

_DEEPSEEK_V3 = Model(
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
    max_position_embeddings=163_840,
    source="github.com/deepseek-ai/DeepSeek-V3 9b4e9788 inference/configs/config_671B.json; "
    f"positions, and that R1 is alike: {_AICONFIGURATOR}/model_configs/deepseek-ai--DeepSeek-{{V3,R1}}_config.json",
)

_DEEPSEEK_V32 = Model(
    num_layers=61,
    num_dense_layers=3,
    hidden_size=7168,
    vocab_size=129_280,
    attention=LatentAttention(
        num_heads=128,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        indexer=Indexer(num_heads=64, head_dim=128),
    ),
    dense_intermediate_size=18_432,
    expert_intermediate_size=2048,
    num_routed_experts=256,
    num_experts_per_token=8,
    num_shared_experts=1,
    num_expert_groups=8,
    max_position_embeddings=163_840,
    source="github.com/deepseek-ai/DeepSeek-V3.2-Exp 3b99a535 inference/config_671B_v3.2.json; "
    f"positions: {_AICONFIGURATOR}/model_configs/deepseek-ai--DeepSeek-V3.2_config.json",
)

_DEEPSEEK_V2 = Model(
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
    max_position_embeddings=163_840,
    source="github.com/deepseek-ai/DeepSeek-V3 9b4e9788 inference/configs/config_236B.json; "
    "positions: original_seq_len 4096 x rope_factor 40, inference/model.py",
)

_DEEPSEEK_V2_LITE = Model(
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
    max_position_embeddings=163_840,
    source="github.com/deepseek-ai/DeepSeek-V3 9b4e9788 inference/configs/config_16B.json; groups and positions "
    "(original_seq_len 4096 x rope_factor 40): the defaults of inference/model.py",
)

_QWEN3_235B = Model(
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
    max_position_embeddings=40_960,
    source=f"{_AICONFIGURATOR}/model_configs/Qwen--Qwen3-235B-A22B_config.json",
)

_KIMI_K2 = Model(
    num_layers=61,
    num_dense_layers=1,
    hidden_size=7168,
    vocab_size=163_840,
    attention=LatentAttention(
        num_heads=64, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    ),
    dense_intermediate_size=18_432,
    expert_intermediate_size=2048,
    num_routed_experts=384,
    num_experts_per_token=8,
    num_shared_experts=1,
    num_expert_groups=1,
    max_position_embeddings=131_072,
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
_NVIDIA_RESOURCE = "github.com/NVIDIA/k8s-device-plugin README; kubernetes.io, Schedule GPUs"

GPUS = {
    "cpu": Gpu(device="cpu", sources={"device": "no GPU at all: each rank is a process"}),
    "h800": Gpu(
        device="cuda",
        nominal_gb=80,
        usable_bytes=84_943_110_144,
        nvlink_gb_per_s=200,
        nvlink_domain=8,
        nic_gbps=400,
        gpus_per_nic=1,
        kubernetes_resource="nvidia.com/gpu",
        sources={
            "device": "github.com/deepseek-ai/open-infra-index, day 6: the GPU of DeepSeek's own service",
            "usable_bytes": "github.com/deepseek-ai/profile-data, totalGlobalMem in the traces",
            "nvlink_gb_per_s": "github.com/ai-dynamo/aiconfigurator 77f0282e src/aiconfigurator/systems/h800_sxm.yaml",
            "nvlink_domain": "open-infra-index, day 6: 8 GPUs a node",
            "nic_gbps": "github.com/deepseek-ai/DeepEP README: CX7 400 Gb/s, one a GPU",
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
        sources={
            "usable_bytes": "github.com/vllm-project/vllm issue 27508: total capacity 79.11 GiB, as the H800's rounds",
            "nvlink_gb_per_s": f"{_SYSTEMS}/h100_sxm.yaml",
            "nvlink_domain": f"{_SYSTEMS}/h100_sxm.yaml",
            "nic_gbps": f"{_SYSTEMS}/h100_sxm.yaml",
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
        sources={
            "usable_bytes": "PyTorch's out-of-memory messages: total capacity 139.80 or 139.81 GiB, the lower; "
            "nvidia-smi reports 143,771 MiB (thundergolfer.com/blog/nvidia-gpu-memory-capacity), 0.6 GB more",
            "nvlink_gb_per_s": f"{_SYSTEMS}/h200_sxm.yaml",
            "nvlink_domain": f"{_SYSTEMS}/h200_sxm.yaml",
            "nic_gbps": f"{_SYSTEMS}/h200_sxm.yaml",
            "kubernetes_resource": _NVIDIA_RESOURCE,
        },
    ),
    "h20": Gpu(
        device="cuda",
        nominal_gb=96,
        usable_bytes=101_873_352_704,
        nvlink_gb_per_s=450,
        nvlink_domain=8,
        nic_gbps=400,
        gpus_per_nic=2,
        kubernetes_resource="nvidia.com/gpu",
        sources={
            "usable_bytes": "assumed: nvidia-smi's 97,871 MiB less 717 MiB, what the driver keeps of a B200",
            "nvlink_gb_per_s": "github.com/ai-dynamo/aiconfigurator 16417930 src/aiconfigurator/systems/h20_sxm.yaml",
            "nvlink_domain": "github.com/ai-dynamo/aiconfigurator 16417930 src/aiconfigurator/systems/h20_sxm.yaml",
            "nic_gbps": "github.com/ai-dynamo/aiconfigurator 16417930 src/aiconfigurator/systems/h20_sxm.yaml: "
            "25 GB/s a GPU, that is four NICs of 400 Gb/s on a node of eight",
            "kubernetes_resource": _NVIDIA_RESOURCE,
        },
    ),
    "b200": Gpu(
        device="cuda",
        nominal_gb=180,
        usable_bytes=191_514_017_792,
        nvlink_gb_per_s=900,
        nvlink_domain=8,
        nic_gbps=400,
        gpus_per_nic=1,
        kubernetes_resource="nvidia.com/gpu",
        sources={
            "usable_bytes": "CUDA's 182,642 MiB where nvidia-smi reports 183,359 (github.com/javydekoning/aws-hashcat, "
            "AWS p6-b200); 178.36 GiB: github.com/pytorch/ao pull request 4002",
            "nvlink_gb_per_s": f"{_SYSTEMS}/b200_sxm.yaml",
            "nvlink_domain": f"{_SYSTEMS}/b200_sxm.yaml",
            "nic_gbps": "assumed: 400 to 800 Gb/s are built, the lower",
            "kubernetes_resource": _NVIDIA_RESOURCE,
        },
    ),
    "gb200": Gpu(
        device="cuda",
        nominal_gb=186,
        usable_bytes=197_901_355_581,
        nvlink_gb_per_s=900,
        nvlink_domain=72,
        nic_gbps=800,
        gpus_per_nic=1,
        kubernetes_resource="nvidia.com/gpu",
        sources={
            "usable_bytes": "github.com/vllm-project/vllm issue 43951: total capacity 184.31 GiB; "
            f"nvidia-smi reports 189,471 MiB ({_SYSTEMS}/gb200.yaml)",
            "nvlink_gb_per_s": f"{_SYSTEMS}/gb200.yaml",
            "nvlink_domain": f"{_SYSTEMS}/gb200.yaml: num_gpus_per_rack",
            "nic_gbps": f"{_SYSTEMS}/gb200.yaml: inter_rack_bw",
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
        kubernetes_resource="amd.com/gpu",
        sources={
            "usable_bytes": "rocm-smi, VRAM Total Memory; ROCm's own test of rocm_smi_vram.h has it from hardware",
            "nvlink_gb_per_s": "assumed: 7 Infinity Fabric links of 64 GB/s, one to each other GPU of the node",
            "nvlink_domain": "github.com/MicrosoftDocs/azure-docs nd-mi300x-v5-series.md: 8 GPUs a node",
            "nic_gbps": "github.com/MicrosoftDocs/azure-docs nd-mi300x-v5-series.md: 8 x 400 Gigabit NDR",
            "kubernetes_resource": "instinct.docs.amd.com/projects/k8s-device-plugin",
        },
    ),
}
