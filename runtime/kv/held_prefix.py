"""Beginnings of prompts that a decode rank has already, so that their prefill ranks need not send them.

    prefill rank --Offer, with block hashes--> decode rank
                        the step loop finds the blocks' pages and holds them: `HeldPrefixes.hold`
    prefill rank <--Proceed(start)----------- decode rank
                        latents from `start` on arrive, and the request takes the pages over

What was promised is not sent, and a decode rank cannot compute it. So held pages are not evicted. Yet the requests in
the cache come first: if they need pages, a prefix gives way, and its latents wait in host memory.

It does not know requests or sockets: `receiver.py` asks the step loop to hold a prefix, and `serving/scheduler.py`
lets prefixes give way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from runtime.kv.cache import LatentCache, PageTable
from runtime.protocol.counting import PAGE_TOKENS

__all__ = ["HeldPrefix", "HeldPrefixes", "PrefixHolder"]


@dataclass(eq=False)
class HeldPrefix:
    """The first blocks of one offered request, as far as this decode rank has and holds them.

    `hashes` are the hashes of the offered blocks, and `root` begins their chain. Without a root the request shares
    nothing. The latents of the first `num_tokens` tokens are in the pages of `table` or, if other requests needed these
    pages, in `latents` `[num_layers, num_tokens, latent_dim]`. If they are in neither, host memory was full, and they
    are lost.
    """

    root: bytes | None = None
    hashes: Sequence[bytes] = ()
    num_tokens: int = 0
    table: PageTable = field(default_factory=list)
    latents: Tensor | None = None

    @property
    def is_lost(self) -> bool:
        """True if the latents that the sender was told to leave out are gone."""
        return bool(self.num_tokens) and not self.table and self.latents is None


class PrefixHolder(Protocol):
    """Passes prefixes to the step loop, which owns the pages. No call waits."""

    def hold(self, prefix: HeldPrefix, answer: Callable[[int], object]) -> None:
        """Have the step loop hold the blocks of a prefix that this rank has.

        `answer` is called with their number of tokens.
        """

    def release(self, prefix: HeldPrefix) -> None:
        """Have the step loop release a prefix whose request will not arrive."""


class HeldPrefixes:
    """All held prefixes of one rank's cache, the oldest first."""

    def __init__(self, cache: LatentCache) -> None:
        self._cache = cache
        self._held: list[HeldPrefix] = []

    def hold(self, prefix: HeldPrefix) -> int:
        """Hold the pages of the first blocks of a prefix. Return how many tokens they have."""
        found = self._cache.find(prefix.hashes)
        prefix.num_tokens = len(found) * PAGE_TOKENS
        self._cache.allocate(prefix.table, prefix.num_tokens, found)
        if found:
            self._held.append(prefix)
        return prefix.num_tokens

    def release(self, prefix: HeldPrefix) -> None:
        """Release the pages of a prefix, if they are still held here."""
        if prefix in self._held:
            self._held.remove(prefix)
            self._cache.free(prefix.table)

    def hand_over(self, prefix: HeldPrefix) -> None:
        """Remove a prefix whose request has taken over its pages."""
        if prefix in self._held:
            self._held.remove(prefix)

    def give_way(self, keep: HeldPrefix | None = None) -> bool:
        """Free the pages of the newest prefix other than `keep`. Return whether there was one.

        Its latents are moved to host memory. If that has no room for them, they are lost.
        """
        for prefix in reversed(self._held):
            if prefix is not keep:
                prefix.latents = self._cache.swap_out(prefix.table, prefix.num_tokens)
                self.release(prefix)
                return True
        return False
