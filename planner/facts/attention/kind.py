"""The interface of every kind of attention, and its types.

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

__all__ = ["Attention", "LayerKv", "Matrix", "Part", "Role"]

Part = Literal["attention", "norms", "dense", "shared", "gates", "experts", "embedding", "towers"]
# A precision has a format for each of the first four. `wide` is never made narrow; `fp32` is FP32 in every precision.
Role = Literal["attention", "output", "ffn", "expert", "wide", "fp32"]


@dataclass(frozen=True)
class Matrix:
    """Weights of one part with one format; vectors, such as biases and norms, count too.

    `module` is its name in a layer of DeepSeek-V3 in transformers, because checkpoints list what they quantise by name.
    It is empty for vectors and for matrices that are never quantised.
    """

    part: Part
    num_weights: int
    role: Role
    module: str = ""
    kept_in: Format | None = None  # what the checkpoint says of the module, beyond its precision


@dataclass(frozen=True)
class LayerKv:
    """The KV of one request in one layer: entries for its tokens, a window of the last tokens, and a state."""

    entry_bytes: int = 0
    tokens_per_entry: int = 1  # more where entries are compressed
    window: int = 0  # tokens
    window_bytes: int = 0  # of each of them
    state_bytes: int = 0

    @property
    def bytes_per_token(self) -> Fraction:
        """Return the bytes per token of entries."""
        return Fraction(self.entry_bytes, self.tokens_per_entry)

    def fixed_bytes(self, num_tokens: int) -> int:
        """Return the bytes of the window and the state of a request of `num_tokens`."""
        return min(num_tokens, self.window) * self.window_bytes + self.state_bytes

    def bytes_of(self, num_tokens: int) -> int:
        """Return all bytes of a request of `num_tokens`."""
        return num_tokens // self.tokens_per_entry * self.entry_bytes + self.fixed_bytes(num_tokens)


class Attention(Protocol):
    """The attention of a layer, as the planner sees it."""

    @property
    def only_kv(self) -> KvPrecision | None:
        """Return the only precision of KV that has kernels; None if any is possible."""

    @property
    def num_heads(self) -> int:
        """Return the number of heads that GPUs share."""

    @property
    def num_kv_heads(self) -> int:
        """Return the number of KV heads that GPUs share or repeat; `num_heads` if KV is not split by heads."""

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        """Yield the matrices of one layer."""

    def kv(self, bytes_per_value: int) -> LayerKv:
        """Return the KV of one request in one layer; `bytes_per_value` is by the KV's precision."""

    def values(self, tokens: int, context: int, *, absorbs: bool) -> int:
        """Return the number of values in one layer for a step of `tokens`, beside the residual stream.

        These are queries and results, and keys and values of one request's `context` if they are copied. Decode
        `absorbs` the expansion of latent KV into its queries.
        """

    def one_of(self, num_gpus: int) -> "Attention":
        """Return one GPU's part, if `num_gpus` share the heads."""
