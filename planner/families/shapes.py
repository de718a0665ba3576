"""What every family's file has: the keys of its `config.json` as fields, what does not fit together, and the model.

A spec names one model, and there are many families: pydantic builds what checks the keys of one when it is first used.
A family's fields are the keys that it reads, as its checkpoints write them; other keys are the runtime's business. A
key has a default only where published files leave it out and transformers has that default.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from planner.facts.attention.kind import Attention
from planner.facts.model import Dense, Experts, Layer, Model

__all__ = ["MAX_LAYERS", "Count", "Entry", "File", "PerLayer", "Shapes", "Size", "Tower", "encoder_layer", "layers_of"]

MAX_SIZE = 1_000_000  # of any one dimension
MAX_LAYERS = 1000

Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
Count = Annotated[int, Field(ge=1, le=65_536)]
Entry = Annotated[int, Field(ge=-MAX_SIZE, le=MAX_SIZE)]  # of a list: each family says which numbers it knows

T = TypeVar("T")
PerLayer = Annotated[list[T], Field(max_length=2 * MAX_LAYERS)]  # some published lists go on for the MTP layers


@dataclass(frozen=True)
class File:
    """What of a `config.json` is read alike in all families."""

    source: str
    model_type: str
    architecture: str | None = None
    tower_weights: int = 0


class Shapes(BaseModel):
    """The keys that all families call alike."""

    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)

    num_hidden_layers: int = Field(ge=1, le=MAX_LAYERS)
    hidden_size: Size
    vocab_size: int = Field(ge=1, le=100_000_000)
    num_attention_heads: Count
    num_experts_per_tok: Count
    max_position_embeddings: int = Field(ge=2, le=1_000_000_000)
    tie_word_embeddings: bool = False
    num_nextn_predict_layers: int = Field(default=0, ge=0, le=MAX_LAYERS)

    def broken(self) -> str | None:
        """Return how the shapes do not fit together."""
        return None

    def unplanned(self) -> str | None:
        """Return what the planner cannot plan of shapes that fit together."""
        return None

    def layers(self) -> tuple[Layer, ...]:
        """Return the layers of the main model."""
        raise NotImplementedError

    def attention(self, index: int) -> Attention:
        """Return the attention of layer `index`."""
        raise NotImplementedError

    def draft_layer(self) -> Layer | None:
        """Return the layer of an MTP module; None where there is none, or where its shape is not known."""
        return None

    def more(self) -> dict[str, Any]:
        """Return what the family has besides, as fields of `Model`."""
        return {}

    def model(self, file: File) -> Model:
        """Return the model as the planner has it."""
        return Model(
            model_type=file.model_type,
            layers=self.layers(),
            hidden_size=self.hidden_size,
            vocab_size=self.vocab_size,
            max_position_embeddings=self.max_position_embeddings,
            source=file.source,
            architecture=file.architecture,
            ties_embeddings=self.tie_word_embeddings,
            tower_weights=file.tower_weights,
            draft_layer=self.draft_layer(),
            **{"num_mtp_layers": self.num_nextn_predict_layers} | self.more(),
        )

    def too_many_chosen(self, key: str, num_experts: int) -> str | None:
        """Return that a token has more experts than there are, where it is so."""
        chosen = self.num_experts_per_tok
        return f"num_experts_per_tok ({chosen}) is more than {key} ({num_experts})" if chosen > num_experts else None

    def uneven_heads(self, num_kv_heads: int) -> str | None:
        """Return that KV heads have not equally many query heads each."""
        heads = self.num_attention_heads
        return (
            f"num_key_value_heads ({num_kv_heads}) does not divide num_attention_heads ({heads})"
            if heads % num_kv_heads
            else None
        )

    def uneven_groups(self, num_groups: int, num_chosen: int, num_experts: int) -> str | None:
        """Return that groups have not equally many experts each, or that a token goes to more than there are."""
        if num_experts % num_groups:
            return f"n_group ({num_groups}) does not divide n_routed_experts ({num_experts})"
        return f"topk_group ({num_chosen}) is more than n_group ({num_groups})" if num_chosen > num_groups else None

    def miscounted(self, **lists: Sequence[Any] | None) -> str | None:
        """Return which list has not one entry a layer."""
        for key, entries in lists.items():
            if entries is not None and len(entries) != self.num_hidden_layers:
                return f"{key} has {len(entries)} entries, and num_hidden_layers is {self.num_hidden_layers}"
        return None

    def together(self, *wrong: str | None) -> str | None:
        """Return all that is wrong in one sentence, where no mistake follows from another."""
        return ", and ".join(dict.fromkeys(each for each in wrong if each)) or None

    def none_left(self, key: str, is_moe: Sequence[bool]) -> str | None:
        """Return that no layer has experts, where it is so."""
        return None if any(is_moe) else f"by {key}, none of the {len(is_moe)} layers has experts"

    def dense_later(self, key: str, is_moe: Sequence[bool]) -> str | None:
        """Return that dense layers stand among MoE layers: the rows of a map are layers without gaps."""
        return None if sorted(is_moe) == list(is_moe) else f"by {key}, dense layers stand among MoE layers"


class Tower(BaseModel):
    """The keys of `vision_config`, an encoder beside the text model, or of the whole file where that lacks them."""

    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)

    def num_weights(self, text_hidden_size: int) -> int:
        """Return the parameters of the encoder and of what fits its output to the text model."""
        raise NotImplementedError


def encoder_layer(size: int, inner: int) -> int:
    """Return the parameters of a tower's layer: attention, two matrices and two norms, all with biases."""
    return 4 * (size * size + size) + 2 * size * inner + inner + size + 4 * size


def layers_of(
    attention: Callable[[int], Attention], num_dense: int, dense: Dense, moe: Sequence[Experts]
) -> tuple[Layer, ...]:
    """Return `num_dense` dense layers and after them a layer for each of `moe`, with the attention of its index."""
    ffns: list[Dense | Experts] = [*[dense] * num_dense, *moe]
    return tuple(Layer(attention(index), ffn) for index, ffn in enumerate(ffns))
