"""The idle pages of a prefix cache, in the order of their last use, and which of them to give up next.

    idle      all of them, the one that is idle for longest first
    share     one tenant's, in the same order

`oldest` is the page to give up next: the one that is idle for longest, if nobody used it for FRESH_S; otherwise the
same of whoever has most named pages, held ones included. So a tenant who floods a cache with prompts drives out his own
blocks while he has more than others, and what a tenant left who went away goes all the same. If held pages did not
count, a tenant whose running requests hold most of a cache would also get half of what is left.

Lists are links in arrays, so that a page can leave at once and takes 32 bytes. Tenants with idle pages are in buckets
by the number of their named pages. Whoever has most is found by the highest number. No more than 1,414 numbers differ
in a cache of a million pages, because 1 + 2 + ... + 1,414 fill it.

Model: the janitor of the disk (`tiers/janitor.py`), which gives a day instead of minutes.
"""

import time
from array import array
from collections.abc import Callable

__all__ = ["FRESH_S", "IdlePages", "Links", "PageList"]

FRESH_S = 600.0  # assumed: on Mooncake's hour, 94 % of the blocks that are used again are used again within it
NOT_IN_LIST, END = -1, -2


class Links:
    """The neighbours of each page in a doubly linked list.

    Several lists can share one `Links`, since a page is in at most one list.
    """

    def __init__(self, num_pages: int) -> None:
        self.next = array("i", [NOT_IN_LIST]) * num_pages
        self.previous = array("i", [NOT_IN_LIST]) * num_pages

    def __contains__(self, page: int) -> bool:
        """Return whether a page is in any list."""
        return self.next[page] != NOT_IN_LIST


class PageList:
    """Pages in an order, as a doubly linked list."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._first = self._last = END
        self._length = 0

    def __len__(self) -> int:
        """Return the number of pages in the list."""
        return self._length

    def __contains__(self, page: int) -> bool:
        """Return whether a page is in any list that uses the same links."""
        return page in self._links

    def first(self) -> int | None:
        """Return the page that was added first, or None if the list is empty."""
        return self._first if self._length else None

    def append(self, page: int) -> None:
        """Add a page at the end."""
        links, last = self._links, self._last
        links.previous[page], links.next[page], self._last = last, END, page
        if last == END:
            self._first = page
        else:
            links.next[last] = page
        self._length += 1

    def remove(self, page: int) -> None:
        """Remove a page from anywhere in the list."""
        links = self._links
        before, after = links.previous[page], links.next[page]
        if before == END:
            self._first = after
        else:
            links.next[before] = after
        if after == END:
            self._last = before
        else:
            links.previous[after] = before
        links.next[page] = NOT_IN_LIST
        self._length -= 1


class IdlePages:
    """The idle pages of a cache. `tenant_of` has the tenant of each page with a hash."""

    def __init__(self, num_pages: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._idle, self._links = PageList(Links(num_pages)), Links(num_pages)
        self._shares: dict[int, PageList] = {}  # tenant -> its idle pages
        self._num_named: dict[int, int] = {}  # tenant -> its named pages, held ones included
        self._tenants: dict[int, dict[int, None]] = {}  # number of named pages -> tenants with so many and a share
        self.tenant_of = array("Q", [0]) * num_pages
        self._since = array("d", [0.0]) * num_pages

    def __len__(self) -> int:
        """Return the number of idle pages."""
        return len(self._idle)

    def own(self, page: int, tenant: int) -> None:
        """Record that a held page was published for this tenant: from now on it counts towards the tenant's share."""
        self.tenant_of[page] = tenant
        self._count(tenant, 1)

    def add(self, page: int) -> None:
        """Add a page that has just become idle, as the most recently used one."""
        tenant = self.tenant_of[page]
        self._since[page] = self._clock()
        self._idle.append(page)
        if tenant not in self._shares:
            self._shares[tenant] = PageList(self._links)
            self._enter_bucket(tenant)
        self._shares[tenant].append(page)

    def remove(self, page: int) -> None:
        """Remove a page that a request holds again."""
        tenant = self.tenant_of[page]
        self._idle.remove(page)
        self._shares[tenant].remove(page)
        if not len(self._shares[tenant]):
            self._leave_bucket(tenant)
            del self._shares[tenant]

    def forget(self, page: int) -> None:
        """Remove an idle page that loses its hash, and no longer count it for its tenant."""
        self.remove(page)
        self._count(self.tenant_of[page], -1)

    def oldest(self) -> int | None:
        """Return the page to give up next; None if none is idle.

        The page idle for longest goes first, if it has been idle for FRESH_S. Otherwise the oldest page of the tenant
        with most pages goes first.
        """
        page = self._idle.first()
        if page is None or self._clock() - self._since[page] >= FRESH_S:
            return page
        return self._shares[next(iter(self._tenants[max(self._tenants)]))].first()

    def _count(self, tenant: int, change: int) -> None:
        """Add `change` to the number of a tenant's pages with a hash."""
        has_share = tenant in self._shares
        if has_share:
            self._leave_bucket(tenant)
        self._num_named[tenant] = self._num_named.get(tenant, 0) + change
        if has_share:
            self._enter_bucket(tenant)
        if not self._num_named[tenant]:
            del self._num_named[tenant]

    def _enter_bucket(self, tenant: int) -> None:
        self._tenants.setdefault(self._num_named[tenant], {})[tenant] = None

    def _leave_bucket(self, tenant: int) -> None:
        number = self._num_named[tenant]
        del self._tenants[number][tenant]
        if not self._tenants[number]:
            del self._tenants[number]
