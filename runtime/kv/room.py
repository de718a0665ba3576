"""The bound on latents that lie outside a cache, at either end of a transfer.

It is far from what a gateway makes ranks hold: it is for what goes wrong.
"""

import queue

from runtime.launch import UnitLaunch

__all__ = ["Room", "max_held_bytes"]

HELD_CACHES, HELD_BYTES = 8, 2**30  # assumed: what waits has at most so many times the cache's bytes, or a GiB


def max_held_bytes(launch: UnitLaunch) -> int:
    """Return how many bytes of latents a rank may hold outside its cache."""
    return max(HELD_CACHES * launch.limits.kv_tokens * launch.kv_cache.bytes_per_token, HELD_BYTES)


class Room:
    """The limit on requests whose latents are held at a time, and on their bytes.

    Room is taken on the network's thread, and given back on whichever drops the last reference to the latents; the
    garbage collector may do that at any moment. So what is given back goes through a queue that allows for it.
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests, self._max_bytes = max_requests, max_bytes
        self._num_requests = self._num_bytes = 0
        self._given_back: queue.SimpleQueue[int] = queue.SimpleQueue()

    def take(self, num_bytes: int) -> bool:
        """Take room for one more request; return whether there was any."""
        while not self._given_back.empty():
            self._num_bytes -= self._given_back.get()
            self._num_requests -= 1
        if self._num_requests == self._max_requests or self._num_bytes + num_bytes > self._max_bytes:
            return False
        self._num_requests += 1
        self._num_bytes += num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        """Give back the room of one request of `num_bytes`, which nobody holds any more."""
        self._given_back.put(num_bytes)
