"""The gateway's index remembers the beginnings of prompts at each rank."""

from collections import Counter, OrderedDict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.gateway.ranks.prefix_index import FRESH_NS, NO_HASHES, TENANT_SHIFT, WAYS, PrefixIndex, hash_blocks
from runtime.gateway.tenants.keys import make_salt
from runtime.kv.idle import FRESH_S

IDS = list(range(300))


def colliding_names(*numbers):
    """Return names that share a bucket where they are equal modulo the number of buckets."""
    return np.array(numbers, dtype=np.uint64)


def test_a_name_stands_for_a_whole_prefix():
    """A block's name depends on all tokens up to its end."""
    names, other_begin, other_end = (
        hash_blocks("", ids).tolist() for ids in (IDS, [7, *IDS[1:]], [*IDS[:191], 7, *IDS[192:]])
    )

    assert len(names) == 4
    assert set(names).isdisjoint(other_begin)
    assert (names[:2], set(names[2:]) & set(other_end)) == (other_end[:2], set())


@given(st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.sampled_from([None, "x", "y"])), unique=True))
def test_no_two_salts_share_a_name(callers):
    """Prompts with different keys or salts share no name."""
    named = [hash_blocks(make_salt(*caller), IDS).tolist() for caller in callers]

    assert len({name for names in named for name in names}) == 4 * len(callers)


def test_what_a_rank_has_ends_where_its_prompts_differ():
    """Each rank has its own prefixes, and its successor has none of them."""
    index = PrefixIndex(64)
    first, second = index.add_rank(), index.add_rank()
    index.use(first, colliding_names(1, 2, 3, 4))
    index.use(second, colliding_names(1, 2, 9))
    before = [index.find(colliding_names(1, 2, 3, 5), [first, second]), index.find(NO_HASHES, [first, second])]
    index.remove_rank(first)

    assert before == [[3, 2], [0, 0]]
    assert index.add_rank() == first
    assert index.find(colliding_names(1, 2, 3, 5), [first, second]) == [0, 2]


def test_one_bucket_keeps_the_names_that_were_used_last():
    """A full bucket keeps the first names of a chain, because they count as used last."""
    index = PrefixIndex(WAYS)
    place = index.add_rank()
    index.use(place, colliding_names(*range(1, WAYS + 4)))
    held = index.find(colliding_names(*range(1, WAYS + 4)), [place])
    index.use(place, colliding_names(1, 2, 50))

    assert held == [WAYS]
    assert index.find(colliding_names(1, 2, 50), [place]) == [3]
    assert index.find(colliding_names(*range(1, WAYS + 4)), [place]) == [WAYS - 1]


def names_of(tenant, *numbers):
    return colliding_names(*(tenant << int(TENANT_SHIFT) | number for number in numbers))


