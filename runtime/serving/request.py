"""One request on one rank: its tokens, and which of their latents are computed and where they are.

    tokens        prompt_ids + generated
    num_cached    the number of leading tokens whose latents exist
    prefilling    num_cached < num_to_prefill: the next chunk is of the prompt, or of generated tokens computed with it
    decoding      otherwise: the next row is the token after the cached ones. Only in a replay do others follow it

A request that lost its ranks comes back with the tokens that they generated. They are prefilled with its prompt or, in
deterministic mode, replayed: computed as rows of decode, as they were the first time, because prefill's sums differ in
the last bits. A step may take many rows of one request: every row's latent is written before any row attends, and each
sees no further than itself.

Where its latents are:

    table      In the cache's pages. Requests may share the pages of a prompt's first blocks, which have hashes
               (`kv/blocks.py`).
    latents    In host memory, while the request waits outside the cache. It has no pages then, and `latents` begin
               after the `num_kept` tokens that were in shared pages.
    prefix     Of a request that arrived from prefill and waits: its first tokens, which this rank had already and holds
               for it (`kv/held_prefix.py`). They are the `num_kept`, and `table` has their pages.
    arrival    On their way from host memory into pages.

`loading` numbers the blocks that were found in host memory, or that came from prefill. They are in the request's own
pages once the `arrival` has come. `fetched` numbers the blocks that a slower tier brought to host memory for this
request.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from runtime.kernels.device import PendingCopy
from runtime.kv.blocks import block_hashes, tenant_hash
from runtime.kv.cache import PageTable
from runtime.kv.held_prefix import HeldPrefix
from runtime.model.forward_batch import Chunk
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.messages import Handover, Sampling

__all__ = ["Constraint", "Request", "Transfer"]


class Transfer(Protocol):
    """Takes the KV of one request to a decode rank while the prompt is computed. No method waits."""

    def put(self, layer: int, start: int, latent_TC: Tensor) -> None:
        """Send the next latents of a layer, [T, C], from position `start` on. The latents must not change any more."""

    def finish(self, handover: Handover) -> None:
        """Send the request itself, after all of its latents."""

    def cancel(self) -> None:
        """Send nothing more, since nobody waits for the request."""


@dataclass
class Constraint:
    """The matcher of one answer that must follow a JSON schema, and how many tokens it has read."""

    matcher: Any  # an llguidance.LLMatcher, made by `constraint.py`
    num_seen: int = 0


@dataclass(eq=False)
class Request:
    """A request on this rank: its tokens, and the place of their latents.

    The first `num_cached` tokens have latents: in the pages of `table`, or in `latents` `[num_layers, num_cached -
    num_kept, latent_dim]` in host memory. `num_generated_to_prefill` generated tokens are computed as a part of the
    prompt. `transfer` takes the latents from a prefill rank to a decode rank. A request that `embeds` ends with its
    prompt, without a token. If it `can_start_over`, this rank can compute its prompt again.

    `block_root`, which depends on `cache_salt`, begins the request's chain of block hashes; without a root the request
    shares no blocks. If it `shares_answer`, blocks of its answer are shared too. `num_found` counts the tokens whose
    latents were in memory at the last look-up, and `num_hits` the tokens whose latents were found instead of computed.
    """

    id: str
    prompt_ids: list[int]
    sampling: Sampling
    generated: list[int] = field(default_factory=list)
    num_cached: int = 0
    table: PageTable = field(default_factory=list)
    latents: Tensor | None = None
    pending_copy: PendingCopy | None = None
    prefix: HeldPrefix | None = None
    transfer: Transfer | None = None
    embeds: bool = False
    can_start_over: bool = True
    num_generated_to_prefill: int = 0
    block_root: bytes | None = None
    cache_salt: str = ""
    shares_answer: bool = False
    loading: range = range(0)
    fetched: range = range(0)
    num_kept: int = 0
    num_found: int = 0
    num_hits: int = 0
    starts_over: bool = False  # its latents, computed or found earlier, are gone
    constraint: "Constraint | None" = None  # for an answer that must be JSON; made at its first draw here
    hashes: list[bytes] = field(default_factory=list)  # the hashes of its first blocks, as far as they were needed

    @property
    def num_tokens(self) -> int:
        """The number of tokens of prompt and output so far."""
        return len(self.prompt_ids) + len(self.generated)

    @property
    def tenant(self) -> bytes:
        """The hash of the tenant to whose share the request's blocks count, in memory and on a disk."""
        return tenant_hash(self.cache_salt)

    @property
    def num_to_prefill(self) -> int:
        """The number of tokens to compute in chunks: the prompt, and generated tokens that are computed with it."""
        return len(self.prompt_ids) + self.num_generated_to_prefill

    @property
    def is_prefilling(self) -> bool:
        """True if tokens are still to be computed in chunks: the prompt's, or generated ones computed with it."""
        return self.num_cached < self.num_to_prefill

    @property
    def is_computed(self) -> bool:
        """True if every token has its latents, so that the next one can be drawn."""
        return self.num_cached == self.num_tokens

    @property
    def num_shareable_blocks(self) -> int:
        """The number of whole blocks, from the first on, that are computed and may be shared with other requests."""
        num_tokens = self.num_cached if self.shares_answer else min(self.num_cached, self.num_to_prefill)
        return num_tokens // PAGE_TOKENS

    @property
    def next_block_hashes(self) -> list[bytes]:
        """The hashes of the prompt's blocks after the cached tokens, to look up in the cache.

        The block of the last token to prefill is left out: that token must be computed, because the next one is drawn
        from it. The list is empty if the cached tokens end within a block.
        """
        if self.num_cached % PAGE_TOKENS:
            return []
        return self.block_hashes(self.num_cached // PAGE_TOKENS, (self.num_to_prefill - 1) // PAGE_TOKENS)

    @property
    def loading_block_hashes(self) -> list[bytes]:
        """The hashes of the blocks that are copied from host memory when the request enters the cache."""
        return self.block_hashes(self.loading.start, self.loading.stop)

    def block_hashes(self, first: int, end: int) -> list[bytes]:
        """Return the hashes of blocks `first` to `end` - 1 of the request's tokens; none if it shares no blocks."""
        if self.block_root is None:
            return []
        if len(self.hashes) < end:
            last = self.hashes[-1] if self.hashes else self.block_root
            self.hashes += block_hashes(last, self._tokens(len(self.hashes) * PAGE_TOKENS, end * PAGE_TOKENS))
        return self.hashes[first:end]

    def next_chunk(self, max_tokens: int) -> Chunk:
        """Return the next chunk of tokens to prefill, of at most `max_tokens` tokens."""
        end = min(self.num_cached + max_tokens, self.num_to_prefill)
        sink = None if self.transfer is None else self.transfer.put
        return Chunk(self._tokens(self.num_cached, end), self.num_cached, self.table, sink=sink)

    def next_rows(self, max_rows: int) -> list[Chunk]:
        """Return the next chunks of decode, one token each: the last token, or up to `max_rows` tokens of a replay."""
        end = min(self.num_cached + max_rows, self.num_tokens)
        rows = enumerate(self._tokens(self.num_cached, end), self.num_cached)
        return [Chunk([token_id], position, self.table) for position, token_id in rows]

    def _tokens(self, start: int, end: int) -> list[int]:
        """Return the tokens at these positions."""
        num_of_prompt = len(self.prompt_ids)
        return self.prompt_ids[start:end] + self.generated[max(start - num_of_prompt, 0) : max(end - num_of_prompt, 0)]
