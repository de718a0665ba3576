"""Prompts that wait for blocks from a slow tier of the prefix cache, and the blocks worth keeping there.

A prompt is fetching, outside the queue of those that enter the cache, until its blocks are in host memory or `FETCH_S`
have passed. Whoever came later may overtake it, for that long.

A step never waits for a slow tier: the ranks of a unit step together, so one that waits holds up all.

A block is offered to the slow tier when a request has used it for the second time, whether it computed or found it.
Most blocks are never used again, and a disk wears out by writing.

    seen    the hashes of blocks that requests used: HASHES_PER_BLOCK for each block that the slow tier holds
    due     blocks that were used again and not offered yet: they are still to be copied to host memory

Worked example: a first turn of 150 tokens leaves two hashes. Memory has lost their blocks when the second turn comes.
It computes them again, and they are due. Its request ends, their pages are copied to host memory, and they are offered.

It does not read or write (`kv/tiers/`): it needs the few calls below of whoever does.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from runtime.kv.cache import LatentCache
from runtime.kv.index import SeenHashes
from runtime.serving.request import Request

__all__ = ["Fetches", "Loading", "SlowTier"]

HASHES_PER_BLOCK = 2  # on Mooncake's hour, 4 hit less than 0.1 points more, or fewer (docs/design/kv.md)
MAX_HASHES = 2**24  # assumed: 134 MB of a rank's memory, for 38 TB of DeepSeek-V3's blocks
FETCH_S = 1.0  # assumed: of a prompt's TTFT; 3 GB/s bring 40,000 tokens of DeepSeek-V3 in it, computing them takes 4 s


class Loading(Protocol):
    """Blocks that are being loaded into host memory from `HostTier.lend_blank`."""

    def is_done(self) -> bool:
        """Return whether no more blocks will come. Never waits."""

    def blocks(self) -> list[Tensor]:
        """Return the loaded blocks, from the first on, each `[num_layers, PAGE_TOKENS, latent_dim]`."""

    def cancel(self) -> None:
        """Stop loading the blocks, because nobody needs them."""


class SlowTier(Protocol):
    """A slower store of blocks, such as a disk. No call waits for it. Blocks count towards their tenant's share."""

    @property
    def max_blocks(self) -> int:
        """The number of blocks that the tier has room for."""

    def begin_load(self, hashes: Sequence[bytes], tenant: bytes, deadline_s: float) -> Loading:
        """Begin to load these blocks to host memory for at most `deadline_s` seconds, up to the first one missing."""

    def offer(self, block_hash: bytes, latents: Tensor, tenant: bytes) -> None:
        """Store a block if there is room and it is new. `latents` must not change while anything refers to them."""


@dataclass
class _Fetch:
    """A loading of a tenant's blocks, and the prompts that wait for it.

    They are the prompt that began the loading, and others that need the same blocks.
    """

    requests: list[Request]
    tenant: bytes
    first: int  # number of the first block
    hashes: list[bytes]
    loading: Loading


class Fetches:
    """One rank's prompts that wait for a slow tier, and the blocks that are still to be offered to it."""

    def __init__(self, cache: LatentCache, slow: SlowTier) -> None:
        """Begin with no prompts. The cache must have a host tier."""
        assert cache.host is not None
        self._host, self._slow = cache.host, slow
        self._fetches: list[_Fetch] = []
        self._seen = SeenHashes(min(HASHES_PER_BLOCK * slow.max_blocks, MAX_HASHES))
        self._due: OrderedDict[bytes, bytes] = OrderedDict()  # hash -> tenant
        self._max_due = cache.num_pages  # limited: a block whose page is reused before the copy stays due

    def __iter__(self) -> Iterator[Request]:
        """Yield the prompts that wait for blocks."""
        for fetch in self._fetches:
            yield from fetch.requests

    def begin(self, request: Request, num_found: int) -> bool:
        """Begin to load a prompt's blocks after the first `num_found`, or wait for another prompt that loads them.

        Return whether the request waits for blocks; False if there are none after the first `num_found`.
        """
        hashes = request.next_block_hashes[num_found:]
        if not hashes:
            return False
        for fetch in self._fetches:
            if hashes[0] in fetch.hashes:
                fetch.requests.append(request)
                return True
        loading = self._slow.begin_load(hashes, request.tenant, FETCH_S)
        self._fetches.append(_Fetch([request], request.tenant, num_found, hashes, loading))
        return True

    def take_finished(self) -> list[Request]:
        """Remove and return the prompts whose loading has ended, and add the loaded blocks to the host tier."""
        done = [fetch for fetch in self._fetches if fetch.loading.is_done()]
        self._fetches = [fetch for fetch in self._fetches if fetch not in done]
        for fetch in done:
            blocks = fetch.loading.blocks()
            for block_hash, latents in zip(fetch.hashes, blocks, strict=False):
                self._host.add(block_hash, latents, fetch.tenant)
            for request in fetch.requests:
                request.fetched = range(fetch.first, fetch.first + len(blocks))
        return [request for fetch in done for request in fetch.requests]

    def abort(self, request_id: str) -> list[Request]:
        """Drop the prompt of a request that nobody waits for.

        Return the request in a list; the list is empty if the prompt does not wait here.
        """
        aborted = [request for request in self if request.id == request_id]
        for fetch in self._fetches:
            fetch.requests = [request for request in fetch.requests if request not in aborted]
            if not fetch.requests:
                fetch.loading.cancel()
        self._fetches = [fetch for fetch in self._fetches if fetch.requests]
        return aborted

    def note_use(self, request: Request) -> None:
        """Record which blocks an ending request used.

        Blocks that were used before are offered to the slow tier once they are in host memory.
        """
        hashes = request.block_hashes(0, request.num_shareable_blocks)
        for number, block_hash in enumerate(hashes[: self._seen.see(hashes)]):
            if number not in request.fetched:
                self._due[block_hash] = request.tenant
                self._offer(block_hash)
        while len(self._due) > self._max_due:
            self._due.popitem(last=False)

    def offer_saved(self, hashes: Sequence[bytes]) -> None:
        """Offer the due blocks among `hashes` to the slow tier. Host memory has just received these blocks."""
        for block_hash in hashes:
            if block_hash in self._due:
                self._offer(block_hash)

    def _offer(self, block_hash: bytes) -> None:
        """Offer a due block to the slow tier, if host memory has it. After the offer the block is no longer due."""
        latents = self._host.lend(block_hash)
        if latents is not None:
            self._slow.offer(block_hash, latents, self._due.pop(block_hash))
