"""What every kind of attention answers, and the terms of the answers.

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
    """Weights of one part that are kept alike; vectors, as biases and norms are, count too.

    `module` is its name within a layer, as transformers calls it in DeepSeek-V3. Checkpoints say by name what they
    quantise; vectors and what stays wide have none.
    """

    part: Part
    num_weights: int
    role: Role
    module: str = ""
    kept_in: Format | None = None  # what the checkpoint says of the module, beyond its precision


@dataclass(frozen=True)
class LayerKv:
    """What one request keeps in one layer: entries that grow with its tokens, a window of the last ones, a state."""

    entry_bytes: int = 0
    tokens_per_entry: int = 1  # more where entries are compressed
    window: int = 0  # tokens
    window_bytes: int = 0  # of each of them
    state_bytes: int = 0

    @property
    def bytes_per_token(self) -> Fraction:
        """Return the bytes of a token, of what grows."""
        return Fraction(self.entry_bytes, self.tokens_per_entry)

    def fixed_bytes(self, num_tokens: int) -> int:
        """Return the bytes of the window and the state of a request of `num_tokens`."""
        return min(num_tokens, self.window) * self.window_bytes + self.state_bytes

    def bytes_of(self, num_tokens: int) -> int:
        """Return all bytes of a request of `num_tokens`."""
        return num_tokens // self.tokens_per_entry * self.entry_bytes + self.fixed_bytes(num_tokens)


class Attention(Protocol):
    """What the planner asks of a layer's attention."""

    @property
    def only_kv(self) -> KvPrecision | None:
        """Return the one precision of KV that there are kernels for; None where the spec may say any."""

    @property
    def num_heads(self) -> int:
        """Return the heads that GPUs divide which share attention."""

    @property
    def num_kv_heads(self) -> int:
        """Return the heads of KV that they divide, or hold several times; `num_heads` where KV is not kept by heads."""

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        """Return what one layer loads."""

    def kv(self, bytes_per_value: int) -> LayerKv:
        """Return what one request keeps in one layer; the KV's precision says `bytes_per_value`."""

    def values(self, tokens: int, context: int, *, absorbs: bool) -> int:
        """Return the values of a step of `tokens` in one layer, beside the residual stream.

        These are queries and results, and keys and values of one request's `context` where they are copied. Decode
        `absorbs` the expansion of latent KV into its queries.
        """

    def one_of(self, num_gpus: int) -> "Attention":
        """Return the part of one of `num_gpus` that share the heads."""
