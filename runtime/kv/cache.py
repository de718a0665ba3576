"""One rank's latent KV in pages, so that a request takes what it needs and not what it might.

    page          room for PAGE_TOKENS tokens of one request, in every layer
    page table    a request's pages in order: position p lies in table[p // PAGE_TOKENS], at p % PAGE_TOKENS
    slot mapping  a position's row, counted over all pages

Ask, then act: `can_allocate` before `allocate`. A page is written by one table, the one that it was given to. Once it
is full of a prompt's tokens it may get a name, and then several tables read it (`pages.py`); its latents stay until
the page is needed for others. It does not choose who gets pages: `serving/scheduler.py` does.

Worked example: PAGE_TOKENS 64, a prompt of 100 tokens takes two pages, [7, 2] say. Token 70 lies in row 2 x 64 + 6.

Latents go to the host and come back layer by layer: a long request's are gigabytes, for which a device whose memory the
cache fills has no second place. Blocks that nobody holds may be kept there too (`tiers/host.py`), to be loaded when
their pages are gone.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.kernels.device import Arrival, HostLink
from runtime.kv.host_memory import HostMemory
from runtime.kv.pages import Pages
from runtime.kv.tiers.host import HostTier
from runtime.protocol.counting import PAGE_TOKENS, num_pages

__all__ = ["LatentCache", "LayerPages", "PageTable", "slot_mapping"]

PageTable = list[int]


class LatentCache:
    """Room for at least `num_tokens` tokens, `[num_layers, num_pages, PAGE_TOKENS, latent_dim]`."""

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
        """Make the cache. `link` says how latents cross to the host's memory and back, if not by plain copies.

        `memory` is the ledger of what lies there, of which blocks may take `host_bytes`. Raise RuntimeFailure where
        there is not so much.
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
        """The number of pages that no table holds."""
        return self._owners.num_free

    def find(self, names: Sequence[bytes]) -> PageTable:
        """Return the pages that hold the blocks of these names, up to the first that is not there."""
        return self._owners.find(names)

    def num_found(self, names: Sequence[bytes]) -> int:
        """Return how many blocks of these names are in pages or in host memory, up to the first that is not."""
        number = len(self.find(names))
        return number if self.host is None else number + self.host.num_found(names[number:])

    def can_allocate(self, table: PageTable, num_tokens: int, shared: PageTable | None = None) -> bool:
        """Return whether there are pages for `table` to hold `num_tokens` in all, the next of which are `shared`."""
        shared = shared or []
        num_new = num_pages(num_tokens) - len(table) - len(shared)
        return num_new <= self._owners.num_free - self._owners.num_idle(shared)

    def allocate(self, table: PageTable, num_tokens: int, shared: PageTable | None = None) -> None:
        """Let `table` grow until it holds `num_tokens`. Its next pages are `shared`, which have their latents."""
        for page in shared or []:
            self._owners.hold(page)
            table.append(page)
        while len(table) < num_pages(num_tokens):
            table.append(self._owners.take())

    def share(self, table: PageTable, first: int, shared: PageTable) -> None:
        """Put `shared` in the place of a table's pages from number `first` on, which it has not written."""
        for number, page in enumerate(shared, first):
            if table[number] != page:
                self._owners.hold(page)
                self._owners.release([table[number]])
                table[number] = page

    def name(self, table: PageTable, first: int, names: Sequence[bytes], tenant: bytes) -> None:
        """Let the blocks be found by these names that a table's pages hold from number `first` on.

        They take room of this tenant, as do their copies in host memory.
        """
        for page, name in zip(table[first : first + len(names)], names, strict=True):
            self._owners.name(page, name, int.from_bytes(tenant))

    def num_shared(self, table: PageTable) -> int:
        """Return how many pages at the beginning of a table are in other tables too: freeing them frees nothing."""
        return self._owners.num_shared(table)

    def free(self, table: PageTable) -> None:
        """Take all pages of a table back, because its request needs them no more; the table is empty afterwards."""
        self._owners.release(table)
        table.clear()

    def read(self, layer: int, table: PageTable, start: int, end: int) -> Tensor:
        """Return a copy of a request's latents in a layer, of its tokens from `start` to before `end`: `[T, C]`."""
        return self.layers[layer].read(self._rows(table, start, end))

    def swap_in(self, table: PageTable, latents: Tensor, start: int = 0) -> Arrival | None:
        """Begin to write a request's latents `[num_layers, T, C]`, which come from host memory, from position `start`.

        Return their arrival, before which nobody may use or free these pages; None if they are there.
        """
        rows = self._rows(table, start, start + latents.shape[1])  # made before the copies: among them it would wait

        def write() -> None:
            for layer, latent_TC in zip(self.layers, latents, strict=True):
                layer.write(rows, latent_TC.to(self._pages.device, non_blocking=True))

        return self.link.begin_to_device(write)

    def load(self, table: PageTable, first: int, names: Sequence[bytes]) -> tuple[int, Arrival | None]:
        """Start copying the named blocks into a table's pages from `first` on, up to the first one not in host memory.

        Return how many are copied, and their arrival, as `swap_in` does.
        """
        if self.host is None:
            return 0, None
        return self.host.load(names, (self._pages[:, page] for page in table[first:]))

    def save(self, max_blocks: int) -> None:
        """Begin to copy blocks that nobody holds any more to host memory. The next step ends this with `end_saves`."""
        if self.host is not None:
            due = iter(self._owners.take_due, None)
            self.host.save(((name, tenant, self._pages[:, page]) for page, name, tenant in due), max_blocks)

    def end_saves(self) -> list[bytes]:
        """Let whoever gets the pages from now on write to them after their blocks are copied.

        Return the names of the blocks whose copies have ended since the last call.
        """
        return [] if self.host is None else self.host.end_saves()

    def swap_out(self, table: PageTable, num_tokens: int, start: int = 0) -> Tensor | None:
        """Copy a request's latents from `start` up to `num_tokens` to host memory, `[num_layers, T, C]`.

        Return None where it has no room for them.
        """
        token_bytes = self._pages[:, 0, 0].nbytes
        if not self.memory.take("swapped", (num_tokens - start) * token_bytes):
            return None
        latents = self.copy_to_host(table, num_tokens, start)
        self.memory.watch("swapped", latents)
        return latents

    def copy_to_host(self, table: PageTable, num_tokens: int, start: int = 0) -> Tensor:
        """Copy a request's latents as `swap_out` does, for somebody else to hold."""
        rows = self._rows(table, start, num_tokens)
        latents = self.link.empty((len(self.layers), num_tokens - start, self._pages.shape[-1]), self._pages.dtype)
        for layer, latent_TC in zip(self.layers, latents, strict=True):
            latent_TC.copy_(layer.read(rows), non_blocking=True)
        self.link.finish(self._pages.device)
        return latents

    def join_outside(self, first: Tensor, rest: Tensor) -> Tensor | None:
        """Copy latents in host memory, of tokens and of those that follow, to one piece `[num_layers, T, C]`.

        Return None where it has no room for that.
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
        """Return the rows of a request's tokens from `start` to before `end` in every layer."""
        return torch.tensor(slot_mapping(table, start, end), dtype=torch.long, device=self._pages.device)


class LayerPages:
    """One layer's part of the cache, as attention sees it."""

    def __init__(self, pages: Tensor) -> None:
        self._rows = pages.flatten(0, 1)  # [J x PAGE_TOKENS, C], the same memory
        self.pages = pages  # [J, PAGE_TOKENS, C]

    def write(self, slot_mapping_T: Tensor, latent_TC: Tensor) -> None:
        """Write the latents of a step's own tokens."""
        self._rows.index_copy_(0, slot_mapping_T, latent_TC)

    def read(self, slot_mapping_S: Tensor) -> Tensor:
        """Return the latents in these rows, `[S, C]`."""
        return self._rows.index_select(0, slot_mapping_S)


def slot_mapping(table: PageTable, start: int, end: int) -> list[int]:
    """Return the rows of the positions from `start` to before `end`."""
    return [table[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS for position in range(start, end)]
