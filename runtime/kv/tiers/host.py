"""The host tier of the prefix cache: blocks in the rank's host memory, behind the pages of its cache.

A slot is room for one block, `[num_layers, PAGE_TOKENS, latent_dim]`. Slots have holders and hashes as pages do.

    save    copies blocks to slots, beside the step that computes. They are found after `fence_saves`, before the next.
            Their slots are held until the copies have ended: before that, only the device may read them.
    load    copies blocks to the cache's pages, beside the steps that compute. Their slots are held until it ends.
    lend    gives a slot's memory to a slower tier, which reads a block to it or writes its block: held meanwhile

Write behind: a block is saved when no request holds its page any more, and before the page is needed. So whoever needs
a page waits for no copy, and a block that was saved in vain has cost a copy that nobody waited for.

It keeps blocks until it has no slot, or until requests need the memory (`host_memory.py`); `idle.py` says which go. The
network's thread may make it give way at any moment, so each call has the ledger's lock. On a CPU a slot's memory is
freed then. On a GPU it was pinned before the rank was ready and stays so, because pinning holds up steps.

Models: SGLang's HiCache (github.com/sgl-project/sglang python/sglang/srt/mem_cache: write_through, page-first layout)
and vLLM's CPU offloading (github.com/vllm-project/vllm c8dd6f9d vllm/v1/kv_offload/cpu/manager.py).
"""

import queue
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from runtime.kernels.device import HostLink, PendingCopy
from runtime.kv.host_memory import HostMemory, pinning
from runtime.kv.pages import Pages

__all__ = ["HostTier"]

PINNED_BLOCKS = 16  # assumed: at least so many in a power of two, as torch pins, so that less than a 16th is lost


