"""Blocks that are being loaded from a slower tier, and the counters of hits and misses.

A prompt's blocks are useful from the first on, so a loading ends at the first that is missing, and those behind it are
dropped. It ends at its deadline in any case, whatever its disk does.
"""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["ABSENT", "ERROR", "LATE", "NO_ROOM", "OFF", "QUEUE_FULL", "TIER_FULL", "Loading", "TierCounters"]

ABSENT = "absent"  # there is no such file
ERROR = "error"  # the disk reported one
LATE = "late"  # the deadline came first
NO_ROOM = "no_room"  # there is no memory to load it into
OFF = "off"  # the disk hangs or failed lately, and is not asked
QUEUE_FULL = "queue_full"  # the disk is slower than what is to be written
TIER_FULL = "tier_full"  # the folder is full: blocks are written faster than the janitor removes them


@dataclass
class TierCounters:
    """Counters of a slower tier: blocks or bytes, as named, and `misses`: reason -> loadings that ended early."""

    hits: int = 0
    misses: Counter[str] = field(default_factory=Counter)
    read_bytes: int = 0
    written: int = 0
    written_bytes: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    evicted: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def count_loading(self, num_blocks: int, num_bytes: int, miss: str | None) -> None:
        """Count a loading that has ended. `miss` is the reason if it ended early."""
        with self._lock:
            self.hits += num_blocks
            self.read_bytes += num_bytes
            if miss is not None:
                self.misses[miss] += 1

    def count_written(self, num_bytes: int) -> None:
        """Count a block that was written, and its bytes."""
        with self._lock:
            self.written += 1
            self.written_bytes += num_bytes

    def count_dropped(self, reason: str, num_blocks: int = 1) -> None:
        """Count blocks that were offered and will not be written."""
        with self._lock:
            self.dropped[reason] += num_blocks

    def count_evicted(self, num_blocks: int) -> None:
        """Count blocks that this process removed from the folder to make room (`janitor.py`)."""
        with self._lock:
            self.evicted += num_blocks


class Loading:
    """Blocks that are being loaded from a disk. The caller polls `is_done`, then takes the `blocks`.

    A disk that hangs may write to a block's memory long afterwards. Until then, a thread holds that memory, and nobody
    else gets it.
    """

    def __init__(self, num_blocks: int, deadline: float, counters: TierCounters) -> None:
        self.deadline = deadline  # of time.monotonic()
        self._blocks: list[Tensor | None] = [None] * num_blocks
        self._counters = counters
        self._changed = threading.Condition()
        self._next = self._num_whole = 0
        self._end = num_blocks
        self._miss: str | None = None
        self._is_over = False
        if not num_blocks:
            self.end(None)

    def is_done(self) -> bool:
        """Return whether no more blocks will come. Never waits."""
        with self._changed:
            self._look_at_clock()
            return self._is_over

    def wait(self) -> None:
        """Wait until the loading is done, which is at the deadline at the latest."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over, max(0.0, self.deadline - time.monotonic()))
            self._look_at_clock()

    def blocks(self) -> list[Tensor]:
        """Return the blocks before the first that is missing, `[num_layers, PAGE_TOKENS, latent_dim]` each."""
        assert self.is_done()
        return [block for block in self._blocks if block is not None]

    def cancel(self) -> None:
        """Give up the loading because nobody needs its blocks. A cancelled loading is not counted."""
        with self._changed:
            if not self._is_over:
                self._blocks, self._is_over = [], True
                self._changed.notify_all()

    def end(self, miss: str | None) -> None:
        """End the loading with the blocks loaded by now, unless it has ended.

        `miss` is the reason why some blocks are missing; None if none is.
        """
        with self._changed:
            if self._is_over:
                return
            self._is_over = True
            del self._blocks[self._num_whole :]
            num_bytes = sum(block.nbytes for block in self._blocks if block is not None)
            self._counters.count_loading(self._num_whole, num_bytes, miss)
            self._changed.notify_all()

    def next_block(self) -> int | None:
        """Return the number of the block to load next; None if there is nothing left to load."""
        with self._changed:
            self._look_at_clock()
            if self._is_over or self._next >= self._end:
                return None
            self._next += 1
            return self._next - 1

    def add_block(self, number: int, latents: Tensor) -> None:
        """Add the loaded block `number`."""
        with self._changed:
            if not self._is_over:
                self._blocks[number] = latents
                self._end_if_complete()

    def record_miss(self, number: int, reason: str) -> None:
        """Record that block `number` is missing, so that later blocks are not needed."""
        with self._changed:
            if not self._is_over and number < self._end:
                self._end, self._miss = number, reason
                self._end_if_complete()

    def _end_if_complete(self) -> None:
        while self._num_whole < self._end and self._blocks[self._num_whole] is not None:
            self._num_whole += 1
        if self._num_whole == self._end:
            self.end(self._miss)

    def _look_at_clock(self) -> None:
        if not self._is_over and time.monotonic() >= self.deadline:
            self.end(LATE)
