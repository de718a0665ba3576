"""A loading ends with the blocks before the first that is missing, in whatever order its threads come back."""

import time

import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.kv.tiers.loading import ABSENT, LATE, Loading, TierCounters


@given(st.lists(st.sampled_from([None, ABSENT, "damaged"]), max_size=6), st.data())
def test_any_order_of_blocks_ends_alike(outcomes, data):
    """The reason counted is that of the first block that is missing; what came behind it is dropped."""
    counters = TierCounters()
    loading = Loading(len(outcomes), time.monotonic() + 600, counters)
    numbers = [loading.next_block() for _ in outcomes]
    for number in data.draw(st.permutations(numbers)):
        if outcomes[number] is None:
            loading.add_block(number, torch.full((2,), number, dtype=torch.uint8))
        else:
            loading.record_miss(number, outcomes[number])
    whole = next((number for number, outcome in enumerate(outcomes) if outcome), len(outcomes))

    assert loading.is_done()
    assert [int(block[0]) for block in loading.blocks()] == list(range(whole))
    assert counters.hits == whole
    assert counters.read_bytes == 2 * whole
    assert dict(counters.misses) == ({} if whole == len(outcomes) else {outcomes[whole]: 1})


def test_what_comes_after_the_end_is_not_kept():
    """Neither a block nor a miss of a thread that took too long."""
    counters = TierCounters()
    loading = Loading(2, time.monotonic() - 1, counters)
    assert loading.is_done()
    loading.add_block(0, torch.zeros(1))
    loading.record_miss(1, ABSENT)
    loading.end(ABSENT)

    assert loading.next_block() is None
    assert loading.blocks() == []
    assert (counters.hits, counters.misses) == (0, {LATE: 1})