class HostTier:
    """A rank's cached blocks in host memory: as many as fit into `max_bytes`."""

    def __init__(
        self,
        block_shape: tuple[int, int, int],
        dtype: torch.dtype,
        max_bytes: int,
        link: HostLink,
        memory: HostMemory,
    ) -> None:
        """Make an empty tier; pin its memory if `link` pins. Raises RuntimeFailure if there is too little memory."""
        self.shape, self.dtype, self._link, self._memory = block_shape, dtype, link, memory
        self.block_bytes = torch.Size(block_shape).numel() * dtype.itemsize
        self._slots_in_chunk, num_chunks = _chunk_sizes(self.block_bytes, max_bytes, link.pins)
        self._chunks: list[Tensor | None] = [None] * num_chunks
        self._slots = Pages(num_chunks * self._slots_in_chunk)
        self._saved: dict[int, tuple[bytes, int]] = {}  # slot -> hash and tenant of the block that `save` copies
        self._saves: PendingCopy | None = None
        self._copies: deque[tuple[PendingCopy | None, dict[int, tuple[bytes, int]]]] = (
            deque()
        )  # copies that may still run
        self._loads: deque[tuple[PendingCopy, list[int]]] = deque()
        self._blank: dict[int, int] = {}  # address -> slot that a slower tier fills
        self._came_back: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()  # slot, address
        if link.pins:
            self._pin()
        memory.let_blocks_give_way(self._give_way)

    def num_found(self, hashes: Sequence[bytes]) -> int:
        """Return how many of these blocks, from the first on, are in the tier."""
        with self._memory.lock:
            return len(self._slots.find(hashes))

    def save(self, blocks: Iterable[tuple[bytes, int, Tensor]], max_copies: int = sys.maxsize) -> None:
        """Begin to copy blocks (hash, tenant, page) to slots. The pages must not be written to before `fence_saves`.

        A block that the tier has already is not copied, but counts as just used. A block without a free slot is not
        kept. After `max_copies` copies, no more of `blocks` are taken.
        """
        assert not self._saved
        pages = []
        with self._memory.lock:
            for block_hash, tenant, page in blocks:
                if found := self._slots.find([block_hash]):
                    self._slots.hold(found[0])
                    self._slots.release(found)
                elif (slot := self._take_slot()) is not None:
                    self._saved[slot] = block_hash, tenant
                    pages.append(page)
                if len(pages) >= max_copies:
                    break
            slots = [self._latents(slot) for slot in self._saved]
        if slots:
            self._saves = self._link.begin_copy_from_device(lambda: _copy(pages, slots))

    def fence_saves(self) -> list[bytes]:
        """Order all later work on the device after the copies that `save` began. Their blocks can be found from now on.

        Release the slots whose copies or loads have ended, or whose lent memory nothing refers to any more. Return the
        hashes of the blocks whose copies have ended since the last call, so that they can be lent.
        """
        self._take_back()
        if self._saves is not None:
            self._saves.join()
        with self._memory.lock:
            for slot, (block_hash, tenant) in self._saved.items():
                self._slots.publish(slot, block_hash, tenant)
        self._copies.append((self._saves, self._saved))
        self._saved, self._saves = {}, None
        return self._end_copies()

    def load(self, hashes: Sequence[bytes], pages: Iterable[Tensor]) -> tuple[int, PendingCopy | None]:
        """Begin to copy blocks to `pages`, up to the first not in the tier. Return (number of blocks, pending copy).

        The pending copy is None if the copies are done already.
        """
        with self._memory.lock:
            found = self._slots.find(hashes)
            for slot in found:
                self._slots.hold(slot)
            slots = [self._latents(slot) for slot in found]
        targets = [page for page, _ in zip(pages, slots, strict=False)]
        arrival = self._link.begin_copy_to_device(lambda: _copy(slots, targets)) if found else None
        if arrival is None:
            self._release(found)
        else:
            self._loads.append((arrival, found))
        return len(found), arrival

    def lend_blank(self) -> Tensor | None:
        """Return memory for one block, into which a slower tier reads it; None if there is no room.

        Any thread may call this. The memory is free again when nothing refers to it, unless the block was added.
        """
        with self._memory.lock:
            slot = self._take_slot()
            if slot is None:
                return None
            latents = self._lend(slot)
            self._blank[latents.data_ptr()] = slot
            return latents

    def add(self, block_hash: bytes, latents: Tensor, tenant: bytes) -> None:
        """Add a tenant's block, whose latents were read into memory from `lend_blank`, so that it can be found."""
        with self._memory.lock:
            self._slots.publish(self._blank.pop(latents.data_ptr()), block_hash, int.from_bytes(tenant))

    def lend(self, block_hash: bytes) -> Tensor | None:
        """Return a block's latents for a slower tier to write; None if its copy to this tier has not ended.

        The block's slot is held while anything refers to the latents.
        """
        with self._memory.lock:
            found = self._slots.find([block_hash])
            if not found or any(found[0] in saved for _, saved in self._copies):
                return None
            self._slots.hold(found[0])
            return self._lend(found[0])

    def _end_copies(self) -> list[bytes]:
        ended: list[bytes] = []
        while self._copies and (self._copies[0][0] is None or self._copies[0][0].has_arrived()):
            saved = self._copies.popleft()[1]
            self._release(list(saved))
            ended += (block_hash for block_hash, _ in saved.values())
        return ended

    def _lend(self, slot: int) -> Tensor:
        latents = self._latents(slot)
        weakref.finalize(latents, self._came_back.put, (slot, latents.data_ptr()))
        return latents

    def _take_back(self) -> None:
        while self._loads and self._loads[0][0].has_arrived():
            self._release(self._loads.popleft()[1])
        while not self._came_back.empty():
            slot, address = self._came_back.get()
            with self._memory.lock:
                self._slots.release([slot])
                if not self._slots.has_hash(slot):
                    self._blank.pop(address, None)
                    self._free(slot)

    def _release(self, slots: list[int]) -> None:
        with self._memory.lock:
            self._slots.release(slots)

    def _take_slot(self) -> int | None:
        if self._slots.num_blank and self._memory.take("blocks", self.block_bytes):
            return self._slots.take()
        return None if self._slots.forget_oldest() is None else self._slots.take()

    def _latents(self, slot: int) -> Tensor:
        number, within = divmod(slot, self._slots_in_chunk)
        chunk = self._chunks[number]
        if chunk is None:
            chunk = self._chunks[number] = self._link.empty((self._slots_in_chunk, *self.shape), self.dtype)
        return chunk[within]

    def _give_way(self, num_bytes: int) -> None:
        """Forget idle blocks until `num_bytes` more are free or no idle block is left. The caller has the lock."""
        while num_bytes > 0 and (slot := self._slots.forget_oldest()) is not None:
            self._free(slot)
            num_bytes -= self.block_bytes

    def _free(self, slot: int) -> None:
        if not self._link.pins:
            self._chunks[slot] = None
        self._memory.give_back("blocks", self.block_bytes)

    def _pin(self) -> None:
        with pinning(len(self._chunks) * self._slots_in_chunk * self.block_bytes):
            for number in range(len(self._chunks)):
                self._latents(number * self._slots_in_chunk)


def _chunk_sizes(block_bytes: int, max_bytes: int, is_pinned: bool) -> tuple[int, int]:
    """Return the slots per chunk of memory, and the number of chunks. Only a pinned chunk has several slots."""
    if not is_pinned:
        return 1, max_bytes // block_bytes
    chunk_bytes = 1 << (PINNED_BLOCKS * block_bytes - 1).bit_length()
    return chunk_bytes // block_bytes, max_bytes // chunk_bytes


def _copy(sources: list[Tensor], targets: list[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source, non_blocking=True)
