"""A checkpoint's `config.json` to the shapes that the planner reads.

The planner never opens weights: shapes decide a layout, and the digest of the file's bytes lets the runtime refuse a
checkpoint that is not the one planned for. Keys that the planner does not read are the runtime's business.

Two families are read: latent attention, with an indexer or without, and grouped attention without shared experts.

Source of the keys: transformers `DeepseekV3Config` and `Qwen3MoeConfig`, and the files that `catalog.py` names.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.facts.catalog import GroupedAttention, Indexer, LatentAttention, Model
from planner.facts.digest import digest_of_bytes
from planner.facts.files import read_file
from planner.problems.errors import Violation

__all__ = ["ModelConfig", "read_model_config"]

PATH = "model.config"
MAX_SIZE = 1_000_000  # of any one dimension


@dataclass(frozen=True)
class ModelConfig:
    """The shapes, and the sha256 of the very bytes that they were read from."""

    model: Model
    digest: str
    other_quantization: str | None  # what its quantization_config says that no precision of a spec does


class _Shapes(BaseModel):
    """What both families call alike."""

    model_config = ConfigDict(strict=True, extra="ignore")

    num_hidden_layers: int = Field(ge=1, le=1000)
    hidden_size: int = Field(ge=1, le=MAX_SIZE)
    intermediate_size: int = Field(ge=1, le=MAX_SIZE)
    moe_intermediate_size: int = Field(ge=1, le=MAX_SIZE)
    vocab_size: int = Field(ge=1, le=100_000_000)
    num_attention_heads: int = Field(ge=1, le=65_536)
    num_experts_per_tok: int = Field(ge=1, le=65_536)
    max_position_embeddings: int = Field(ge=2, le=1_000_000_000)
    tie_word_embeddings: bool = False
    quantization_config: Any = None  # of many forms; one of them is read


class _LatentShapes(_Shapes):
    first_k_dense_replace: int = Field(ge=0, le=1000)
    n_routed_experts: int = Field(ge=1, le=65_536)
    n_shared_experts: int = Field(ge=0, le=64)
    n_group: int | None = Field(ge=1, le=65_536)  # null where experts are chosen without groups
    topk_group: int | None = Field(default=None, ge=1, le=65_536)  # without it a token may go to all groups
    q_lora_rank: int | None = Field(ge=1, le=MAX_SIZE)
    kv_lora_rank: int = Field(ge=1, le=MAX_SIZE)
    qk_nope_head_dim: int = Field(ge=1, le=MAX_SIZE)
    qk_rope_head_dim: int = Field(ge=1, le=MAX_SIZE)
    v_head_dim: int = Field(ge=1, le=MAX_SIZE)

    def broken(self) -> str | None:
        """How the shapes do not fit together."""
        if self.first_k_dense_replace >= self.num_hidden_layers:
            dense, layers = self.first_k_dense_replace, self.num_hidden_layers
            return f"first_k_dense_replace ({dense}) leaves none of num_hidden_layers ({layers}) for experts"
        if self.n_group and self.n_routed_experts % self.n_group:
            return f"n_group ({self.n_group}) does not divide n_routed_experts ({self.n_routed_experts})"
        if self.n_group and self.topk_group and self.topk_group > self.n_group:
            return f"topk_group ({self.topk_group}) is more than n_group ({self.n_group})"
        return _too_many_chosen(self.num_experts_per_tok, "n_routed_experts", self.n_routed_experts)

    def model(self, source: str, model_type: str) -> Model:
        """As the planner has them."""
        return Model(
            **_shared(self, source, model_type),
            num_dense_layers=self.first_k_dense_replace,
            attention=self.attention(None),
            num_routed_experts=self.n_routed_experts,
            num_shared_experts=self.n_shared_experts,
            num_expert_groups=self.n_group or 1,
            num_groups_per_token=self.topk_group if self.n_group and self.topk_group else self.n_group or 1,
        )

    def attention(self, indexer: Indexer | None) -> LatentAttention:
        """Of each layer."""
        return LatentAttention(
            num_heads=self.num_attention_heads,
            q_lora_rank=self.q_lora_rank,
            kv_lora_rank=self.kv_lora_rank,
            qk_nope_head_dim=self.qk_nope_head_dim,
            qk_rope_head_dim=self.qk_rope_head_dim,
            v_head_dim=self.v_head_dim,
            indexer=indexer,
        )


class _IndexedShapes(_LatentShapes):
    index_n_heads: int = Field(ge=1, le=65_536)
    index_head_dim: int = Field(ge=1, le=MAX_SIZE)

    def attention(self, indexer: Indexer | None) -> LatentAttention:
        """With the indexer of each layer."""
        return super().attention(indexer or Indexer(self.index_n_heads, self.index_head_dim))


class _GroupedShapes(_Shapes):
    num_experts: int = Field(ge=1, le=65_536)
    num_key_value_heads: int = Field(ge=1, le=65_536)
    head_dim: int = Field(ge=1, le=MAX_SIZE)
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] = []

    def broken(self) -> str | None:
        """How the shapes do not fit together."""
        if self.decoder_sparse_step != 1 or self.mlp_only_layers:
            return "decoder_sparse_step and mlp_only_layers put dense layers among the MoE layers, which is not planned"
        if self.num_attention_heads % self.num_key_value_heads:
            heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
            return f"num_key_value_heads ({kv_heads}) does not divide num_attention_heads ({heads})"
        return _too_many_chosen(self.num_experts_per_tok, "num_experts", self.num_experts)

    def model(self, source: str, model_type: str) -> Model:
        """As the planner has them."""
        return Model(
            **_shared(self, source, model_type),
            num_dense_layers=0,
            attention=GroupedAttention(self.num_attention_heads, self.num_key_value_heads, self.head_dim),
            num_routed_experts=self.num_experts,
            num_shared_experts=0,
            num_expert_groups=1,
            num_groups_per_token=1,
        )


KINDS: dict[str, type[_LatentShapes | _GroupedShapes]] = {
    "deepseek_v3": _LatentShapes,
    "deepseek_v32": _IndexedShapes,
    "deepseek_v2": _LatentShapes,
    "kimi_k2": _LatentShapes,
    "qwen3_moe": _GroupedShapes,
}


# Families that no pass plans, by the model_type of their config.json, as transformers names it.
OTHER_FAMILIES = {
    "glm4_moe": "GLM-4.5",
    "gpt_oss": "gpt-oss",
    "llama4": "Llama 4",
    "minimax": "MiniMax",
    "minimax_m2": "MiniMax",
    "mixtral": "Mixtral",
    "qwen2_moe": "Qwen2-MoE",
    "qwen3_next": "Qwen3-Next",
    "dots1": "dots.llm1",
    "ernie4_5_moe": "ERNIE 4.5",
}


def read_model_config(path: Path, written: str) -> ModelConfig | Violation:
    """The config at `path`, which the spec calls `written`; or what is wrong with it."""
    try:
        content = read_file(path)
    except (OSError, ValueError) as error:  # the latter: no path has a null character
        fix = "give the path relative to the spec's folder"
        reason = getattr(error, "strerror", None) or str(error)
        return Violation(PATH, written, "S301 must be a readable file", reason, fix)
    model_type = _model_type(content)
    if model_type is None:
        return _not_a_config(written, "it is not a JSON object with a model_type")
    if model_type not in KINDS:
        return _of_another_family(written, model_type)
    try:
        shapes = KINDS[model_type].model_validate_json(content)
    except ValidationError as error:
        keys = [str(detail["loc"][0]) for detail in error.errors(include_url=False) if detail["loc"]]
        return _not_a_config(written, f"missing or out of range in it: {', '.join(keys) or 'everything'}")
    if broken := shapes.broken():
        return Violation(PATH, written, "S303 must have shapes that fit together", broken, "correct the file")
    other = _other_quantization(shapes.quantization_config)
    return ModelConfig(shapes.model(written, model_type), digest_of_bytes(content), other)


def _model_type(content: bytes) -> str | None:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    model_type = found.get("model_type") if isinstance(found, dict) else None
    return model_type if isinstance(model_type, str) else None


def _not_a_config(written: str, reason: str, fix: str = "point to the checkpoint's own config.json") -> Violation:
    rule = f"S302 must be a config.json of model_type {' or '.join(KINDS)}"
    return Violation(PATH, written, rule, reason, fix)


def _of_another_family(written: str, model_type: str) -> Violation:
    family = OTHER_FAMILIES.get(model_type)
    called = f"its model_type is {model_type[:40]}" + (f", the {family} family's," if family else "")
    return _not_a_config(written, f"{called} and no other family is planned yet", "choose a model of one of these")


def _too_many_chosen(chosen: int, key: str, experts: int) -> str | None:
    return f"num_experts_per_tok ({chosen}) is more than {key} ({experts})" if chosen > experts else None


def _shared(shapes: _Shapes, source: str, model_type: str) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "num_layers": shapes.num_hidden_layers,
        "hidden_size": shapes.hidden_size,
        "vocab_size": shapes.vocab_size,
        "dense_intermediate_size": shapes.intermediate_size,
        "expert_intermediate_size": shapes.moe_intermediate_size,
        "num_experts_per_token": shapes.num_experts_per_tok,
        "max_position_embeddings": shapes.max_position_embeddings,
        "ties_embeddings": shapes.tie_word_embeddings,
        "source": source,
        "weights_in": _quantized_to(shapes.quantization_config) or "bf16",
    }


def _quantized_to(quantization: Any) -> Literal["fp8", "fp4", "w4a8"] | None:
    """The precision of a spec that says it: FP8 in blocks as DeepSeek has it, NVIDIA's NVFP4, or SGLang's W4AFP8."""
    said = quantization if isinstance(quantization, dict) else {}
    method = said.get("quant_method")
    if method == "fp8" and said.get("weight_block_size") == [128, 128]:
        return "fp8"
    if method == "modelopt" and said.get("quant_algo") == "NVFP4":
        return "fp4"
    return "w4a8" if method == "w4afp8" else None


def _other_quantization(quantization: Any) -> str | None:
    """Return how a message calls a quantisation that is none of these; None without one."""
    if not quantization or _quantized_to(quantization):
        return None
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    return method[:40] if isinstance(method, str) and method else "of another form"
