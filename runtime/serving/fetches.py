"""Prompts whose blocks come from a slow tier of the prefix cache, and the blocks that are worth keeping there.

A prompt is fetching, outside the queue of those that enter the cache, until its blocks are in host memory or `FETCH_S`
have passed. Whoever came later may overtake it, for that long.

A step never waits for a slow tier: the ranks of a unit step together, so one that waits holds up all.

A block is offered to the slow tier when a prompt finds it, which is its second use: most blocks are never used again,
and a disk wears out by writing.

It does not read or write (`kv/tiers/`): it needs the few calls below of whoever does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from runtime.kv.tiers.host import HostTier
from runtime.serving.request import Request

__all__ = ["Fetches", "Loading", "SlowTier"]

FETCH_S = 1.0  # assumed: of a prompt's TTFT; 3 GB/s bring 40,000 tokens of DeepSeek-V3 in it, computing them takes 4 s


class Loading(Protocol):
    """Blocks on their way to host memory, in memory of `HostTier.lend_blank`."""

    def is_done(self) -> bool:
        """Return whether no more blocks will come. It never waits."""

    def blocks(self) -> list[Tensor]:
        """Return those that came, from the first on."""

    def cancel(self) -> None:
        """Bring no more."""


class SlowTier(Protocol):
    """Keeps blocks elsewhere. No call waits for it. `tenant` says whose room they take."""

    def begin_load(self, names: Sequence[bytes], tenant: bytes, deadline_s: float) -> Loading:
        """Begin to bring these blocks, up to the first that is not there."""

    def offer(self, name: bytes, latents: Tensor, tenant: bytes) -> None:
        """Keep a block if there is room and it is not there already. It does not change while this is referred to."""


@dataclass
class _Fetch:
    """Blocks for a prompt, and for those that came meanwhile and begin alike."""

    requests: list[Request]
    first: int  # number of the first block
    names: list[bytes]
    loading: Loading


class Fetches:
    """The prompts of one rank that wait for a slow tier."""

    def __init__(self, host: HostTier, slow: SlowTier) -> None:
        self._host, self._slow = host, slow
        self._fetches: list[_Fetch] = []

    def __iter__(self) -> Iterator[Request]:
        """Yield the prompts that wait."""
        for fetch in self._fetches:
            yield from fetch.requests

    def begin(self, request: Request, num_found: int) -> bool:
        """Let a prompt wait for blocks of its own behind the first `num_found`; return whether it has to."""
        names = request.next_block_names[num_found:]
        if not names:
            return False
        for fetch in self._fetches:
            if names[0] in fetch.names:
                fetch.requests.append(request)
                return True
        loading = self._slow.begin_load(names, request.tenant, FETCH_S)
        self._fetches.append(_Fetch([request], num_found, names, loading))
        return True

    def take_finished(self) -> list[Request]:
        """Return the prompts that wait no longer. What came for them is in the host tier."""
        done = [fetch for fetch in self._fetches if fetch.loading.is_done()]
        self._fetches = [fetch for fetch in self._fetches if fetch not in done]
        for fetch in done:
            blocks = fetch.loading.blocks()
            for name, latents in zip(fetch.names, blocks, strict=False):
                self._host.add(name, latents)
            for request in fetch.requests:
                request.fetched = range(fetch.first, fetch.first + len(blocks))
        return [request for fetch in done for request in fetch.requests]

    def abort(self, request_id: str) -> list[Request]:
        """Drop a prompt that nobody waits for any more; return it, or none if it is not here."""
        aborted = [request for request in self if request.id == request_id]
        for fetch in self._fetches:
            fetch.requests = [request for request in fetch.requests if request not in aborted]
            if not fetch.requests:
                fetch.loading.cancel()
        self._fetches = [fetch for fetch in self._fetches if fetch.requests]
        return aborted

    def offer(self, request: Request, blocks: range) -> None:
        """Offer blocks that a prompt found, and that host memory has, unless they came from there."""
        for number, name in zip(blocks, request.block_names(blocks.start, blocks.stop), strict=True):
            if number not in request.fetched and (latents := self._host.lend(name)) is not None:
                self._slow.offer(name, latents, request.tenant)
