"""The tiers in memory hit what an LRU of their size hits."""

import pytest

from tests.runtime.hit_rates import MOST_APART, Cache, conversations, lru_hits

CHAINS = list(conversations(600))
NUM_BLOCKS, LONGEST = sum(map(len, CHAINS)), max(map(len, CHAINS))


@pytest.mark.parametrize("size", [300, 500, 800])
def test_pages_and_host_memory_hit_what_an_lru_hits(size):
    """Host memory of this size has a cache of a quarter before it. A cache that large needs no host memory."""
    expected = lru_hits(CHAINS, size)
    found = Cache(LONGEST, size).hits(CHAINS), Cache(LONGEST, size // 4, size).hits(CHAINS)

    for hits in found:
        assert 100 * abs(hits - expected) / NUM_BLOCKS <= MOST_APART
