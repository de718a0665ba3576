"""One rank's latent KV in pages, so that a request takes what it needs and not what it might.

    page          room for PAGE_TOKENS tokens of one request, in every layer
    page table    a request's pages in order: position p lies in table[p // PAGE_TOKENS], at p % PAGE_TOKENS
    slot mapping  a position's row, counted over all pages

Ask, then act: `can_allocate` before `allocate`. A page belongs to the table that it was given to until `free`, and the
invariant is that every page is free or in one table. It does not choose who gets pages: `serving/scheduler.py` does.

Worked example: PAGE_TOKENS 64, a prompt of 100 tokens takes two pages, [7, 2] say. Token 70 lies in row 2 x 64 + 6.

Latents go to the host and come back layer by layer: a long request's are gigabytes, for which a device whose memory the
cache fills has no second place.
"""

import torch
from torch import Tensor

from runtime.kernels.device import Arrival, HostLink
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
    ) -> None:
        """Make the cache. `link` says how latents cross to the host's memory and back, if not by plain copies."""
        self.num_pages = num_pages(num_tokens)
        self._pages = torch.zeros(num_layers, self.num_pages, PAGE_TOKENS, latent_dim, dtype=dtype, device=device)
        self.layers = [LayerPages(pages) for pages in self._pages]
        self.link = HostLink() if link is None else link
        self._free = list(reversed(range(self.num_pages)))

    @property
    def num_free_pages(self) -> int:
        """The number of pages that no table holds."""
        return len(self._free)

    def can_allocate(self, table: PageTable, num_tokens: int) -> bool:
        """Return whether there are pages for `table` to hold `num_tokens` in all."""
        return num_pages(num_tokens) - len(table) <= len(self._free)

    def allocate(self, table: PageTable, num_tokens: int) -> None:
        """Let `table` grow until it holds `num_tokens`."""
        while len(table) < num_pages(num_tokens):
            table.append(self._free.pop())

    def free(self, table: PageTable) -> None:
        """Take all pages of a table back, because its request needs them no more; the table is empty afterwards."""
        assert set(table).isdisjoint(self._free)
        self._free += table
        table.clear()

    def swap_in(self, table: PageTable, latents: Tensor) -> Arrival | None:
        """Begin to write a request's latents `[num_layers, T, C]`, which come from host memory, from position 0.

        Return their arrival, before which nobody may use or free these pages; None if they are there.
        """
        rows = self._rows(table, latents.shape[1])  # made before the copies and not among them, where it would wait

        def write() -> None:
            for layer, latent_TC in zip(self.layers, latents, strict=True):
                layer.write(rows, latent_TC.to(self._pages.device, non_blocking=True))

        return self.link.begin_to_device(write)

    def swap_out(self, table: PageTable, num_tokens: int) -> Tensor:
        """Copy a request's latents up to `num_tokens` to host memory, `[num_layers, T, C]`."""
        rows = self._rows(table, num_tokens)
        latents = self.link.empty((len(self.layers), num_tokens, self._pages.shape[-1]), self._pages.dtype)
        for layer, latent_TC in zip(self.layers, latents, strict=True):
            latent_TC.copy_(layer.read(rows), non_blocking=True)
        self.link.finish(self._pages.device)
        return latents

    def _rows(self, table: PageTable, num_tokens: int) -> Tensor:
        """Return the rows of a request's first tokens in every layer."""
        return torch.tensor(slot_mapping(table, 0, num_tokens), dtype=torch.long, device=self._pages.device)


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
