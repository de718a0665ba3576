"""The pages of a cache or of its host tier: how many requests hold each page, and which block it keeps.

A page is in one of three states:

    blank   nobody holds it, and it has no hash
    held    by one table or several; it may have a hash, and only one that is not written any more is held by several
    idle    nobody holds it, and it has a hash: it waits to be found, or to be the oldest when pages run out

    take        blank -> held, or else an idle page loses its hash
    publish     a held page gets the hash of the block that it holds, and belongs to its tenant
    hold        held -> held once more, idle -> held
    release     held -> idle if it has a hash, else blank, when the last one releases it
    forget      an idle page -> blank

A page is due from the moment that it becomes idle until the next tier was asked to keep its block.

So remembering takes no memory from requests: an idle page is as good as a blank one to whoever takes it.

It does not hold latents (`cache.py`), make hashes (`blocks.py`) or search them (`index.py`). Nor does it choose the
idle page to forget (`idle.py`). A table is released from its end, so that a chain is forgotten from its end as well.
"""

import time
from array import array
from collections.abc import Callable, Iterable, Sequence

from runtime.kv.idle import IdlePages, Links, PageList
from runtime.kv.index import HashIndex

__all__ = ["Pages"]

NO_TENANT = 0


class Pages:
    """The states of all pages of one cache."""

    def __init__(self, num_pages: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with blank pages. `clock` returns seconds; idle times are measured by it."""
        self._blank = array("i", reversed(range(num_pages)))
        self._holders = array("i", [0]) * num_pages
        self._index = HashIndex(num_pages)
        self._idle, self._due = IdlePages(num_pages, clock), PageList(Links(num_pages))

    @property
    def num_free(self) -> int:
        """The number of pages that no request holds: blank and idle ones."""
        return len(self._blank) + len(self._idle)

    @property
    def num_blank(self) -> int:
        """The number of pages that no request holds and that have no hash."""
        return len(self._blank)

    def has_hash(self, page: int) -> bool:
        """Return whether a page has a hash."""
        return page in self._index

    def num_idle(self, pages: Iterable[int]) -> int:
        """Return how many of these pages, all with a hash, are idle: no request holds them."""
        return sum(not self._holders[page] for page in pages)

    def num_shared(self, pages: Iterable[int]) -> int:
        """Return how many pages from the first on have more than one holder."""
        number = 0
        for page in pages:
            if self._holders[page] < 2:
                break
            number += 1
        return number

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """Return the pages with these hashes, up to the first hash that no page has."""
        return self._index.find(hashes)

    def take(self) -> int:
        """Return a blank page, and give it one holder.

        If no page is blank, first blank the idle page that is next to be given up. At least one page must be blank or
        idle.
        """
        if not self._blank:
            self.forget_oldest()
        page = self._blank.pop()
        self._holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """Add a holder to a page that has a hash."""
        assert page in self._index
        if not self._holders[page]:
            self._idle.remove(page)
            self._no_longer_due(page)
        self._holders[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Remove one holder from each page of a table."""
        for page in reversed(pages):
            assert self._holders[page] > 0
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if page in self._index:
                self._idle.add(page)
                self._due.append(page)
            else:
                self._blank.append(page)

    def publish(self, page: int, block_hash: bytes, tenant: int = NO_TENANT) -> None:
        """Give a held page a hash by which it is found, unless it or another page has it already.

        Nobody may write to the page any more.
        """
        assert self._holders[page] > 0
        if page not in self._index and not self._index.find([block_hash]):
            self._index.add(page, block_hash)
            self._idle.own(page, tenant)

    def forget_oldest(self) -> int | None:
        """Blank the idle page that is next to be given up, and return it; None if no page is idle."""
        page = self._idle.oldest()
        if page is not None:
            self._idle.forget(page)
            self._no_longer_due(page)
            self._index.remove(page)
            self._blank.append(page)
        return page

    def take_due(self) -> tuple[int, bytes, int] | None:
        """Return (page, hash, tenant) of the page that has waited longest for a copy to the next tier.

        The page then waits no longer. Return None if no page waits.
        """
        page = self._due.first()
        if page is None:
            return None
        self._due.remove(page)
        return page, self._index.hash_of(page), self._idle.tenant_of[page]

    def _no_longer_due(self, page: int) -> None:
        if page in self._due:
            self._due.remove(page)
