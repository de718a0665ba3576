"""The base of every family: the keys of its `config.json` as fields, checks of their consistency, and the model.

A spec names one model of many families, so pydantic builds a family's validator on first use. A family's fields are the
keys that the planner reads, as checkpoints write them. A key has a default only if published files leave it out and
transformers has that default.

A family says which layers have experts, what the experts' sizes are, and what each layer's attention is. This module
checks for all families that the parts fit together and can be planned.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from planner.facts.attention.kind import Attention
from planner.facts.model import MAX_LAYERS, Dense, Experts, Layer, Model

MAX_SIZE = 1_000_000  # of any one dimension

Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
Count = Annotated[int, Field(ge=1, le=65_536)]
Entry = Annotated[int, Field(ge=-MAX_SIZE, le=MAX_SIZE)]  # of a list: each family checks for the numbers that it knows

# Keys for the number of MTP modules: MiniMax's, Qwen's, and that of all other families
MTP_LAYERS = AliasChoices("num_mtp_modules", "mtp_num_hidden_layers", "num_nextn_predict_layers")

T = TypeVar("T")
PerLayer = Annotated[list[T], Field(max_length=2 * MAX_LAYERS)]  # some published lists go on for the MTP layers


@dataclass(frozen=True)
class File:
    """Facts of a `config.json` that are no shapes, and that all families give in the same way."""

    source: str
    model_type: str
    architecture: str | None = None


class Shapes(BaseModel):
    """The keys that all families share, and methods that a family may override."""

    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)

    num_hidden_layers: int = Field(ge=1, le=MAX_LAYERS)
    hidden_size: Size
    vocab_size: int = Field(ge=1, le=100_000_000)
    num_attention_heads: Count
    num_experts_per_tok: Count
    max_position_embeddings: int = Field(ge=2, le=1_000_000_000)
    tie_word_embeddings: bool = False
    num_nextn_predict_layers: int = Field(default=0, ge=0, le=MAX_LAYERS, validation_alias=MTP_LAYERS)

    counts_experts: ClassVar[str] = "n_routed_experts"  # the key with the number of routed experts
    per_layer: ClassVar[tuple[str, ...]] = ()  # keys whose values are lists with an entry for each layer

    @property
    def order(self) -> str:
        """Return the keys that say which layers are dense, for messages.

        Return an empty text if no layer can be dense.
        """
        return ""

    def is_moe(self) -> list[bool]:
        """Return for each layer whether it has experts."""
        return [True] * self.num_hidden_layers

    def contradiction(self) -> str | None:
        """Explain a contradiction among the family's own keys, or return None.

        Called only if all lists have the right lengths.
        """
        return None

    def planning_obstacle(self) -> str | None:
        """Return the reason why the planner cannot plan these shapes; None if it can.

        Called only for shapes without contradictions.
        """
        if not any(layer.attention.kv(1).entry_bytes for layer in self.layers()):
            return "no layer keeps KV of all tokens, by which memory for them is planned"
        is_moe = self.is_moe()  # an expert map's rows are consecutive layers
        return None if sorted(is_moe) == is_moe else f"by {self.order}, dense layers stand among MoE layers"

    def attention(self, index: int) -> Attention:
        """Return the attention of layer `index`."""
        raise NotImplementedError

    def experts(self) -> Experts:
        """Return the FFN of each MoE layer."""
        raise NotImplementedError

    def dense(self) -> Dense:
        """Return the FFN of each dense layer; only called if there are some."""
        raise NotImplementedError

    def layers(self) -> tuple[Layer, ...]:
        """Return the layers of the main model."""
        has_experts = enumerate(self.is_moe())
        return tuple(
            Layer(self.attention(index), self.experts() if moe else self.dense()) for index, moe in has_experts
        )

    def draft_layer(self) -> Layer | None:
        """Return the layer of an MTP module; None if there is none or its shape is unknown."""
        return None

    @property
    def num_streams(self) -> int:
        """Return the number of residual streams. Most families have one."""
        return 1

    def explain_contradictions(self) -> str | None:
        """Explain the contradictions in the shapes, except contradictions that follow from others.

        Return None if there are no contradictions.
        """
        order = self._miscounted_list() or self.contradiction() or self._has_no_layers()
        wrong = (order, *self.uneven_heads(), self._uneven_groups(), self._too_many_chosen())
        return ", and ".join(dict.fromkeys(each for each in wrong if each)) or None

    def uneven_heads(self) -> Iterator[str | None]:
        """Yield a reason for each number of heads that should divide another but does not; None where it does."""
        yield None

    def model(self, file: File) -> Model:
        """Return the planner's model of these shapes."""
        return Model(
            model_type=file.model_type,
            layers=self.layers(),
            hidden_size=self.hidden_size,
            vocab_size=self.vocab_size,
            max_position_embeddings=self.max_position_embeddings,
            source=file.source,
            architecture=file.architecture,
            ties_embeddings=self.tie_word_embeddings,
            num_streams=self.num_streams,
            num_mtp_layers=self.num_nextn_predict_layers,
            draft_layer=self.draft_layer(),
        )

    def explain_wrong_length(self, key: str, entries: Sequence[Any] | None) -> str | None:
        """Explain that the list under `key` does not have one entry per layer, or return None."""
        if entries is None or len(entries) == self.num_hidden_layers:
            return None
        return f"{key} has {len(entries)} entries, and num_hidden_layers is {self.num_hidden_layers}"

    def _miscounted_list(self) -> str | None:
        return next(filter(None, (self.explain_wrong_length(key, getattr(self, key)) for key in self.per_layer)), None)

    def _has_no_layers(self) -> str | None:
        is_moe = self.is_moe()
        return None if any(is_moe) else f"by {self.order}, none of the {len(is_moe)} layers has experts"

    def _uneven_groups(self) -> str | None:
        """Explain groups that do not divide the experts, or too many groups for a token; return None if all is well."""
        experts = self.experts()
        num_groups, chosen = experts.num_groups, experts.num_groups_per_token
        if wrong := explain_uneven("n_group", num_groups, self.counts_experts, experts.num_routed):
            return wrong
        return f"topk_group ({chosen}) is more than n_group ({num_groups})" if chosen > num_groups else None

    def _too_many_chosen(self) -> str | None:
        chosen, num_experts = self.num_experts_per_tok, self.experts().num_routed
        if chosen <= num_experts:
            return None
        return f"num_experts_per_tok ({chosen}) is more than {self.counts_experts} ({num_experts})"


