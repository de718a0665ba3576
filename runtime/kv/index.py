"""The names of a cache's pages, and recently used names: tables in arrays, since a host may hold millions.

`NameIndex` finds the page of a name:

    names     [num_pages x NAME_BYTES], the name of each page
    heads     [num_buckets], the first page of a bucket's chain, or NO_PAGE
    links     [num_pages], the page after this one in its bucket's chain: NO_PAGE after the last; NO_NAME if unnamed

A dict of bytes objects takes 178 bytes a page, this 40 to 44. Buckets go by Python's hash of bytes, which has a secret
of the process in it, so no prompt can be made whose blocks all share a bucket.

`SeenNames` tells whether a block was used before, also when no page has it any more. It keeps 8 bytes of a name, in the
one place that they choose, and a later name replaces it there. So it forgets some names early. That matters little: a
name stands for all blocks before it as well, so the last one that it knows tells of the whole beginning.
"""

from array import array
from collections.abc import Iterable, Sequence

import numpy as np

__all__ = ["NAME_BYTES", "NameIndex", "SeenNames"]

NAME_BYTES = 32  # a sha256
NO_PAGE, NO_NAME = -1, -2
SEEN_BYTES = 8  # bytes kept of a name; two names that begin alike cost a needless write


class NameIndex:
    """Finds the page with a name. A page has one name at most, and a name one page."""

    def __init__(self, num_pages: int) -> None:
        num_buckets = 1 << (num_pages - 1).bit_length() if num_pages else 1
        self._names = bytearray(num_pages * NAME_BYTES)
        self._heads = array("i", [NO_PAGE]) * num_buckets
        self._links = array("i", [NO_NAME]) * num_pages
        self._mask = num_buckets - 1

    def __contains__(self, page: int) -> bool:
        """Return whether a page has a name."""
        return self._links[page] != NO_NAME

    def find(self, wanted: Iterable[bytes]) -> list[int]:
        """Return the pages with these names, up to the first name that no page has."""
        names, heads, links, mask = self._names, self._heads, self._links, self._mask
        found = []
        for name in wanted:
            page = heads[hash(name) & mask]
            while page != NO_PAGE and names[page * NAME_BYTES : (page + 1) * NAME_BYTES] != name:
                page = links[page]
            if page == NO_PAGE:
                break
            found.append(page)
        return found

    def name(self, page: int) -> bytes:
        """Return the name of a page that has one."""
        assert page in self
        return bytes(self._names[page * NAME_BYTES : (page + 1) * NAME_BYTES])

    def add(self, page: int, name: bytes) -> None:
        """Name a page that has no name yet, by a name that no other page has."""
        assert page not in self
        assert len(name) == NAME_BYTES
        bucket = hash(name) & self._mask
        self._names[page * NAME_BYTES : (page + 1) * NAME_BYTES] = name
        self._links[page], self._heads[bucket] = self._heads[bucket], page

    def remove(self, page: int) -> None:
        """Take a page's name away."""
        bucket = hash(self.name(page)) & self._mask
        after = self._links[page]
        if self._heads[bucket] == page:
            self._heads[bucket] = after
        else:
            before = self._heads[bucket]
            while self._links[before] != page:
                before = self._links[before]
            self._links[before] = after
        self._links[page] = NO_NAME


class SeenNames:
    """Remembers the names of recently used blocks, at most `num_names` of them; some are forgotten early."""

    def __init__(self, num_names: int) -> None:
        self._places = np.zeros(max(num_names, 1), np.uint64)  # the system allocates memory as places are written

    def see(self, chain: Sequence[bytes]) -> int:
        """Remember all names of a chain. Return how many of them, from the first on, were used before."""
        names = np.frombuffer(b"".join(name[:SEEN_BYTES] for name in chain), np.uint64)
        places = names % len(self._places)
        known = np.flatnonzero(self._places[places] == names)
        self._places[places] = names
        return int(known[-1]) + 1 if len(known) else 0
