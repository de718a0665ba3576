"""One request on one rank: its tokens, and which of their latents are computed and where they are.

    tokens        prompt_ids + generated
    num_cached    of the tokens, from the first, those whose latents exist
    prefilling    num_cached < len(prompt_ids): the next chunk is of the prompt
    decoding      num_cached == len(tokens) - 1: the next chunk is the last token

Latents lie in the pages of `table`, or in `latents` while the request waits outside the cache, or nowhere while none
is computed.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from runtime.kv.cache import PageTable
from runtime.model.forward_batch import Chunk
from runtime.protocol.messages import Sampling

__all__ = ["Constraint", "Request"]


@dataclass
class Constraint:
    """The matcher of one answer that must be JSON, and how many of its tokens it has seen."""

    matcher: Any  # an llguidance.LLMatcher, made by `constraint.py`
    num_seen: int = 0


@dataclass(eq=False)
class Request:
    """A request on this rank. `latents` is `[num_layers, num_cached, latent_dim]`.

    `kv_address` is the decode rank's, at a prefill rank. A request that `embeds` ends with its prompt, without a token.
    """

    id: str
    prompt_ids: list[int]
    sampling: Sampling
    generated: list[int] = field(default_factory=list)
    num_cached: int = 0
    table: PageTable = field(default_factory=list)
    latents: Tensor | None = None
    kv_address: tuple[str, int] | None = None
    embeds: bool = False
    constraint: "Constraint | None" = None  # of an answer that must be JSON, from its first token here on

    @property
    def num_tokens(self) -> int:
        """The tokens of prompt and output so far."""
        return len(self.prompt_ids) + len(self.generated)

    @property
    def is_prefilling(self) -> bool:
        """True if a part of its prompt is still to be computed."""
        return self.num_cached < len(self.prompt_ids)

    def next_of_prompt(self, max_tokens: int) -> Chunk:
        """Return the next chunk, of at most `max_tokens` tokens."""
        return Chunk(self.prompt_ids[self.num_cached : self.num_cached + max_tokens], self.num_cached, self.table)

    def last_token(self) -> Chunk:
        """Return what decode computes next."""
        return Chunk(self.generated[-1:], self.num_cached, self.table)
