"""One rank's latent KV in pages, so that a request takes what it needs and not what it might.

    page          room for PAGE_TOKENS tokens of one request, in every layer
    page table    a request's pages in order: position p lies in table[p // PAGE_TOKENS], at p % PAGE_TOKENS
    place         a position's row, counted over all pages

Ask, then act: `can_allocate` before `allocate`. A page belongs to the table that it was given to until `free`, and the
invariant is that every page is free or in one table. It does not choose who gets pages: `serving/scheduler.py` does.

Worked example: PAGE_TOKENS 64, a prompt of 100 tokens takes two pages, [7, 2] say. Token 70 lies at place 2 x 64 + 6.

Source of the size: FlashMLA (github.com/deepseek-ai/FlashMLA), "Paged kvcache with block size of 64".
"""

import torch
from torch import Tensor

from runtime.model.config import ModelConfig

__all__ = ["PAGE_TOKENS", "LatentCache", "LayerPages", "PageTable", "num_pages", "slot_mapping"]

PAGE_TOKENS = 64

PageTable = list[int]


class LatentCache:
    """Room for at least `num_tokens` tokens, `[num_layers, num_pages, PAGE_TOKENS, latent_dim]`."""

    def __init__(self, config: ModelConfig, num_tokens: int, dtype: torch.dtype) -> None:
        self.num_pages = num_pages(num_tokens)
        shape = (config.num_hidden_layers, self.num_pages, PAGE_TOKENS, config.latent_dim)
        self._pages = torch.zeros(shape, dtype=dtype)
        self.layers = [LayerPages(pages) for pages in self._pages]
        self._free = list(reversed(range(self.num_pages)))

    @property
    def num_free_pages(self) -> int:
        """Pages that no table holds."""
        return len(self._free)

    def can_allocate(self, table: PageTable, num_tokens: int) -> bool:
        """There are pages for `table` to hold `num_tokens` in all."""
        return num_pages(num_tokens) - len(table) <= len(self._free)

    def allocate(self, table: PageTable, num_tokens: int) -> None:
        """Let `table` grow until it holds `num_tokens`."""
        while len(table) < num_pages(num_tokens):
            table.append(self._free.pop())

    def free(self, table: PageTable) -> None:
        """Its request needs no pages any more; the table is empty afterwards."""
        assert set(table).isdisjoint(self._free)
        self._free += table
        table.clear()

    def swap_in(self, table: PageTable, latents: Tensor) -> None:
        """Write a request's latents `[num_layers, T, C]` from position 0."""
        self._pages.flatten(1, 2)[:, slot_mapping(table, 0, latents.shape[1])] = latents

    def swap_out(self, table: PageTable, num_tokens: int) -> Tensor:
        """A copy of a request's latents up to `num_tokens`, `[num_layers, T, C]`."""
        return self._pages.flatten(1, 2)[:, slot_mapping(table, 0, num_tokens)]


class LayerPages:
    """One layer's part of the cache, as attention sees it."""

    def __init__(self, pages: Tensor) -> None:
        self._rows = pages.flatten(0, 1)  # [slot_mapping, C], the same memory
        self.pages = pages  # [pages, PAGE_TOKENS, C]

    def write(self, slot_mapping_T: Tensor, latent_TC: Tensor) -> None:
        """The latents of a step's own tokens."""
        self._rows.index_copy_(0, slot_mapping_T, latent_TC)

    def read(self, slot_mapping_S: Tensor) -> Tensor:
        """`[S, C]`."""
        return self._rows.index_select(0, slot_mapping_S)

    def read_requests(self, tables_BP: Tensor) -> Tensor:
        """All pages of each of some requests, `[B, positions, C]`, positions that are not in use included."""
        num_requests, max_pages = tables_BP.shape
        pages = self.pages.flatten(1).index_select(0, tables_BP.flatten())
        return pages.view(num_requests, max_pages * PAGE_TOKENS, self.pages.shape[-1])


def num_pages(num_tokens: int) -> int:
    """That hold so many tokens of one request."""
    return -(-num_tokens // PAGE_TOKENS)


def slot_mapping(table: PageTable, start: int, end: int) -> list[int]:
    """Of the positions from `start` to before `end`."""
    return [table[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS for position in range(start, end)]
