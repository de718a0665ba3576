"""One rank's latent KV in pages, so that a request takes only the memory that it needs at present.

    page          room for PAGE_TOKENS tokens of one request, in every layer
    page table    a request's pages in order: position p lies in table[p // PAGE_TOKENS], at p % PAGE_TOKENS
    slot mapping  a position's row, counted over all pages

Ask, then act: `can_allocate` before `allocate`. A page is written by one table, the one that it was given to. Once it
is full of a prompt's tokens it may get a hash, and then several tables read it (`pages.py`); its latents stay until
the page is needed for others. It does not choose who gets pages: `serving/scheduler.py` does.

Worked example: PAGE_TOKENS 64, a prompt of 100 tokens takes two pages, [7, 2] say. Token 70 lies in row 2 x 64 + 6.

Latents go to the host and come back layer by layer: a long request's are gigabytes, for which a device whose memory the
cache fills has no second place. Blocks that nobody holds may be kept there too (`tiers/host.py`), to be loaded when
their pages are gone.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.kernels.device import HostLink, PendingCopy
from runtime.kv.host_memory import HostMemory
from runtime.kv.pages import Pages
from runtime.kv.tiers.host import HostTier
from runtime.protocol.counting import PAGE_TOKENS, num_pages

__all__ = ["LatentCache", "LayerPages", "PageTable", "slot_mapping"]

PageTable = list[int]


class LatentCache:
    """A rank's KV cache for at least `num_tokens` tokens, `[num_layers, num_pages, PAGE_TOKENS, latent_dim]`."""

    def __init__(
        self,
        num_layers: int,
        latent_dim: int,
        num_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        link: HostLink | None = None,
        memory: HostMemory | None = None,
        host_bytes: int = 0,
    ) -> None:
        """Allocate the cache. `link` says how latents cross to host memory and back, if not by plain copies.

        `memory` is the ledger of host memory, of which cached blocks may take `host_bytes`. Raises RuntimeFailure if
        there is too little memory.
        """
        self.num_pages = num_pages(num_tokens)
        self._pages = torch.zeros(num_layers, self.num_pages, PAGE_TOKENS, latent_dim, dtype=dtype, device=device)
        self.layers = [LayerPages(pages) for pages in self._pages]
        self.link = HostLink() if link is None else link
        self.memory = HostMemory() if memory is None else memory
        self._owners = Pages(self.num_pages)
        block_shape = num_layers, PAGE_TOKENS, latent_dim
        self.host = HostTier(block_shape, dtype, host_bytes, self.link, self.memory) if host_bytes else None

    @property
    def num_free_pages(self) -> int:
        """The number of pages that no request holds. Idle pages with cached blocks are among them."""
        return self._owners.num_free

    def find(self, hashes: Sequence[bytes]) -> PageTable:
        """Return the pages of the blocks with these hashes, up to the first block that is in no page."""
        return self._owners.find(hashes)

    def num_found(self, hashes: Sequence[bytes]) -> int:
        """Return how many of these blocks, from the first on, are cached. The last ones may be only in host memory."""
        number = len(self.find(hashes))
        return number if self.host is None else number + self.host.num_found(hashes[number:])

    def can_allocate(self, table: PageTable, num_tokens: int, shared: PageTable | None = None) -> bool:
        """Return whether there are enough pages for `table` to grow to `num_tokens`, first by the pages `shared`."""
        shared = shared or []
        num_new = num_pages(num_tokens) - len(table) - len(shared)
        return num_new <= self._owners.num_free - self._owners.num_idle(shared)

    def allocate(self, table: PageTable, num_tokens: int, shared: PageTable | None = None) -> None:
        """Let `table` grow to `num_tokens`: first by the pages `shared`, which hold latents already, then by others."""
        for page in shared or []:
            self._owners.hold(page)
            table.append(page)
        while len(table) < num_pages(num_tokens):
            table.append(self._owners.take())

    def share(self, table: PageTable, first: int, shared: PageTable) -> None:
        """Let a request use the pages `shared` in place of the pages in its `table` from number `first` on.

        The request must not have written to the pages that it gives up.
        """
        for number, page in enumerate(shared, first):
            if table[number] != page:
                self._owners.hold(page)
                self._owners.release([table[number]])
                table[number] = page

    def publish(self, table: PageTable, first: int, hashes: Sequence[bytes], tenant: bytes) -> None:
        """Let other requests find the blocks in a table's pages from number `first` on, by their hashes.

        The blocks, and their copies in host memory, count towards the share of `tenant`.
        """
        for page, block_hash in zip(table[first : first + len(hashes)], hashes, strict=True):
            self._owners.publish(page, block_hash, int.from_bytes(tenant))

    def num_shared(self, table: PageTable) -> int:
        """Return how many of a table's first pages are in other tables too. Freeing these pages frees no memory."""
        return self._owners.num_shared(table)

    def free(self, table: PageTable) -> None:
        """Release all pages of a table, whose request no longer needs them, and empty the table."""
        self._owners.release(table)
        table.clear()

    def read(self, layer: int, table: PageTable, start: int, end: int) -> Tensor:
        """Return a copy of a request's latents in a layer, for the positions `start` to `end` - 1: `[T, C]`."""
        return self.layers[layer].read(self._rows(table, start, end))

    def swap_in(self, table: PageTable, latents: Tensor, start: int = 0) -> PendingCopy | None:
        """Begin to copy latents `[num_layers, T, C]` from host memory to a request's pages, from position `start` on.

        Return the pending copy, or None if the copy is done already. Until the copy has arrived, nobody may use or free
        these pages.
        """
        rows = self._rows(table, start, start + latents.shape[1])  # made first: later it would wait for the copies

        def write() -> None:
            for layer, latent_TC in zip(self.layers, latents, strict=True):
                layer.write(rows, latent_TC.to(self._pages.device, non_blocking=True))

        return self.link.begin_copy_to_device(write)

    def load(self, table: PageTable, first: int, hashes: Sequence[bytes]) -> tuple[int, PendingCopy | None]:
        """Begin to copy blocks from host memory to a table's pages, from page number `first` on.

        The copies end before the first block that is not in host memory. Return how many blocks are copied, and the
        pending copy as `swap_in` does.
        """
        if self.host is None:
            return 0, None
        return self.host.load(hashes, (self._pages[:, page] for page in table[first:]))

    def save(self, max_blocks: int) -> None:
        """Begin to copy at most `max_blocks` idle blocks to host memory. The next step calls `fence_saves`."""
        if self.host is not None:
            due = iter(self._owners.take_due, None)
            self.host.save(((block_hash, tenant, self._pages[:, page]) for page, block_hash, tenant in due), max_blocks)

    def fence_saves(self) -> list[bytes]:
        """Order all later writes to the saved blocks' pages after the copies that `save` began.

        Return the hashes of the blocks whose copies have ended since the last call.
        """
        return [] if self.host is None else self.host.fence_saves()

    def swap_out(self, table: PageTable, num_tokens: int, start: int = 0) -> Tensor | None:
        """Copy a request's latents of positions `start` to `num_tokens` - 1 to host memory, `[num_layers, T, C]`.

        Return None if host memory has no room for them.
        """
        token_bytes = self._pages[:, 0, 0].nbytes
        if not self.memory.take("swapped", (num_tokens - start) * token_bytes):
            return None
        latents = self.copy_to_host(table, num_tokens, start)
        self.memory.watch("swapped", latents)
        return latents

    def copy_to_host(self, table: PageTable, num_tokens: int, start: int = 0) -> Tensor:
        """Copy a request's latents as `swap_out` does, `[num_layers, T, C]`.

        The copy does not count in the ledger of host memory.
        """
        rows = self._rows(table, start, num_tokens)
        latents = self.link.empty((len(self.layers), num_tokens - start, self._pages.shape[-1]), self._pages.dtype)
        for layer, latent_TC in zip(self.layers, latents, strict=True):
            latent_TC.copy_(layer.read(rows), non_blocking=True)
        self.link.finish(self._pages.device)
        return latents

    def join_outside(self, first: Tensor, rest: Tensor) -> Tensor | None:
        """Join latents in host memory, `first` and `rest` (the tokens after them), to one tensor `[num_layers, T, C]`.

        Return None if host memory has no room for the tensor.
        """
        if not self.memory.take("swapped", first.nbytes + rest.nbytes):
            return None
        num_first = first.shape[1]
        latents = self.link.empty((len(first), num_first + rest.shape[1], first.shape[2]), first.dtype)
        latents[:, :num_first] = first
        latents[:, num_first:] = rest
        self.memory.watch("swapped", latents)
        return latents

    def _rows(self, table: PageTable, start: int, end: int) -> Tensor:
        """Return the row numbers of a request's positions `start` to `end` - 1, [end - start].

        The numbers are the same in every layer.
        """
        return torch.tensor(slot_mapping(table, start, end), dtype=torch.long, device=self._pages.device)


class LayerPages:
    """One layer's part of the cache, as attention sees it."""

    def __init__(self, pages: Tensor) -> None:
        self._rows = pages.flatten(0, 1)  # [J x PAGE_TOKENS, C], the same memory
        self.pages = pages  # [J, PAGE_TOKENS, C]

    def write(self, slot_mapping_T: Tensor, latent_TC: Tensor) -> None:
        """Write the latents of a step's tokens to the rows `slot_mapping_T`."""
        self._rows.index_copy_(0, slot_mapping_T, latent_TC)

    def read(self, slot_mapping_S: Tensor) -> Tensor:
        """Return the latents in the rows `slot_mapping_S`, `[S, C]`."""
        return self._rows.index_select(0, slot_mapping_S)


def slot_mapping(table: PageTable, start: int, end: int) -> list[int]:
    """Return the row numbers of the positions `start` to `end` - 1 of a page table, [end - start]."""
    return [table[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS for position in range(start, end)]
