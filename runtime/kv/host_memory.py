"""Host memory for latents outside the cache: its bound, and memory that is pinned in advance.

    arriving    requests that come with their latents from prefill ranks, until these are in the cache
    swapped     preempted requests, until they are in the cache again
    blocks      the host tier of the prefix cache (`tiers/host.py`)

The bound is far from what a gateway makes ranks hold: it is for what goes wrong. The memory is for what a decode rank
holds on an ordinary day, those requests whose prompts are being computed. What a prefill rank has yet to send is
bounded by itself (`sender.py`).
"""

import math
import queue
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor

from runtime.errors import RuntimeFailure
from runtime.kernels.device import HostLink
from runtime.launch import UnitLaunch

__all__ = ["HostMemory", "Staging", "max_held_bytes", "max_host_bytes", "pinning", "staged_bytes"]

Holder = Literal["arriving", "swapped", "blocks"]
HOLDERS: tuple[Holder, ...] = get_args(Holder)

HELD_CACHES, HELD_BYTES = 8, 2**30  # assumed: waiting latents take at most 8 times the cache's bytes, or a GiB if more


def max_held_bytes(launch: UnitLaunch) -> int:
    """Return how many bytes of requests' latents a rank may hold outside its cache."""
    return max(HELD_CACHES * launch.limits.kv_tokens * launch.kv_cache.bytes_per_token, HELD_BYTES)


def max_host_bytes(launch: UnitLaunch) -> int:
    """Return how many bytes of latents a rank may hold outside its cache, requests' and cached blocks' together."""
    return max(max_held_bytes(launch), launch.limits.host_bytes)


STAGED_SHARE = 16  # assumed: of the cache's bytes; of EP144's that is 3.2 GB, or 8 requests of 5,696 tokens
ALIGNMENT = 64  # bytes, of a piece's beginning: a line of a CPU's cache, and whole elements of any type


