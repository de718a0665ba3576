"""A checkpoint's `config.json` to the shapes that the planner reads.

The planner never opens weights: shapes decide a layout, and the digest of the file's bytes lets the runtime refuse a
checkpoint that is not the one planned for. Keys that the planner does not read are the runtime's business.

Source of the keys: transformers `DeepseekV3Config` and `DeepseekV2Config`.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.catalog import LatentAttention, Model
from planner.errors import Violation

__all__ = ["ModelConfig", "read_model_config"]

ModelType = Literal["deepseek_v3", "deepseek_v2"]
PATH = "model.config"


@dataclass(frozen=True)
class ModelConfig:
    """The shapes, and the sha256 of the very bytes that they were read from."""

    model: Model
    digest: str


class _Shapes(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    model_type: ModelType
    num_hidden_layers: int = Field(ge=1, le=1000)
    first_k_dense_replace: int = Field(ge=0, le=1000)
    hidden_size: int = Field(ge=1, le=1_000_000)
    intermediate_size: int = Field(ge=1, le=1_000_000)
    moe_intermediate_size: int = Field(ge=1, le=1_000_000)
    vocab_size: int = Field(ge=1, le=100_000_000)
    num_attention_heads: int = Field(ge=1, le=65_536)
    n_routed_experts: int = Field(ge=1, le=65_536)
    n_shared_experts: int = Field(ge=0, le=64)
    num_experts_per_tok: int = Field(ge=1, le=65_536)
    n_group: int | None = Field(ge=1, le=65_536)  # null where experts are chosen without groups
    q_lora_rank: int | None = Field(ge=1, le=1_000_000)
    kv_lora_rank: int = Field(ge=1, le=1_000_000)
    qk_nope_head_dim: int = Field(ge=1, le=1_000_000)
    qk_rope_head_dim: int = Field(ge=1, le=1_000_000)
    v_head_dim: int = Field(ge=1, le=1_000_000)
    max_position_embeddings: int = Field(ge=2, le=1_000_000_000)


def read_model_config(path: Path, written: str) -> ModelConfig | Violation:
    """The config at `path`, which the spec calls `written`; or what is wrong with it."""
    try:
        content = path.read_bytes()
    except OSError as error:
        fix = "give the path relative to the spec's folder"
        return Violation(PATH, written, "S301 must be a readable file", error.strerror or str(error), fix)
    try:
        shapes = _Shapes.model_validate_json(content)
    except ValidationError as error:
        return _not_a_config(error, written)
    if broken := _broken_shape(shapes):
        return Violation(PATH, written, "S303 must have shapes that fit together", broken, "correct the file")
    return ModelConfig(_model(shapes, source=written), f"sha256:{hashlib.sha256(content).hexdigest()}")


def _not_a_config(error: ValidationError, written: str) -> Violation:
    details = error.errors(include_url=False)
    keys = [str(detail["loc"][0]) for detail in details if detail["loc"]]
    reason = f"missing or out of range in it: {', '.join(keys)}" if keys else "it is not a JSON object"
    rule = f"S302 must be a DeepSeek-V3 or V2 config.json (model_type {' or '.join(get_args(ModelType))})"
    return Violation(PATH, written, rule, reason, "point to the checkpoint's own config.json")


def _broken_shape(shapes: _Shapes) -> str | None:
    if shapes.first_k_dense_replace >= shapes.num_hidden_layers:
        dense, layers = shapes.first_k_dense_replace, shapes.num_hidden_layers
        return f"first_k_dense_replace ({dense}) leaves none of num_hidden_layers ({layers}) for experts"
    if shapes.n_group and shapes.n_routed_experts % shapes.n_group:
        return f"n_group ({shapes.n_group}) does not divide n_routed_experts ({shapes.n_routed_experts})"
    if shapes.num_experts_per_tok > shapes.n_routed_experts:
        chosen, experts = shapes.num_experts_per_tok, shapes.n_routed_experts
        return f"num_experts_per_tok ({chosen}) is more than n_routed_experts ({experts})"
    return None


def _model(shapes: _Shapes, source: str) -> Model:
    return Model(
        num_layers=shapes.num_hidden_layers,
        num_dense_layers=shapes.first_k_dense_replace,
        hidden_size=shapes.hidden_size,
        vocab_size=shapes.vocab_size,
        attention=LatentAttention(
            num_heads=shapes.num_attention_heads,
            q_lora_rank=shapes.q_lora_rank,
            kv_lora_rank=shapes.kv_lora_rank,
            qk_nope_head_dim=shapes.qk_nope_head_dim,
            qk_rope_head_dim=shapes.qk_rope_head_dim,
            v_head_dim=shapes.v_head_dim,
        ),
        dense_intermediate_size=shapes.intermediate_size,
        expert_intermediate_size=shapes.moe_intermediate_size,
        num_routed_experts=shapes.n_routed_experts,
        num_experts_per_token=shapes.num_experts_per_tok,
        num_shared_experts=shapes.n_shared_experts,
        num_expert_groups=shapes.n_group or 1,
        max_position_embeddings=shapes.max_position_embeddings,
        source=source,
    )
