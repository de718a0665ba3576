"""Pages against a slow reference: none has two owners that write, none that is held is given away, none is lost."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime.kv.idle import FRESH_S
from runtime.kv.index import HASH_BYTES
from runtime.kv.pages import Pages

NUM_PAGES = 7
PROMPTS = ["abcd", "abce", "abx", "y", "abcdz", "q"]  # a letter is a block, whose name is the prompt up to it


def tenant_of(name):
    return 1 if name.startswith((b"a", b"q")) else 2


def names_of(prompt):
    return [prompt[: number + 1].encode().ljust(HASH_BYTES) for number in range(len(prompt))]


class PagesAgainstReference(RuleBasedStateMachine):
    """Prompts come, are computed block by block, and go; `self.holders` and `self.idle` say what pages must be."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.pages = Pages(NUM_PAGES, lambda: self.now)
        self.tables = []  # [prompt, pages, how many of them are computed]
        self.holders = dict.fromkeys(range(NUM_PAGES), 0)
        self.named = {}  # page -> name
        self.idle = []  # the least recently released first
        self.since = {}  # page -> when it became idle
        self.due = []  # those of them that were not told yet, the same

    @rule(prompt=st.sampled_from(PROMPTS))
    def come(self, prompt):
        """Let a prompt share what is there and take the rest, if there is room."""
        found = self.pages.find(names_of(prompt)[:-1])
        pages_of = {name: page for page, name in self.named.items()}
        expected = []
        while len(expected) < len(prompt) - 1 and names_of(prompt)[len(expected)] in pages_of:
            expected.append(pages_of[names_of(prompt)[len(expected)]])
        assert found == expected
        assert self.pages.num_idle(found) == sum(page in self.idle for page in found)
        num_new = len(prompt) - len(found)
        if num_new > self.pages.num_free - self.pages.num_idle(found):
            return
        for page in found:
            self.pages.hold(page)
            self.holders[page] += 1
            self.no_longer_idle(page)
        self.tables.append([prompt, found + [self.take() for _ in range(num_new)], len(found)])

    def take(self):
        is_blank = any(not self.holders[page] and page not in self.named for page in range(NUM_PAGES))
        page = self.pages.take()
        assert self.holders[page] == 0
        assert page not in self.named if is_blank else page in self.next_to_go()
        self.no_longer_idle(page)
        self.named.pop(page, None)
        self.holders[page] = 1
        return page

    def next_to_go(self):
        """The page that is idle for longest, or of the one with most named pages if that is fresh; none if none is."""
        if not self.idle or self.now - self.since[self.idle[0]] >= FRESH_S:
            return self.idle[:1]
        tenants = [tenant_of(self.named[page]) for page in self.idle]
        numbers = Counter(map(tenant_of, self.named.values()))
        most = max(numbers[tenant] for tenant in tenants)
        return [self.idle[tenants.index(tenant)] for tenant in set(tenants) if numbers[tenant] == most]

    @rule(seconds=st.sampled_from([1.0, FRESH_S / 2, FRESH_S]))
    def pass_time(self, seconds):
        """Let time pass, so that pages become stale."""
        self.now += seconds

    def no_longer_idle(self, page):
        self.idle = [other for other in self.idle if other != page]
        self.due = [other for other in self.due if other != page]

    @rule()
    def tell(self):
        """Each page that became idle is told once, in order, with its name."""
        page = self.due.pop(0) if self.due else None
        name = self.named.get(page)
        assert self.pages.take_due() == (None if page is None else (page, name, tenant_of(name)))

    @rule()
    def forget(self):
        """A page that is next to go is blank afterwards."""
        expected, num_blank = self.next_to_go(), self.pages.num_blank
        page = self.pages.forget_oldest()
        assert page in expected if expected else page is None
        assert self.pages.num_blank == num_blank + (page is not None)
        if page is not None:
            self.no_longer_idle(page)
            del self.named[page]

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def compute(self, data):
        """Let a prompt have one more block computed, and found from then on unless an equal one is."""
        table = data.draw(st.sampled_from(self.tables))
        prompt, pages, number = table
        if number < len(prompt):
            assert self.holders[pages[number]] == 1  # nobody else reads what is written now
            table[2] += 1
            name = names_of(prompt)[number]
            self.pages.publish(pages[number], name, tenant_of(name))
            if name not in self.named.values():
                self.named[pages[number]] = name

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def go(self, data):
        """End, abort or preempt a prompt: pages that others hold stay theirs."""
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        are_shared = [self.holders[page] > 1 for page in table[1]]
        assert self.pages.num_shared(table[1]) == [*are_shared, False].index(False)
        num_free = self.pages.num_free
        self.pages.release(table[1])
        for page in reversed(table[1]):
            self.holders[page] -= 1
            if not self.holders[page] and page in self.named:
                self.idle.append(page)
                self.since[page] = self.now
                self.due.append(page)

        assert self.pages.num_free - num_free == are_shared.count(False)

    @invariant()
    def every_page_is_somewhere(self):
        held = sum(1 for num_holders in self.holders.values() if num_holders)
        assert held + self.pages.num_free == NUM_PAGES
        for page, num_holders in self.holders.items():
            assert num_holders == sum(page in pages for _, pages, _ in self.tables)

    @invariant()
    def blocks_are_found_until_their_pages_are_needed(self):
        for page, name in self.named.items():
            assert self.pages.find([name]) == [page]


