"""Pages against a slow reference: none has two owners that write, none that is held is given away, none is lost."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime.kv.index import NAME_BYTES
from runtime.kv.pages import Pages

NUM_PAGES = 7
PROMPTS = ["abcd", "abce", "abx", "y", "abcdz", "q"]  # a letter is a block, whose name is the prompt up to it


def names_of(prompt):
    return [prompt[: number + 1].encode().ljust(NAME_BYTES) for number in range(len(prompt))]


class PagesAgainstReference(RuleBasedStateMachine):
    """Prompts come, are computed block by block, and go; `self.holders` and `self.idle` say what pages must be."""

    def __init__(self):
        super().__init__()
        self.pages = Pages(NUM_PAGES)
        self.tables = []  # [prompt, pages, how many of them are computed]
        self.holders = dict.fromkeys(range(NUM_PAGES), 0)
        self.named = {}  # page -> name
        self.idle = []  # the least recently released first
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
        assert page not in self.named if is_blank else page == self.idle[0]
        self.no_longer_idle(page)
        self.named.pop(page, None)
        self.holders[page] = 1
        return page

    def no_longer_idle(self, page):
        self.idle = [other for other in self.idle if other != page]
        self.due = [other for other in self.due if other != page]

    @rule()
    def tell(self):
        """Each page that became idle is told once, in order, with its name."""
        page = self.due.pop(0) if self.due else None
        assert self.pages.take_due() == (None if page is None else (page, self.named[page]))

    @rule()
    def forget(self):
        """The page that is idle for longest is blank afterwards."""
        page, num_blank = self.idle[0] if self.idle else None, self.pages.num_blank
        assert self.pages.forget_oldest() == page
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
            self.pages.name(pages[number], name)
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
        pages.name(page, name)
    pages.release(table)
    pages.take()

    assert pages.find(names_of("abc")) == table[:2]


def test_a_page_that_nobody_can_find_is_not_held_twice():
    """Who holds a page without a name may be writing it."""
    pages = Pages(1)
    page = pages.take()
    with pytest.raises(AssertionError):
        pages.hold(page)
