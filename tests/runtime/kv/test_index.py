"""The index of pages by name, and the names that were seen, against dictionaries, with names that share places."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.kv.index import HASH_BYTES, HashIndex, SeenHashes

NUM_PAGES = 5
names = st.integers(0, 11).map(lambda number: number.to_bytes(HASH_BYTES, "little"))


@given(st.lists(st.tuples(st.integers(0, NUM_PAGES - 1), names), max_size=60))
def test_a_page_is_found_by_its_name_alone(steps):
    """Whatever names come and go, in eight buckets: each finds its page, and no other name finds one."""
    index, reference = HashIndex(NUM_PAGES), {}
    for page, name in steps:
        if page in index:
            index.remove(page)
            del reference[page]
        elif name not in reference.values():
            index.add(page, name)
            reference[page] = name

        assert [page in index for page in range(NUM_PAGES)] == [page in reference for page in range(NUM_PAGES)]
        assert {page: index.hash_of(page) for page in reference} == reference
        for number in range(12):
            each = number.to_bytes(HASH_BYTES, "little")
            assert index.find([each]) == [page for page, name in reference.items() if name == each]
        in_order = list(reference.values())
        assert index.find([*in_order, bytes(HASH_BYTES - 1) + b"x", *in_order]) == list(reference)


@given(st.integers(0, 5), st.lists(st.lists(names, unique=True, max_size=6), max_size=20))
def test_the_last_name_that_was_seen_tells_of_all_before_it(num_names, chains):
    """Each name has one place among few, and the last chain that wrote there is remembered."""
    seen, places = SeenHashes(num_names), {0: 0}  # a place begins as the name 0 would leave it
    for chain in chains:
        numbers = [int.from_bytes(name, "little") for name in chain]
        known = [count for count, each in enumerate(numbers, 1) if places.get(each % max(num_names, 1)) == each]

        assert seen.see(chain) == max(known, default=0)
        places.update((each % max(num_names, 1), each) for each in numbers)
