"""The interface that every kind of attention implements, and its types.

KV of a request of 10,000 tokens in one layer, in BF16, as worked examples:
    full          8 KV heads of 128          10,000 x 4,096 B
    window        the same, 128 tokens          128 x 4,096 B
    latent        512 + 64 values            10,000 x 1,152 B; an indexer adds 132 B to each
    compressed    4 tokens an entry             128 x 584 B + 2,500 x (584 + 132) B + its state
    linear        its state                  as many bytes as for one token
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Protocol

from planner.facts.quantisation import Format
from planner.facts.terms import KvPrecision

Part = Literal["attention", "norms", "dense", "shared", "gates", "experts", "embedding", "towers"]
# A precision has a format for each of the first four roles. `wide` is never quantised; `fp32` is FP32 always.
Role = Literal["attention", "output", "ffn", "expert", "wide", "fp32"]


@dataclass(frozen=True)
class Matrix:
    """A matrix, or several of one part and format as one. Vectors, such as biases and norms, count as matrices.

    `module` is the matrix's name in a layer of DeepSeek-V3 in transformers, by which checkpoints list what they
    quantise. The name is empty for vectors and for matrices that are never quantised.
    """

    part: Part
    num_weights: int
    role: Role
    module: str = ""
    kept_in: Format | None = None  # the format that the checkpoint itself gives for this module


@dataclass(frozen=True)
class LayerKv:
    """The KV of one request in one layer: entries for its tokens, a window of the last tokens, and a state."""

    entry_bytes: int = 0
    tokens_per_entry: int = 1  # more than 1 if entries are compressed
    window: int = 0  # number of last tokens that have KV of their own
    window_bytes: int = 0  # KV bytes of each token in the window
    state_bytes: int = 0

    @property
    def bytes_per_token(self) -> Fraction:
        """Return the bytes of an entry divided by the number of tokens that the entry stands for."""
        return Fraction(self.entry_bytes, self.tokens_per_entry)

    def fixed_bytes(self, num_tokens: int) -> int:
        """Return the bytes of window and state of a request of `num_tokens`, which stop growing with a full window."""
        return min(num_tokens, self.window) * self.window_bytes + self.state_bytes

    def bytes_of(self, num_tokens: int) -> int:
        """Return all KV bytes of a request of `num_tokens` in this layer."""
        return num_tokens // self.tokens_per_entry * self.entry_bytes + self.fixed_bytes(num_tokens)


class Attention(Protocol):
    """The attention of a layer: what memory and layout need to know of it."""

    @property
    def only_kv(self) -> KvPrecision | None:
        """Return the single precision in which kernels can store KV; None if they can store any precision."""

    @property
    def num_heads(self) -> int:
        """Return the number of heads that can be split over GPUs."""

    @property
    def num_kv_heads(self) -> int:
        """Return the number of KV heads; `num_heads` if KV is not split by heads.

        With more GPUs than KV heads, several GPUs hold the same head.
        """

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        """Return the attention's matrices in one layer of a model with `hidden_size`."""

    def kv(self, bytes_per_value: int) -> LayerKv:
        """Return how a request's KV in one layer grows with its tokens. The KV's precision sets `bytes_per_value`."""

    def num_activations(self, tokens: int, context: int, *, absorbs: bool) -> int:
        """Return how many values a step of `tokens` holds in memory in attention, without the residual stream.

        The values are queries and results, and keys and values of one request's `context` if kernels copy them. With
        `absorbs` (decode), latent KV is not expanded, because queries have absorbed the expansion.
        """

    def one_of(self, num_gpus: int) -> "Attention":
        """Return the attention with one GPU's part of the heads, if `num_gpus` share them."""
