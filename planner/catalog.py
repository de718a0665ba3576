"""Facts about models and GPUs, each with its source. No other file of the planner names a model or a GPU.

Only what a pass reads stands here: memory, bandwidth and speed join with the passes that use them.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = ["GPUS", "MODELS", "Gpu", "Model"]


@dataclass(frozen=True)
class Model:
    """The shapes of a DeepSeek-V3-class model: latent attention (MLA), routed and shared experts."""

    num_layers: int
    num_dense_layers: int  # the first ones; the others are MoE layers
    num_routed_experts: int  # logical experts of one MoE layer
    num_shared_experts: int
    num_expert_groups: int  # the gate picks groups first; a group is a run of consecutive experts
    kv_lora_rank: int
    qk_rope_head_dim: int
    max_position_embeddings: int
    source: str

    @property
    def num_moe_layers(self) -> int:
        """Layers that have an expert map."""
        return self.num_layers - self.num_dense_layers

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Latent KV of one token over all layers: 61 x (512 + 64) x 2 B = 70,272 B for DeepSeek-V3 in BF16."""
        return self.num_layers * (self.kv_lora_rank + self.qk_rope_head_dim) * bytes_per_value


@dataclass(frozen=True)
class Gpu:
    """What a rank runs on."""

    device: Literal["cpu", "cuda"]
    source: str


_DEEPSEEK_V3 = Model(
    num_layers=61,
    num_dense_layers=3,
    num_routed_experts=256,
    num_shared_experts=1,
    num_expert_groups=8,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    max_position_embeddings=163_840,
    source="huggingface.co/deepseek-ai/DeepSeek-V3 config.json; R1's has the same shapes",
)

MODELS = {"deepseek-r1": _DEEPSEEK_V3, "deepseek-v3": _DEEPSEEK_V3}

GPUS = {
    "cpu": Gpu(device="cpu", source="no GPU at all: each rank is a process"),
    "h800": Gpu(
        device="cuda", source="github.com/deepseek-ai/open-infra-index, day 6: the GPU of DeepSeek's own service"
    ),
}