def staged_bytes(launch: UnitLaunch) -> int:
    """Return the size of the pinned buffer that receives KV.

    The size is a power of two, since torch pins only such sizes.
    """
    limits = launch.limits
    num_tokens = max(limits.kv_tokens // STAGED_SHARE, limits.max_request_tokens)
    return 1 << (num_tokens * launch.kv_cache.bytes_per_token - 1).bit_length()


@contextmanager
def pinning(num_bytes: int) -> Iterator[None]:
    """Turn torch's error into RuntimeFailure if it cannot pin `num_bytes` of host memory in this context."""
    try:
        yield
    except RuntimeError as error:  # raised by torch
        why = str(error).splitlines()[0]
        raise RuntimeFailure(f"{num_bytes / 1e9:.1f} GB of host memory cannot be pinned for KV: {why}") from None


class HostMemory:
    """The ledger of a rank's host memory for latents: who holds how much, all together at most `max_bytes`.

    Requests take precedence over blocks: where requests need room, the host tier gives up blocks.

    Memory is taken on the network's thread and the step's. It is given back on whichever thread drops the last
    reference to the latents. The garbage collector may do that at any moment, even within a method of this class. So
    memory is given back through a queue that tolerates such calls.
    """

    def __init__(self, max_bytes: int = sys.maxsize) -> None:
        self.max_bytes = max_bytes
        self.lock = threading.RLock()  # the host tier's index too, which both threads change
        self._num_bytes = dict.fromkeys(HOLDERS, 0)
        self._num_pieces = dict.fromkeys(HOLDERS, 0)
        self._given_back: queue.SimpleQueue[tuple[Holder, int]] = queue.SimpleQueue()
        self._give_way: Callable[[int], None] = lambda num_bytes: None

    def let_blocks_give_way(self, give_way: Callable[[int], None]) -> None:
        """Set the function that frees blocks of the host tier.

        The function is called with the number of bytes that requests lack, and frees as many as it can.
        """
        self._give_way = give_way

    def take(self, holder: Holder, num_bytes: int, max_pieces: int = sys.maxsize) -> bool:
        """Reserve `num_bytes` for a holder. Return whether they were reserved.

        They are not if there is no room, or if the holder has `max_pieces` reservations. Blocks of the prefix cache
        give way to the other holders.
        """
        with self.lock:
            self._collect()
            missing = sum(self._num_bytes.values()) + num_bytes - self.max_bytes
            if self._num_pieces[holder] >= max_pieces or num_bytes > self.max_bytes:
                return False
            if missing > 0 and holder != "blocks":
                self._give_way(missing)
                self._collect()
            if sum(self._num_bytes.values()) + num_bytes > self.max_bytes:
                return False
            self._num_pieces[holder] += 1
            self._num_bytes[holder] += num_bytes
            return True

    def watch(self, holder: Holder, latents: Tensor) -> None:
        """Give back the reservation for these latents once nothing refers to them any more."""
        weakref.finalize(latents, self.give_back, holder, latents.nbytes)

    def give_back(self, holder: Holder, num_bytes: int) -> None:
        """Give back one reservation of `num_bytes`. Any thread may call this at any time."""
        self._given_back.put((holder, num_bytes))

    def reserved_bytes(self) -> dict[Holder, int]:
        """Return how many bytes each holder has reserved."""
        with self.lock:
            self._collect()
            return dict(self._num_bytes)

    def _collect(self) -> None:
        while not self._given_back.empty():
            holder, num_bytes = self._given_back.get()
            self._num_pieces[holder] -= 1
            self._num_bytes[holder] -= num_bytes


class Staging:
    """A buffer for arriving latents, pinned before requests come.

    On an H100 a gigabyte took 0.53 s to pin, in which no other thread of the process could launch a kernel.

    A request gets the first gap that is large enough, as its piece. The piece comes back when nothing refers to the
    latents any more. A copy to the device may still read it then, so it becomes a gap only once all copies begun by
    that time have ended.
    """

    def __init__(self, link: HostLink, num_bytes: int) -> None:
        """Pin `num_bytes` of host memory. Raises RuntimeFailure if it cannot be pinned."""
        with pinning(num_bytes):
            self._memory = link.empty((num_bytes,), torch.uint8)
        self._link = link
        self._gaps = [(0, num_bytes)]  # (first byte, end), in order, none adjacent
        self._came_back: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._read: deque[tuple[Callable[[], bool], list[tuple[int, int]]]] = deque()  # pieces still being read

    @property
    def memory(self) -> Tensor:
        """The whole buffer, as bytes."""
        return self._memory

    def contains(self, latents: Tensor) -> bool:
        """Return whether these latents are in this buffer."""
        return latents.untyped_storage().data_ptr() == self._memory.untyped_storage().data_ptr()

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return memory for one request's latents; None if no gap is large enough."""
        self._collect()
        num_bytes = math.prod(shape) * dtype.itemsize
        whole_bytes = -(-num_bytes // ALIGNMENT) * ALIGNMENT
        for number, (first, last) in enumerate(self._gaps):
            end = first + whole_bytes
            if end <= last:
                self._gaps[number : number + 1] = [(end, last)] if end < last else []
                latents = self._memory[first : first + num_bytes].view(dtype).view(*shape)
                weakref.finalize(latents, self._came_back.put, (first, end))
                return latents
        return None

    def _collect(self) -> None:
        """Turn the pieces that were given back into gaps, once no copy reads them any more."""
        pieces = []
        while not self._came_back.empty():
            pieces.append(self._came_back.get())
        if pieces:
            self._read.append((self._link.track_copies(), pieces))
        while self._read and self._read[0][0]():
            _, pieces = self._read.popleft()
            self._gaps = _merge_gaps([*self._gaps, *pieces])


def _merge_gaps(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the gaps in order, with adjacent ones merged."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(gaps):
        first = joined.pop()[0] if joined and joined[-1][1] == first else first
        joined.append((first, last))
    return joined
