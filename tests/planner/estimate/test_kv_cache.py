"""The cache of prompts' KV: what a trace says of keeping blocks, and what a day's traffic asks of disks."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.estimate.kv_cache import CONVERSATION, kv_cache
from planner.spec.traffic import TrafficSpec
from tests.benchmarks.kv_reuse import reuse_of

DEEPSEEK = {"input_tokens": 608e9, "output_tokens": 168e9, "cache_hit_rate": 342 / 608}
prompts = st.lists(
    st.tuples(st.integers(1, 20), st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True)), min_size=1
).map(lambda steps: [(float(sum(gap for gap, _ in steps[: index + 1])), ids) for index, (_, ids) in enumerate(steps)])


def test_deepseeks_disks_give_278_gb_per_s():
    """342 G tokens of hits a day, 70,272 bytes each; without a profile the busiest hour is the mean."""
    cache = kv_cache(TrafficSpec(**DEEPSEEK), 70_272, 95.5, 116, CONVERSATION)

    assert cache.mean_read_bytes_per_s == cache.read_bytes_per_s == pytest.approx(278.2e9, rel=1e-3)
    assert cache.write_bytes_per_s == pytest.approx((608 - 342 + 168) * 1e9 * 70_272 / 86_400, rel=1e-5)
    assert cache.saved_nodes == pytest.approx(95.5 * 342 / 266, rel=1e-5)


def test_the_busiest_hour_asks_for_more():
    """An hour of twice the mean reads twice as much, and needs twice the capacity."""
    even, peaked = (
        kv_cache(TrafficSpec(**DEEPSEEK, profile=profile), 70_272, 95.5, 116, CONVERSATION)
        for profile in ([1.0] * 24, [2.0] + [22 / 23] * 23)
    )

    assert peaked.read_bytes_per_s == pytest.approx(2 * even.read_bytes_per_s, rel=1e-5)
    assert peaked.mean_read_bytes_per_s == even.mean_read_bytes_per_s
    assert [each.bytes for each in peaked.sizes] == pytest.approx([2 * each.bytes for each in even.sizes], rel=1e-5)


def test_a_trace_of_three_prompts_by_hand():
    """Block 1 is used at 0, 10 and 40, block 2 at 0 and 10, block 3 at 40: of six uses two come after 10 s."""
    short, long = reuse_of([(0.0, [1, 2]), (10.0, [1, 2]), (40.0, [1, 3])], [10, 60])

    assert (short.hit_rate, long.hit_rate) == (2 / 6, 3 / 6)
    assert short.kept_s == (10 + 10 + 10 + 10 + 0 + 0) / 6  # 2's second use keeps it for 10 of the 30 s that are left
    assert long.kept_s == (10 + 30 + 10 + 30 + 0 + 0) / 6


@given(prompts, st.integers(0, 60))
def test_hits_and_residents_are_those_of_a_cache_that_is_played(uses, keep_s):
    """A cache second by second, which drops what was not used for `keep_s`, finds as many and holds as much."""
    (found,) = reuse_of(uses, [keep_s])
    used, hits, held = {}, 0, 0
    at = dict(uses)
    for second in range(int(uses[-1][0]) + 1):
        for block in at.get(float(second), ()):
            hits += block in used and second - used[block] <= keep_s
            used[block] = second
        held += sum(second - last < keep_s for last in used.values()) if second < uses[-1][0] else 0
    num_uses = sum(len(blocks) for _, blocks in uses)

    assert found.hit_rate == pytest.approx(hits / num_uses)
    assert found.kept_s == pytest.approx(held / num_uses)


def test_longer_keeping_never_loses_hits():
    """The curve that ships rises, in hits and in what it takes."""
    for before, after in pairwise(CONVERSATION):
        assert (before.keep_s, before.hit_rate, before.kept_s) < (after.keep_s, after.hit_rate, after.kept_s)
        assert after.kept_s <= after.keep_s
