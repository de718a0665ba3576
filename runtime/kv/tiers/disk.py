"""The prefix cache's last tier: blocks of latents on a disk, which outlive every process.

    begin_load  their latents into host memory -> Loading
    offer       a block to write when there is time
    flush       write what is due: before the process ends

A folder on a local disk or a shared file system, for all units and ranks of one `block_digest`. Whoever knows a block's
hash can read the block: hashes come from a salt that is the tenant's (`runtime/kv/blocks.py`).

The caller's thread never touches the disk. What goes wrong there is a miss or a block less, counted by its reason, and
one line of the log: a disk that is full, read-only, slow, gone, or that never answers. An operation may hang; then
nothing is asked of the disk until it returns, and for a while after (`threads.py`).

    offer -> queue, bounded in bytes -> one thread writes -> folder.py
    begin_load -> a few threads read -> Loading -> the caller, who asks whether it is done
                                              bounds, eviction: janitor.py, on a thread

It does not choose what is worth a write; its caller does. It writes no block that is there already or in the queue.
"""

import errno
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from runtime.kv.sender import as_bytes
from runtime.kv.tiers.block_file import BlockForm, NotThisBlock, read_block
from runtime.kv.tiers.folder import BlockFolder
from runtime.kv.tiers.janitor import HIGH, Bound, Janitor, Usage
from runtime.kv.tiers.loading import ABSENT, ERROR, LATE, NO_ROOM, OFF, QUEUE_FULL, TIER_FULL, Loading, TierCounters
from runtime.kv.tiers.threads import Bandwidth, Health, Workers

__all__ = ["DiskSettings", "DiskTier"]

NUM_READERS = 4  # assumed: enough for a local disk, whose queue is deeper; more would contend for the interpreter
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
NEVER = float("inf")


@dataclass(frozen=True)
class DiskSettings:
    """The disk tier's folder and limits. All processes of a folder have the same `max_bytes` and `max_files`."""

    path: Path  # exists already
    max_bytes: int
    max_files: int
    max_queued_bytes: int  # bytes in this rank's host memory that wait to be written
    bytes_per_s: float | None  # this rank's reads and writes: the node's budget / ranks on the node


