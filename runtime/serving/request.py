"""One request on one rank: its tokens, and which of their latents are computed and where they are.

    tokens        prompt_ids + generated
    num_cached    of the tokens, from the first, those whose latents exist
    prefilling    num_cached < num_to_prefill: the next chunk is of the prompt
    decoding      else: the next row is the token after the cached ones, which is the last one, unless it replays

A request that lost its ranks comes back with the tokens that they generated. They are prefilled with its prompt or, in
deterministic mode, replayed: computed as rows of decode, as they were the first time, because prefill's sums differ in
the last bits. A step may take many rows of one request: every row's latent is written before any row attends, and each
sees no further than itself.

Latents lie in the pages of `table`, or in `latents` while the request waits outside the cache, or nowhere while none
is computed. On their way from `latents` into pages, there is an `arrival`. Those of a prompt's first blocks may be in
pages that other requests read too: they are found by the names of these blocks (`kv/blocks.py`). A request that waits
outside the cache has no such page, and `latents` begin behind the `num_kept` tokens that it had there. Blocks that
`loading` numbers were found in host memory; they are in its own pages once their `arrival` has come. Those that are
`fetched` were in a slower tier when it came.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from runtime.kernels.device import Arrival
from runtime.kv.blocks import block_names
from runtime.kv.cache import PageTable
from runtime.model.forward_batch import Chunk
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.messages import Handover, Sampling

__all__ = ["Constraint", "Request", "Transfer"]


class Transfer(Protocol):
    """The KV of one request on its way to a decode rank, while its prompt is computed. Nothing of it waits."""

    def put(self, layer: int, start: int, latent_TC: Tensor) -> None:
        """Send latents of a layer, which nobody writes to, from position `start` on: the layer's next ones."""

    def finish(self, handover: Handover) -> None:
        """Send the request itself: all of its latents were put."""

    def cancel(self) -> None:
        """Send nothing more: nobody waits for the request."""


@dataclass
class Constraint:
    """The matcher of one answer that must be JSON, and how many of its tokens it has seen."""

    matcher: Any  # an llguidance.LLMatcher, made by `constraint.py`
    num_seen: int = 0


@dataclass(eq=False)
class Request:
    """A request on this rank. `latents` is `[num_layers, num_cached - num_kept, latent_dim]`.

    `num_generated_to_prefill`: the generated tokens that are computed as if they were of the prompt.
    `transfer` takes its latents from a prefill rank to a decode rank. A request that `embeds` ends with its prompt,
    without a token. `block_root` begins its chain of block names; None shares nothing with others, and blocks of its
    answer are shared if it `shares_answer`. On a disk they take its `tenant`'s room. `num_hits` are the tokens whose
    latents it found and did not compute.
    """

    id: str
    prompt_ids: list[int]
    sampling: Sampling
    generated: list[int] = field(default_factory=list)
    num_cached: int = 0
    table: PageTable = field(default_factory=list)
    latents: Tensor | None = None
    arrival: Arrival | None = None
    transfer: Transfer | None = None
    embeds: bool = False
    num_generated_to_prefill: int = 0
    block_root: bytes | None = None
    tenant: bytes = b""
    shares_answer: bool = False
    loading: range = range(0)
    fetched: range = range(0)
    num_kept: int = 0
    num_hits: int = 0
    starts_over: bool = False  # because latents are gone that it had computed, or found, before
    constraint: "Constraint | None" = None  # of an answer that must be JSON, from its first token here on
    _names: list[bytes] = field(default_factory=list)  # of its first blocks, as far as somebody asked for them

    @property
    def num_tokens(self) -> int:
        """The tokens of prompt and output so far."""
        return len(self.prompt_ids) + len(self.generated)

    @property
    def num_to_prefill(self) -> int:
        """The tokens that are computed in chunks: the prompt, and what is computed as if it were of it."""
        return len(self.prompt_ids) + self.num_generated_to_prefill

    @property
    def is_prefilling(self) -> bool:
        """True if a part of its prompt is still to be computed."""
        return self.num_cached < self.num_to_prefill

    @property
    def is_computed(self) -> bool:
        """True if every token has its latents, so that the next one can be drawn."""
        return self.num_cached == self.num_tokens

    @property
    def next_block_names(self) -> list[bytes]:
        """The names of the next blocks that need not be computed, if they are there.

        None is of the last token of what it prefills: from that token the next one is drawn. None is there in the
        middle of a block.
        """
        if self.num_cached % PAGE_TOKENS:
            return []
        return self.block_names(self.num_cached // PAGE_TOKENS, (self.num_to_prefill - 1) // PAGE_TOKENS)

    @property
    def loading_block_names(self) -> list[bytes]:
        """The names of the blocks that were found in host memory when it entered."""
        return self.block_names(self.loading.start, self.loading.stop)

    def block_names(self, first: int, end: int) -> list[bytes]:
        """Return the names of the blocks from number `first` to before `end`, of tokens that it has."""
        if self.block_root is None:
            return []
        if len(self._names) < end:
            last = self._names[-1] if self._names else self.block_root
            self._names += block_names(last, self._tokens(len(self._names) * PAGE_TOKENS, end * PAGE_TOKENS))
        return self._names[first:end]

    def next_chunk(self, max_tokens: int) -> Chunk:
        """Return the next chunk, of at most `max_tokens` tokens."""
        end = min(self.num_cached + max_tokens, self.num_to_prefill)
        sink = None if self.transfer is None else self.transfer.put
        return Chunk(self._tokens(self.num_cached, end), self.num_cached, self.table, sink=sink)

    def next_rows(self, max_rows: int) -> list[Chunk]:
        """Return what decode computes next: the last token, or up to `max_rows` of those that it replays."""
        end = min(self.num_cached + max_rows, self.num_tokens)
        rows = enumerate(self._tokens(self.num_cached, end), self.num_cached)
        return [Chunk([token_id], position, self.table) for position, token_id in rows]

    def _tokens(self, start: int, end: int) -> list[int]:
        """Return the tokens at these positions."""
        num_of_prompt = len(self.prompt_ids)
        return self.prompt_ids[start:end] + self.generated[max(start - num_of_prompt, 0) : max(end - num_of_prompt, 0)]
