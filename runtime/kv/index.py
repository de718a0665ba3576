"""The hashes of a cache's pages, and recently used hashes: tables in arrays, since a host may hold millions.

`HashIndex` finds the page of a hash:

    hashes    [num_pages x HASH_BYTES], the hash of each page
    heads     [num_buckets], the first page of a bucket's chain, or NO_PAGE
    links     [num_pages], the page after this one in its bucket's chain: NO_PAGE after the last; NO_HASH without hash

A dict of bytes objects takes 178 bytes a page, this 40 to 44. Buckets go by Python's hash of bytes, which has a secret
of the process in it, so no prompt can be made whose blocks all share a bucket.

`SeenHashes` tells whether a block was used before, also when no page has it any more. It keeps 8 bytes of a hash, in
the one place that they choose, and a later hash replaces it there. So it forgets some hashes early. That matters
little: a hash stands for all blocks before it as well, so the last one that it knows tells of the whole beginning.
"""

from array import array
from collections.abc import Iterable, Sequence

import numpy as np

__all__ = ["HASH_BYTES", "HashIndex", "SeenHashes"]

HASH_BYTES = 32  # a sha256
NO_PAGE, NO_HASH = -1, -2
SEEN_BYTES = 8  # bytes kept of a hash; two hashes that begin alike cost a needless write


class HashIndex:
    """Finds the page of a block hash. A page has at most one hash, and a hash at most one page."""

    def __init__(self, num_pages: int) -> None:
        num_buckets = 1 << (num_pages - 1).bit_length() if num_pages else 1
        self._hashes = bytearray(num_pages * HASH_BYTES)
        self._heads = array("i", [NO_PAGE]) * num_buckets
        self._links = array("i", [NO_HASH]) * num_pages
        self._mask = num_buckets - 1

    def __contains__(self, page: int) -> bool:
        """Return whether a page has a hash."""
        return self._links[page] != NO_HASH

    def find(self, wanted: Iterable[bytes]) -> list[int]:
        """Return the pages of these hashes, up to the first hash that no page has."""
        hashes, heads, links, mask = self._hashes, self._heads, self._links, self._mask
        found = []
        for block_hash in wanted:
            page = heads[hash(block_hash) & mask]
            while page != NO_PAGE and hashes[page * HASH_BYTES : (page + 1) * HASH_BYTES] != block_hash:
                page = links[page]
            if page == NO_PAGE:
                break
            found.append(page)
        return found

    def hash_of(self, page: int) -> bytes:
        """Return the hash of a page that has one."""
        assert page in self
        return bytes(self._hashes[page * HASH_BYTES : (page + 1) * HASH_BYTES])

    def add(self, page: int, block_hash: bytes) -> None:
        """Give a page that has no hash a hash that no other page has."""
        assert page not in self
        assert len(block_hash) == HASH_BYTES
        bucket = hash(block_hash) & self._mask
        self._hashes[page * HASH_BYTES : (page + 1) * HASH_BYTES] = block_hash
        self._links[page], self._heads[bucket] = self._heads[bucket], page

    def remove(self, page: int) -> None:
        """Remove a page's hash."""
        bucket = hash(self.hash_of(page)) & self._mask
        after = self._links[page]
        if self._heads[bucket] == page:
            self._heads[bucket] = after
        else:
            before = self._heads[bucket]
            while self._links[before] != page:
                before = self._links[before]
            self._links[before] = after
        self._links[page] = NO_HASH


class SeenHashes:
    """Remembers the hashes of recently used blocks, at most `num_hashes` of them. Some are forgotten early."""

    def __init__(self, num_hashes: int) -> None:
        self._places = np.zeros(max(num_hashes, 1), np.uint64)  # the system allocates memory as places are written

    def see(self, chain: Sequence[bytes]) -> int:
        """Remember all hashes of a chain. Return the number of its blocks up to the last one that was seen before."""
        hashes = np.frombuffer(b"".join(block_hash[:SEEN_BYTES] for block_hash in chain), np.uint64)
        places = hashes % len(self._places)
        known = np.flatnonzero(self._places[places] == hashes)
        self._places[places] = hashes
        return int(known[-1]) + 1 if len(known) else 0
