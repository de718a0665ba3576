"""The pages of a rank's cache by number: who holds each, and which block it remembers. Prefix caching's first tier.

A page is in one of three states:

    blank   nobody holds it, and it has no name
    held    by one table or several; it may have a name, and only one that is not written any more is held by several
    idle    nobody holds it, and it has a name: it waits to be found, or to be the oldest when pages run out

    take        blank -> held, or else the oldest idle page loses its name
    name        a held page gets the name of the block that it holds
    hold        held -> held once more, idle -> held
    release     held -> idle if it has a name, else blank, when the last one releases it

So remembering takes no memory from requests: an idle page is as good as a blank one to whoever takes it.

It does not hold latents (`cache.py`), make names (`blocks.py`) or search them (`index.py`). Order of eviction is least
recently released; a table is released from its end, so that a chain is forgotten from its end as well.
"""

from array import array
from collections.abc import Iterable, Sequence

from runtime.kv.index import NameIndex

__all__ = ["Pages"]


class Pages:
    """All pages of one cache."""

    def __init__(self, num_pages: int) -> None:
        self._blank = array("i", reversed(range(num_pages)))
        self._holders = array("i", [0]) * num_pages
        self._index = NameIndex(num_pages)
        self._idle = _Line(num_pages)

    @property
    def num_free(self) -> int:
        """The pages that nobody holds."""
        return len(self._blank) + len(self._idle)

    def num_idle(self, pages: Iterable[int]) -> int:
        """Return how many of these named pages nobody holds."""
        return sum(not self._holders[page] for page in pages)

    def num_shared(self, pages: Iterable[int]) -> int:
        """Return how many pages at the beginning have more than one holder."""
        number = 0
        for page in pages:
            if self._holders[page] < 2:
                break
            number += 1
        return number

    def find(self, names: Iterable[bytes]) -> list[int]:
        """Return the pages with these names, up to the first name that no page has."""
        found = []
        for name in names:
            page = self._index.page(name)
            if page is None:
                break
            found.append(page)
        return found

    def take(self) -> int:
        """Return a page without a name for one holder. There must be a free one."""
        page = self._blank.pop() if self._blank else self._forget_oldest()
        self._holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """Count one more holder of a page that has a name."""
        assert page in self._index
        if not self._holders[page]:
            self._idle.remove(page)
        self._holders[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Count one holder less of each page of a table."""
        for page in reversed(pages):
            assert self._holders[page] > 0
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if page in self._index:
                self._idle.append(page)
            else:
                self._blank.append(page)

    def name(self, page: int, name: bytes) -> None:
        """Let a held page, which nobody writes to any more, be found. The first page of a name keeps it."""
        assert self._holders[page] > 0
        if page not in self._index and self._index.page(name) is None:
            self._index.add(page, name)

    def _forget_oldest(self) -> int:
        page = self._idle.pop_first()
        self._index.remove(page)
        return page


class _Line:
    """Pages in a line, as links in two arrays: any of them can leave it at once, and a page takes 8 bytes."""

    def __init__(self, num_pages: int) -> None:
        self._end = num_pages  # the link before the first and after the last
        self._next = array("i", range(num_pages + 1))
        self._previous = array("i", range(num_pages + 1))
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, page: int) -> None:
        last = self._previous[self._end]
        self._next[last] = self._previous[self._end] = page
        self._previous[page], self._next[page] = last, self._end
        self._length += 1

    def remove(self, page: int) -> None:
        before, after = self._previous[page], self._next[page]
        self._next[before], self._previous[after] = after, before
        self._length -= 1

    def pop_first(self) -> int:
        assert self._length
        page = self._next[self._end]
        self.remove(page)
        return page
