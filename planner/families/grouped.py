"""Families with grouped attention in every layer: GLM-4.5 to 4.7, gpt-oss, MiniMax-M2, Mixtral, and Qwen's MoE models.

Families whose layers differ in more have files of their own.

Source of the keys: transformers `Glm4MoeConfig`, `GptOssConfig`, `MiniMaxM2Config`, `MixtralConfig`, `Qwen2MoeConfig`
and `Qwen3MoeConfig`; which layers of Qwen have experts: transformers 5.23.0 models/qwen3_moe/modeling_qwen3_moe.py,
Qwen3MoeDecoderLayer.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import AliasChoices, Field

from planner.facts.attention.grouped import GroupedAttention
from planner.facts.attention.kind import Attention
from planner.facts.model import Dense, Experts
from planner.families.shapes import Count, DenseFirstShapes, Entry, PerLayer, Shapes, Size, explain_uneven


class GroupedShapes(Shapes):
    """The keys of grouped attention.

    If `attention_bias` is true, the projections named by `biased` (`all` or `qkv`) have a bias.
    """

    num_key_value_heads: Count
    head_dim: Size | None = None  # None: hidden size / number of heads
    attention_bias: bool = False

    norms: ClassVar[str] = "none"  # of queries and keys, see `GroupedAttention`
    biased: ClassVar[str] = "all"

    def uneven_heads(self) -> Iterator[str | None]:
        """Yield a reason for each number of heads that should divide another but does not; None where it does."""
        heads = self.num_attention_heads
        if self.head_dim is None:
            yield explain_uneven("num_attention_heads", heads, "hidden_size", self.hidden_size)
        yield explain_uneven("num_key_value_heads", self.num_key_value_heads, "num_attention_heads", heads)

    def attention(self, index: int) -> Attention:
        """Return the attention of layer `index`, which is the same for all layers."""
        return self.grouped()

    def grouped(self, **more: Any) -> GroupedAttention:
        """Return the attention that these keys describe; `more` sets further fields, such as `window`."""
        head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        usual = {"norms": self.norms, "biases": self.biased if self.attention_bias else "none"}
        return GroupedAttention(self.num_attention_heads, self.num_key_value_heads, head_dim, **usual | more)


class Glm4MoeShapes(DenseFirstShapes, GroupedShapes):
    """The keys that GLM-4.5, 4.6 and 4.7 read.

    Dense layers come first, and MoE layers have a shared expert.
    """

    n_group: Count
    topk_group: Count
    head_dim: Size
    use_qk_norm: bool = False

    biased: ClassVar[str] = "qkv"

    def attention(self, index: int) -> Attention:
        """Return the attention of layer `index`; it is the same for all."""
        return self.grouped(norms="head" if self.use_qk_norm else "none")


class LocalExpertsShapes(GroupedShapes):
    """The keys of families that call routed experts "local" (`num_local_experts`)."""

    intermediate_size: Size  # of one routed expert
    num_local_experts: Count

    counts_experts: ClassVar[str] = "num_local_experts"

    def experts(self) -> Experts:
        """Return the experts of each MoE layer."""
        return Experts(self.num_local_experts, self.num_experts_per_tok, self.intermediate_size)


class MixtralShapes(LocalExpertsShapes):
    """The keys that Mixtral reads."""

    sliding_window: Size | None = None

    def planning_obstacle(self) -> str | None:
        """Return the reason why the planner cannot plan these shapes, such as a window; None if it can.

        No published checkpoint has a window.
        """
        return super().planning_obstacle() if self.sliding_window is None else "sliding_window is set"


class MiniMaxM2Shapes(LocalExpertsShapes):
    """The keys that MiniMax-M2 reads; queries and keys have one norm over all heads.

    In published files `attn_type_list` says for each layer that it has no linear attention.
    """

    head_dim: Size
    shared_intermediate_size: int = Field(default=0, ge=0, le=0)
    attn_type_list: PerLayer[Entry] | None = None

    norms: ClassVar[str] = "heads"

    def planning_obstacle(self) -> str | None:
        """Return the reason why the planner cannot plan these shapes, such as linear attention; None if it can."""
        is_linear = 0 in (self.attn_type_list or [])
        return "attn_type_list says that layers have linear attention" if is_linear else super().planning_obstacle()


class GptOssShapes(LocalExpertsShapes):
    """The keys that gpt-oss reads. Attention has sinks and biases, and in every other layer by default a window."""

    head_dim: Size
    attention_bias: bool = True
    sliding_window: Size
    layer_types: PerLayer[Literal["sliding_attention", "full_attention"]] | None = None

    per_layer: ClassVar[tuple[str, ...]] = ("layer_types",)

    def experts(self) -> Experts:
        """Return the experts of each MoE layer, which have biases."""
        return replace(super().experts(), has_biases=True)

    def attention(self, index: int) -> Attention:
        """Return the attention of layer `index`."""
        is_windowed = index % 2 == 0 if self.layer_types is None else self.layer_types[index] == "sliding_attention"
        return self.grouped(window=self.sliding_window if is_windowed else None, has_sinks=True)


class Qwen3MoeShapes(GroupedShapes):
    """The keys that Qwen3 MoE reads. Published files say `num_experts`, transformers writes `num_local_experts`.

    Every `decoder_sparse_step`-th layer has experts, except those in `mlp_only_layers`. In published files every layer
    has experts.
    """

    intermediate_size: Size | None = None  # of dense layers; a file without such layers may lack it
    moe_intermediate_size: Size
    num_experts: Count = Field(validation_alias=AliasChoices("num_experts", "num_local_experts"))
    decoder_sparse_step: Count = 1
    mlp_only_layers: PerLayer[Entry] | None = None
    use_sliding_window: bool = False

    counts_experts: ClassVar[str] = "num_experts"
    norms: ClassVar[str] = "head"

    @property
    def order(self) -> str:
        """Return the keys that say which layers are dense."""
        return "decoder_sparse_step and mlp_only_layers"

    def is_moe(self) -> list[bool]:
        """Return for each layer whether it has experts."""
        step, dense = self.decoder_sparse_step, frozenset(self.mlp_only_layers or ())
        return [index not in dense and (index + 1) % step == 0 for index in range(self.num_hidden_layers)]

    def contradiction(self) -> str | None:
        """Explain that `intermediate_size` is missing although some layers are dense, or return None."""
        is_missing = self.intermediate_size is None and not all(self.is_moe())
        return "some layers are dense, and there is no intermediate_size" if is_missing else None

    def planning_obstacle(self) -> str | None:
        """Return the reason why the planner cannot plan these shapes, such as a window; None if it can.

        No published checkpoint has a window.
        """
        return "use_sliding_window is true" if self.use_sliding_window else super().planning_obstacle()

    def experts(self) -> Experts:
        """Return the experts of each MoE layer."""
        return Experts(self.num_experts, self.num_experts_per_tok, self.moe_intermediate_size)

    def dense(self) -> Dense:
        """Return the FFN of each dense layer."""
        assert self.intermediate_size is not None
        return Dense(self.intermediate_size)


class SharedExpertShapes(Qwen3MoeShapes):
    """The keys of those Qwen families that have one shared expert, weighted by a gate."""

    shared_expert_intermediate_size: Size

    def experts(self) -> Experts:
        """Return the experts of each MoE layer."""
        size = self.shared_expert_intermediate_size
        return replace(super().experts(), num_shared=1, shared_intermediate_size=size, gates_shared=True)


class Qwen2MoeShapes(SharedExpertShapes):
    """The keys that Qwen2 MoE and Qwen1.5 MoE read."""

    qkv_bias: bool = True

    norms: ClassVar[str] = "none"

    def attention(self, index: int) -> Attention:
        """Return the attention of layer `index`, the same for all; the output projection has no bias."""
        return self.grouped(biases="qkv" if self.qkv_bias else "none")