def test_a_tenant_who_floods_a_rank_makes_the_gateway_forget_his_own_prompts():
    """However much one tenant sends, the other's names stay while they are less than half of each bucket."""
    index = PrefixIndex(16 * WAYS)
    place, kept = index.add_rank(), names_of(1, *range(16 * (WAYS // 2 - 1)))
    index.use(place, kept)
    for flood in range(30):
        index.use(place, names_of(2, *range(1000 * (flood + 1), 1000 * (flood + 1) + 100)))

    assert index.find(kept, [place]) == [len(kept)]


def test_what_the_index_knows_of_a_tenant_who_went_away_goes():
    """Names that nobody used for as long as ranks keep pages fresh go first, even if another tenant has more."""
    now = [0]
    index = PrefixIndex(WAYS, clock_ns=lambda: now[0])
    place = index.add_rank()
    index.use(place, names_of(1, 1, 2, 3))
    now[0] = FRESH_NS + WAYS
    index.use(place, names_of(2, *range(1, WAYS + 1)))

    assert index.find(names_of(2, *range(1, WAYS + 1)), [place]) == [WAYS]
    assert FRESH_NS == FRESH_S * 10**9


class OneBucket:
    """A slow index of one bucket."""

    def __init__(self):
        self.used = {}  # name -> time

    def use(self, names, now):
        """Note the use of those that are here, and then take in the others one by one."""
        times = dict(zip(names, range(now, now + len(names)), strict=True))
        new = [name for name in names if name not in self.used]
        self.used |= {name: time for name, time in times.items() if name not in new}
        for name in new:
            if len(self.used) == WAYS:
                del self.used[self.next_to_go(now + len(names) - 1)]
            self.used[name] = times[name]

    def next_to_go(self, now):
        oldest_first = sorted(self.used, key=self.used.get)
        if self.used[oldest_first[0]] <= now - FRESH_NS:
            return oldest_first[0]
        numbers = Counter(name >> int(TENANT_SHIFT) for name in self.used)
        return next(name for name in oldest_first if numbers[name >> int(TENANT_SHIFT)] == max(numbers.values()))


USES = st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 4), st.sampled_from([1, FRESH_NS // 3, FRESH_NS]))


@settings(max_examples=60)
@given(st.lists(USES, max_size=40))
def test_a_full_bucket_gives_up_what_a_slow_reference_gives_up(uses):
    """A bucket holds exactly the names that a reference holds which looks at each."""
    now = [1]
    index, reference = PrefixIndex(WAYS, clock_ns=lambda: now[0]), OneBucket()
    place = index.add_rank()
    every = [names_of(tenant, number) for tenant in range(1, 5) for number in range(1, 13)]
    for tenant, first, length, wait in uses:
        names = names_of(tenant, *range(first, first + length))
        index.use(place, names)
        reference.use(names[::-1].tolist(), now[0])
        now[0] += length - 1 + wait

    assert {int(name[0]) for name in every if index.find(name, [place]) == [1]} == reference.used.keys()


def test_blocks_are_forgotten_by_name_and_by_age():
    """A given-up prompt's own blocks are forgotten, and a lost block takes all older ones along."""
    index = PrefixIndex(64)
    place = index.add_rank()
    index.use(place, colliding_names(1, 2))
    index.use(place, colliding_names(1, 3))
    index.use(place, colliding_names(4))
    index.forget(place, colliding_names(3))
    after_name = index.find(colliding_names(1, 3), [place])
    index.forget_unused_since(place, index.last_use(place, colliding_names(1)), colliding_names(1))

    assert after_name == [1]
    assert [index.find(colliding_names(each), [place]) for each in (1, 2, 4)] == [[0], [0], [1]]
    assert index.last_use(place, colliding_names(2)) == 0


def test_memory_is_bounded_however_many_ranks_there_are():
    """With many ranks each gets fewer pages, and known ranks stay known."""
    index = PrefixIndex(num_blocks=10_000, max_bytes=2**16)
    places = [index.add_rank() for _ in range(40)]
    index.use(places[0], colliding_names(1, 2, 3))

    assert len(set(places)) == 40
    assert index.num_bytes <= 2**16
    assert index.find(colliding_names(1, 2, 3), [places[0], places[39]]) == [3, 0]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 12)), max_size=60))
def test_a_large_index_finds_what_a_list_of_each_ranks_blocks_finds(prompts):
    """A large index finds exactly what a list of each rank's blocks finds."""
    index, lists = PrefixIndex(4096), [OrderedDict() for _ in range(3)]
    places = [index.add_rank() for _ in range(3)]
    for rank, conversation, num_blocks in prompts:
        names = colliding_names(*(1 + conversation * 100_003 + 7919 * block for block in range(num_blocks)))
        found = index.find(names, places)
        expected = [
            next((number for number, name in enumerate(names.tolist()) if name not in held), num_blocks)
            for held in lists
        ]

        assert found == expected

        index.use(places[rank], names)
        lists[rank].update(dict.fromkeys(names.tolist()))