TestPagesAgainstReference = PagesAgainstReference.TestCase
TestPagesAgainstReference.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_chain_is_forgotten_from_its_end():
    """Its first blocks are those that other prompts are likeliest to have."""
    pages = Pages(3)
    table = [pages.take() for _ in range(3)]
    for page, name in zip(table, names_of("abc"), strict=True):
        pages.publish(page, name)
    pages.release(table)
    pages.take()

    assert pages.find(names_of("abc")) == table[:2]


def flood(pages, tenant, names):
    """Let prompts of a block each come and go."""
    for name in names:
        page = pages.take()
        pages.publish(page, name, tenant)
        pages.release([page])


def test_a_tenant_who_floods_the_cache_drives_out_only_what_is_above_an_equal_share():
    """A small tenant keeps all of its 3 pages of 12, and one with more than the flood keeps half of what is left."""
    pages = Pages(12)
    small, large, many = (
        [f"{letter}{number}".encode().ljust(HASH_BYTES) for number in range(amount)]
        for letter, amount in (("s", 3), ("l", 9), ("f", 50))
    )
    for tenant, names in enumerate((small, large, many)):
        flood(pages, tenant, names)

    assert [sum(len(pages.find([name])) for name in names) for names in (small, large)] == [3, 4]


def test_pages_that_running_requests_hold_count_in_a_tenants_share():
    """A tenant whose requests hold half of a cache drives out no idle block of another who has less."""
    pages = Pages(12)
    small, held, many = (
        [f"{letter}{number}".encode().ljust(HASH_BYTES) for number in range(amount)]
        for letter, amount in (("s", 5), ("h", 6), ("f", 50))
    )
    flood(pages, 1, small)
    for name in held:
        pages.publish(pages.take(), name, 2)
    flood(pages, 2, many)

    assert all(pages.find([name]) for name in small)


def test_what_a_tenant_left_who_went_away_goes():
    """Pages that nobody used for ten minutes go first, even if another tenant has more."""
    now = [0.0]
    pages = Pages(12, lambda: now[0])
    gone, new = ([f"{letter}{number}".encode().ljust(HASH_BYTES) for number in range(9)] for letter in "gn")
    flood(pages, 1, gone[:3])
    now[0] = FRESH_S
    flood(pages, 2, [*gone[3:], *new])

    assert not any(pages.find([name]) for name in gone[:3])


def test_a_page_that_nobody_can_find_is_not_held_twice():
    """Who holds a page without a name may be writing it."""
    pages = Pages(1)
    page = pages.take()
    with pytest.raises(AssertionError):
        pages.hold(page)