class DiskTier:
    """The blocks of one `block_digest` on a disk, as one rank sees them. Used from any thread."""

    def __init__(
        self,
        settings: DiskSettings,
        form: BlockForm,
        say: Callable[[str], None],
        allocate: Callable[[], Tensor | None] | None = None,
    ) -> None:
        """Start the tier's threads; nothing is read yet.

        `allocate` returns host memory for one block, contiguous, or None if there is no room. `allocate` is called on
        the tier's threads. The memory is free again when nothing refers to it, as in `runtime/kv/host_memory.py`.
        """
        self.counters = TierCounters()
        self._settings, self._form = settings, form
        self._allocate = allocate or partial(torch.empty, form.shape, dtype=form.dtype)
        self._folder = BlockFolder(settings.path, form.block_digest)
        self._bound = Bound(settings.max_bytes, settings.max_files)
        self._charge = self._bound.charge(form.file_bytes)
        self._usage = Usage(self._folder, self._bound)
        self._janitor = Janitor(self._folder, self._bound, self._usage)
        self._bandwidth = Bandwidth(settings.bytes_per_s)
        self._reading = Health(f"reading from {settings.path}", say)
        self._writing = Health(f"writing to {settings.path}", say)
        self._readers = Workers(NUM_READERS, "cache-read", self._reading)
        self._writer = Workers(1, "cache-write", self._writing)
        self._cleaner = Workers(1, "cache-clean", self._writing)
        self._changed = threading.Condition()
        self._queued: dict[bytes, tuple[bytes, Tensor]] = {}  # hash -> tenant, latents; the first may be under way
        self._cleans = False
        self._clean()

    @property
    def max_blocks(self) -> int:
        """The number of blocks that the folder may hold."""
        return self._bound.max_bytes // self._charge

    def begin_load(self, hashes: Sequence[bytes], tenant: bytes, deadline_s: float) -> Loading:
        """Begin to read a tenant's blocks for at most `deadline_s` seconds, up to the first that is missing."""
        loading = Loading(len(hashes), time.monotonic() + deadline_s, self.counters)
        if self._readers.rest():
            loading.end(OFF)
        else:
            self._readers.submit(partial(self._load_first, loading, list(hashes), tenant))
        return loading

    def offer(self, block_hash: bytes, latents: Tensor, tenant: bytes) -> None:
        """Queue a block for writing, or drop it if the tier cannot take it. `latents` must not change any more.

        The block counts towards the share of `tenant` on the disk. Only the same tenant can load it.
        """
        assert tuple(latents.shape) == self._form.shape
        assert latents.dtype == self._form.dtype
        with self._changed:
            if block_hash in self._queued:
                return
            reason = self._refusal()
            if reason is None:
                self._queued[block_hash] = tenant, latents
                self._writer.submit(partial(self._write, block_hash))
            else:
                self.counters.count_dropped(reason)

    def flush(self, deadline_s: float) -> int:
        """Wait for at most `deadline_s` seconds until all offered blocks are written.

        Return how many are not written.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._queued, deadline_s)
            return len(self._queued)

    def close(self) -> None:
        """Let the tier's threads end after their queued tasks."""
        for workers in (self._readers, self._writer, self._cleaner):
            workers.close()

    def _load_first(self, loading: Loading, hashes: list[bytes], tenant: bytes) -> None:
        """Load the first block of a loading.

        If it exists, which is rare, let other threads help to load further blocks.
        """
        if self._load_next(loading, hashes, tenant):
            for _ in range(min(NUM_READERS, len(hashes) - 1)):
                self._readers.submit(partial(self._load_rest, loading, hashes, tenant))

    def _load_rest(self, loading: Loading, hashes: list[bytes], tenant: bytes) -> None:
        while self._load_next(loading, hashes, tenant):
            pass

    def _load_next(self, loading: Loading, hashes: list[bytes], tenant: bytes) -> bool:
        """Read the next block of a loading. Return False if none is left or the block cannot be read."""
        number = loading.next_block()
        if number is None:
            return False
        found = self._read(hashes[number], tenant, loading.deadline)
        if isinstance(found, str):
            loading.record_miss(number, found)
            return False
        loading.add_block(number, found)
        return True

    def _read(self, block_hash: bytes, tenant: bytes, deadline: float) -> Tensor | str:
        """Return a block's latents or, if they cannot be read, the reason of the miss."""
        try:
            with self._readers.operation(), self._folder.block(tenant, block_hash) as file:
                latents = self._make_room(deadline)
                if isinstance(latents, str):
                    return latents
                read_block(file, self._form, block_hash, as_bytes(latents))
        except FileNotFoundError:
            return ABSENT
        except NotThisBlock as error:
            self._reading.record_failure(f"block {block_hash.hex()} is {error.reason}", rests=False)
            self._remove(block_hash, tenant)
            return error.reason
        except OSError as error:
            self._reading.record_failure(_reason(error), rests=False)
            return ERROR
        self._reading.record_success()
        return latents

    def _make_room(self, deadline: float) -> Tensor | str:
        """Wait for bandwidth, then return memory for a block.

        Return the reason if one of them is not free before `deadline`.
        """
        wait_s = self._bandwidth.take(self._form.file_bytes, deadline)
        if wait_s is None:
            return LATE
        self._readers.sleep(wait_s)
        latents = self._allocate()
        if latents is None:
            return NO_ROOM
        assert latents.is_contiguous()  # else its bytes are a copy's
        return latents

    def _remove(self, block_hash: bytes, tenant: bytes) -> None:
        """Remove a cut, damaged or foreign file, so that the block can be written again.

        The usage of the folder falls by the file's present size, which the janitor counts too: a cut file is smaller
        than it was when it was written. It falls by no more than a block takes, for nobody has counted a file that was
        put here. A file that cannot be removed stays, and will be found again.
        """
        try:
            with self._readers.operation():
                num_bytes = self._folder.remove(tenant, block_hash)
                if num_bytes is not None:
                    self._usage.change(-min(self._bound.charge(num_bytes), self._charge))
        except OSError:
            return  # it is found again

    def _refusal(self) -> str | None:
        """Return the reason why no block can be queued now; None if one can.

        While writing rests after a failure, drop the queue.
        """
        if self._writer.rest():
            self._drop_queue()
            return OFF
        full = (len(self._queued) + 1) * self._form.latent_bytes > self._settings.max_queued_bytes
        return QUEUE_FULL if full else None

    def _drop_queue(self) -> None:
        """Drop all queued blocks except the one that is being written."""
        waiting = list(self._queued)[1:]
        for block_hash in waiting:
            del self._queued[block_hash]
        if waiting:
            self.counters.count_dropped(OFF, len(waiting))

    def _write(self, block_hash: bytes) -> None:
        """Write a block, if it is still in the queue."""
        with self._changed:
            queued = self._queued.get(block_hash)
        if queued is None:
            return
        try:
            if self._writing.rests:
                self.counters.count_dropped(OFF)
            else:
                self._writer.sleep(self._bandwidth.take(self._form.file_bytes, NEVER) or 0.0)
                self._publish(block_hash, *queued)
        except OSError as error:
            self.counters.count_dropped(ERROR)
            self._writing.record_failure(_reason(error), rests=True)
            if error.errno in NO_SPACE:
                self._clean(disk_is_full=True)
        finally:
            with self._changed:
                self._queued.pop(block_hash, None)
                self._changed.notify_all()

    def _publish(self, block_hash: bytes, tenant: bytes, latents: Tensor) -> None:
        """Write a block if it is not on the disk yet and there is room. Raises OSError if the disk fails."""
        with self._writer.operation():
            if self._folder.has(tenant, [block_hash]):
                return
            with self._usage.writing():
                used = self._usage.take(self._charge)
                if used is None:
                    self.counters.count_dropped(TIER_FULL)
                elif self._write_counted(block_hash, tenant, latents):
                    self.counters.count_written(self._form.file_bytes)
                    self._writing.record_success()
        if used is None or used > HIGH * self._bound.max_bytes:
            self._clean()

    def _write_counted(self, block_hash: bytes, tenant: bytes, latents: Tensor) -> bool:
        """Write a block whose bytes are already counted.

        Return whether the block was new. If it was not, or if writing fails, its bytes are no longer counted.

        Raises OSError if the disk fails.
        """
        is_new = False
        try:
            is_new = self._folder.publish(tenant, block_hash, self._form.parts(block_hash, as_bytes(latents)))
        finally:
            if not is_new:
                self._usage.change(-self._charge)
        return is_new

    def _clean(self, *, disk_is_full: bool = False) -> None:
        """Let the janitor clean up on its thread, unless it is cleaning up already.

        If `disk_is_full`, it first lowers the folder's bound to the bytes in use.
        """
        with self._changed:
            if not self._cleans:
                self._cleans = True
                self._cleaner.submit(partial(self._clean_now, disk_is_full))

    def _clean_now(self, disk_is_full: bool) -> None:
        try:
            self.counters.count_evicted(self._janitor.clean(disk_is_full=disk_is_full) or 0)
        except OSError as error:
            self._writing.record_failure(_reason(error), rests=True)
        finally:
            with self._changed:
                self._cleans = False


def _reason(error: OSError) -> str:
    why = error.strerror or str(error)
    return why if error.filename is None else f"{error.filename}: {why}"
