"""The tiers in memory hit what an LRU hits, and the disk what an LRU of blocks that were used twice hits."""

import pytest

from tests.runtime.hit_rates import MOST_APART, Cache, conversations, disk_hits, lru_hits, second_use_hits

CHAINS = list(conversations(600))
NUM_BLOCKS, LONGEST = sum(map(len, CHAINS)), max(map(len, CHAINS))


@pytest.mark.parametrize("size", [300, 500, 800])
def test_pages_and_host_memory_hit_what_an_lru_hits(size):
    """Host memory of this size has a cache of a quarter before it. A cache that large needs no host memory."""
    expected = lru_hits(CHAINS, size)
    found = Cache(LONGEST, size).hits(CHAINS), Cache(LONGEST, size // 4, size).hits(CHAINS)

    for hits in found:
        assert 100 * abs(hits - expected) / NUM_BLOCKS <= MOST_APART


def test_a_disk_hits_what_an_lru_of_blocks_that_were_used_twice_hits(tmp_path):
    """Host memory has room for six prompts, so it has lost many blocks by their second use. No more are written."""
    num_host, num_disk = 6 * LONGEST, 800
    expected = second_use_hits(CHAINS, num_host, num_disk)
    found = disk_hits(tmp_path, num_host, num_disk, range(len(CHAINS)), CHAINS)
    more_hits, more_written = (100 * (one - other) / NUM_BLOCKS for one, other in zip(found, expected, strict=True))

    assert abs(more_hits) <= MOST_APART
    assert more_written <= MOST_APART
