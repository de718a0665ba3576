"""The pages of a cache or of its host tier: how many requests hold each page, and which block it keeps.

A page is in one of three states:

    blank   nobody holds it, and it has no name
    held    by one table or several; it may have a name, and only one that is not written any more is held by several
    idle    nobody holds it, and it has a name: it waits to be found, or to be the oldest when pages run out

    take        blank -> held, or else an idle page loses its name
    name        a held page gets the name of the block that it holds, and belongs to its tenant
    hold        held -> held once more, idle -> held
    release     held -> idle if it has a name, else blank, when the last one releases it
    forget      an idle page -> blank

A page is due from the moment that it becomes idle until the next tier was asked to keep its block.

So remembering takes no memory from requests: an idle page is as good as a blank one to whoever takes it.

It does not hold latents (`cache.py`), make names (`blocks.py`) or search them (`index.py`). Nor does it choose the idle
page that is forgotten (`idle.py`). A table is released from its end, so that a chain is forgotten from its end as well.
"""

import time
from array import array
from collections.abc import Callable, Iterable, Sequence

from runtime.kv.idle import IdlePages, Line, Links
from runtime.kv.index import NameIndex

__all__ = ["Pages"]

NO_TENANT = 0


class Pages:
    """The states of all pages of one cache."""

    def __init__(self, num_pages: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with blank pages. `clock` returns the time in seconds, to tell how long a page has been idle."""
        self._blank = array("i", reversed(range(num_pages)))
        self._holders = array("i", [0]) * num_pages
        self._index = NameIndex(num_pages)
        self._idle, self._due = IdlePages(num_pages, clock), Line(Links(num_pages))

    @property
    def num_free(self) -> int:
        """The number of pages that nobody holds, blank or idle."""
        return len(self._blank) + len(self._idle)

    @property
    def num_blank(self) -> int:
        """The number of pages that nobody holds and that have no name."""
        return len(self._blank)

    def has_name(self, page: int) -> bool:
        """Return whether a page has a name."""
        return page in self._index

    def num_idle(self, pages: Iterable[int]) -> int:
        """Return how many of these named pages are idle: nobody holds them."""
        return sum(not self._holders[page] for page in pages)

    def num_shared(self, pages: Iterable[int]) -> int:
        """Return how many of the first pages have more than one holder, up to one that has not."""
        number = 0
        for page in pages:
            if self._holders[page] < 2:
                break
            number += 1
        return number

    def find(self, names: Iterable[bytes]) -> list[int]:
        """Return the pages with these names, up to the first name that no page has."""
        return self._index.find(names)

    def take(self) -> int:
        """Return a blank page for one holder, made of an idle one if need be. There must be a free page."""
        if not self._blank:
            self.forget_oldest()
        page = self._blank.pop()
        self._holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """Add a holder to a page that has a name."""
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

    def name(self, page: int, name: bytes, tenant: int = NO_TENANT) -> None:
        """Name a held page that nobody writes to any more, so that it can be found; skip a name that a page has."""
        assert self._holders[page] > 0
        if page not in self._index and not self._index.find([name]):
            self._index.add(page, name)
            self._idle.own(page, tenant)

    def forget_oldest(self) -> int | None:
        """Make the idle page to give up next blank, and return it; None if none is idle."""
        page = self._idle.oldest()
        if page is not None:
            self._idle.forget(page)
            self._no_longer_due(page)
            self._index.remove(page)
            self._blank.append(page)
        return page

    def take_due(self) -> tuple[int, bytes, int] | None:
        """Take the page that is due for longest, and return it with its name and tenant; None if none is due."""
        page = self._due.first()
        if page is None:
            return None
        self._due.remove(page)
        return page, self._index.name(page), self._idle.tenant_of[page]

    def _no_longer_due(self, page: int) -> None:
        if page in self._due:
            self._due.remove(page)
