"""The fields of a DeepSeek-V3 `config.json` that the computation reads, checked.

What this runtime cannot compute yet is refused by name, never approximated.
Source of the names: deepseek-ai/DeepSeek-V3 `config.json`; transformers `DeepseekV3Config`.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from runtime.checkpoint import read_json
from runtime.errors import CheckpointError

__all__ = ["ModelConfig", "read_model_config"]

REQUIRED_VALUES = {
    "model_type": "deepseek_v3",
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "hidden_act": "silu",
    "rope_scaling": None,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "quantization_config": None,
}


@dataclass(frozen=True)
class ModelConfig:
    """Names as published."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    first_k_dense_replace: int
    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int

    @property
    def latent_dim(self) -> int:
        """What the KV cache holds of one token in one layer: the compressed KV and the shared rotary key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def num_moe_layers(self) -> int:
        """The first layers are dense."""
        return self.num_hidden_layers - self.first_k_dense_replace


def read_model_config(folder: Path) -> ModelConfig:
    """Read `config.json`. Raises CheckpointError for a missing key, or a value that this runtime does not compute."""
    path = folder / "config.json"
    document = read_json(path)
    for key, value in REQUIRED_VALUES.items():
        if document.get(key, value) != value:
            raise CheckpointError(f"{path}: {key} is {document[key]!r}, this runtime computes only {value!r}")
    return ModelConfig(**{field.name: _number(document, field.name, path) for field in fields(ModelConfig)})


def _number(document: dict[str, Any], key: str, path: Path) -> Any:
    value = document.get(key)
    if not isinstance(value, (int, float)):
        raise CheckpointError(f"{path}: {key} is {value!r}, a number is needed")
    return value
