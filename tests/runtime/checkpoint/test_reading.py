"""Without a manifest, digests are computed on the spot, and other bytes have other digests."""

import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from runtime.checkpoint.folder import OpenFile
from runtime.checkpoint.reading import AT_ONCE_BYTES, ReadDigests
from runtime.checkpoint.tensors import StoredTensor

FILE = OpenFile(Path(__file__))  # which nothing here reads
PART = st.binary(min_size=8, max_size=8)


def digest(parts):
    """Return the digest of a tensor that is read in these parts."""
    stored = StoredTensor(FILE, "U8", (sum(map(len, parts)),), 0, sum(map(len, parts)))
    with ReadDigests(None, 2) as digests:
        for part in parts:
            digests.add("w", stored, memoryview(part))
    return digests.found["w"]


@given(st.lists(PART, min_size=2, max_size=4), st.integers(0, 63), st.data())
def test_a_changed_bit_and_another_order_are_other_weights(parts, bit, data):
    """Another order of parts changes the digest, and so does a changed bit in one part or in every part."""
    flipped = [(int.from_bytes(part, "big") ^ 1 << bit).to_bytes(8, "big") for part in parts]
    order = data.draw(st.permutations(parts))

    assert digest(parts) == digest(list(parts))
    assert digest(flipped) != digest(parts)
    assert (digest(order) == digest(parts)) == (order == parts)


def test_no_thread_is_needed_for_it():
    """A digest needs no thread, for which a busy machine would make the loader wait."""
    before = threading.active_count()
    stored = StoredTensor(FILE, "U8", (4 * AT_ONCE_BYTES,), 0, 4 * AT_ONCE_BYTES)
    with ReadDigests(None, 2) as digests:
        digests.add("w", stored, memoryview(bytes(2 * AT_ONCE_BYTES)))
        digests.add("w", stored, memoryview(bytes(2 * AT_ONCE_BYTES)))

        assert threading.active_count() == before
        assert digests.found["w"].startswith("gmac:")
