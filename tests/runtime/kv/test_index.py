"""The index of pages by name against a dictionary, with names that share buckets."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.kv.index import NAME_BYTES, NameIndex

NUM_PAGES = 5
names = st.integers(0, 11).map(lambda number: number.to_bytes(NAME_BYTES, "little"))


@given(st.lists(st.tuples(st.integers(0, NUM_PAGES - 1), names), max_size=60))
def test_a_page_is_found_by_its_name_alone(steps):
    """Whatever names come and go, in eight buckets: each finds its page, and no other name finds one."""
    index, reference = NameIndex(NUM_PAGES), {}
    for page, name in steps:
        if page in index:
            index.remove(page)
            del reference[page]
        elif name not in reference.values():
            index.add(page, name)
            reference[page] = name

        assert [page in index for page in range(NUM_PAGES)] == [page in reference for page in range(NUM_PAGES)]
        assert {page: index.name(page) for page in reference} == reference
        for number in range(12):
            each = number.to_bytes(NAME_BYTES, "little")
            assert index.find([each]) == [page for page, name in reference.items() if name == each]
        in_order = list(reference.values())
        assert index.find([*in_order, bytes(NAME_BYTES - 1) + b"x", *in_order]) == list(reference)