class DenseFirstShapes(Shapes):
    """The keys of families whose first layers are dense. Shared experts are as large as routed ones.

    The layer of an MTP module is like the main model's last layer.
    """

    intermediate_size: Size  # of dense layers
    moe_intermediate_size: Size
    first_k_dense_replace: int = Field(ge=0, le=MAX_LAYERS)
    n_routed_experts: Count
    n_shared_experts: int = Field(ge=0, le=64)
    n_group: Count | None  # None: experts are chosen without groups
    topk_group: Count | None = None  # None: a token may go to all groups

    @property
    def order(self) -> str:
        """Return the key that says which layers are dense."""
        return f"first_k_dense_replace ({self.first_k_dense_replace})"

    def is_moe(self) -> list[bool]:
        """Return for each layer whether it has experts."""
        return [index >= self.first_k_dense_replace for index in range(self.num_hidden_layers)]

    def experts(self) -> Experts:
        """Return the FFN of each MoE layer."""
        return Experts(
            num_routed=self.n_routed_experts,
            num_per_token=self.num_experts_per_tok,
            intermediate_size=self.moe_intermediate_size,
            num_shared=self.n_shared_experts,
            shared_intermediate_size=self.moe_intermediate_size,
            num_groups=self.n_group or 1,
            num_groups_per_token=self.topk_group if self.n_group and self.topk_group else self.n_group or 1,
        )

    def dense(self) -> Dense:
        """Return the FFN of each dense layer."""
        return Dense(self.intermediate_size)

    def draft_layer(self) -> Layer | None:
        """Return the layer of an MTP module."""
        return self.layers()[-1] if self.num_nextn_predict_layers else None


def explain_uneven(part: str, number: int, whole: str, size: int) -> str | None:
    """Explain that the key `part`, with the value `number`, does not divide the key `whole`, with the value `size`.

    Return None if it divides it.
    """
    return f"{part} ({number}) does not divide {whole} ({size})" if size % number else None
