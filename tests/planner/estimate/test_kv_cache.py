"""The cache of prompts' KV: what a trace says of keeping blocks, and what a day's traffic asks of disks."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.estimate.kv_cache import Disks, PromptNodes, kept_hit_rate, kv_cache
from planner.facts.reuse import CONVERSATION, measure_reuse, reuse_in
from planner.facts.trace import NotATrace
from planner.spec.cost import DiskPriceSpec
from planner.spec.kv_cache import KvCacheSpec
from planner.spec.traffic import TrafficSpec

NODES = PromptNodes(mean=95.5, most=116, ranks=8)
KEPT = KvCacheSpec(memory="48GiB", disk={"path": "/kv", "size": "4TB"})
DEEPSEEK = {"input_tokens": 608e9, "output_tokens": 168e9, "cache_hit_rate": 342 / 608}
ASKED = '{"timestamp": %d, "input_length": 512, "output_length": 1, "hash_ids": %s}'
prompts = st.lists(
    st.tuples(st.integers(1, 20), st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True)), min_size=1
).map(lambda steps: [(float(sum(gap for gap, _ in steps[: index + 1])), ids) for index, (_, ids) in enumerate(steps)])


def test_deepseeks_disks_give_278_gb_per_s():
    """342 G tokens of hits a day, 70,272 bytes each; without a profile the busiest hour is the mean."""
    cache = kv_cache(TrafficSpec(**DEEPSEEK), KvCacheSpec(), 70_272, NODES)

    assert cache.mean_read_bytes_per_s == cache.read_bytes_per_s == pytest.approx(278.2e9, rel=1e-3)
    assert cache.write_bytes_per_s == pytest.approx((608 - 342 + 168) * 1e9 * 70_272 / 86_400, rel=1e-5)
    assert cache.saved_nodes == pytest.approx(95.5 * 342 / 266, rel=1e-5)


def test_the_busiest_hour_asks_for_more():
    """An hour of twice the mean reads twice as much, and needs twice the capacity."""
    even, peaked = (
        kv_cache(TrafficSpec(**DEEPSEEK, profile=profile), KvCacheSpec(), 70_272, NODES)
        for profile in ([1.0] * 24, [2.0] + [22 / 23] * 23)
    )

    assert peaked.read_bytes_per_s == pytest.approx(2 * even.read_bytes_per_s, rel=1e-5)
    assert peaked.mean_read_bytes_per_s == even.mean_read_bytes_per_s
    assert [each.bytes for each in peaked.sizes] == pytest.approx([2 * each.bytes for each in even.sizes], rel=1e-5)


def test_a_trace_of_three_prompts_by_hand():
    """Block 1 is used at 0, 10 and 40, block 2 at 0 and 10, block 3 at 40: of six uses two come after 10 s."""
    curve = measure_reuse([(0.0, [1, 2]), (10.0, [1, 2]), (40.0, [1, 3])], [10, 60])
    short, long = curve.points

    assert curve.twice_share == 2 / 6
    assert (short.hit_rate, long.hit_rate) == (2 / 6, 3 / 6)
    assert (short.twice_hit_rate, long.twice_hit_rate) == (0, 1 / 6)  # 1's third use, 30 s after its second
    assert (short.twice_kept_s, long.twice_kept_s) == ((10 + 10) / 6, (30 + 30) / 6)
    assert short.kept_s == (10 + 10 + 10 + 10 + 0 + 0) / 6  # 2's second use keeps it for 10 of the 30 s that are left
    assert long.kept_s == (10 + 30 + 10 + 30 + 0 + 0) / 6


@given(prompts, st.integers(0, 60))
def test_hits_and_residents_equal_those_of_a_simulated_cache(uses, keep_s):
    """A cache second by second, which drops blocks unused for `keep_s`, has as many hits and as many blocks."""
    (found,) = measure_reuse(uses, [keep_s]).points
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
    for before, after in pairwise(CONVERSATION.points):
        assert (before.keep_s, before.hit_rate, before.kept_s) < (after.keep_s, after.hit_rate, after.kept_s)
        assert after.kept_s <= after.keep_s


def test_a_given_size_keeps_deepseeks_day_for_minutes():
    """116 nodes of 8 x 48 GiB hold 97 s of 608 G tokens a day; a disk is written to with the second use of a block."""
    cache = kv_cache(TrafficSpec(**DEEPSEEK), KEPT, 70_272, NODES)
    assert cache.kept is not None
    kept = cache.kept

    seconds = 116 * 8 * 48 * 2**30 / (608e9 * 70_272 / 86_400)
    assert 60 < kept.memory_minutes * 60 < 120
    assert kept.hit_rate == pytest.approx(
        kept_hit_rate(CONVERSATION, seconds, 116 * 4e12 / (608e9 * 70_272 / 86_400)), rel=1e-5
    )
    assert kept.saved_nodes == pytest.approx(95.5 / (1 - 342 / 608) * kept.hit_rate, rel=1e-5)
    assert kept.drive_writes_per_day == pytest.approx(CONVERSATION.twice_share * 608e9 * 70_272 / 95.5 / 4e12, rel=1e-5)
    assert kept.lost_share is None


def test_all_nodes_write_to_one_claim():
    """It holds what its size is, however many nodes there are, and gets all that they write."""
    own, shared = (
        kv_cache(TrafficSpec(**DEEPSEEK), KEPT, 70_272, NODES, disks=Disks(is_shared=is_shared)).kept
        for is_shared in (False, True)
    )

    assert (own.disk_bytes, shared.disk_bytes) == (116 * 4e12, 4e12)
    assert shared.written_bytes_per_day == pytest.approx(95.5 * own.written_bytes_per_day, rel=1e-5)
    assert shared.hit_rate < own.hit_rate


def test_units_that_start_again_have_lost_their_memory():
    """At most all of it is computed again: 8 ranks of 64 GiB on each of 10 nodes are 78 M tokens."""
    nodes = PromptNodes(mean=95.5, most=116, ranks=8, started=10)
    kept = kv_cache(TrafficSpec(**DEEPSEEK), KvCacheSpec(memory="64GiB"), 70_272, nodes).kept

    assert kept.lost_share == pytest.approx(10 * 8 * 64 * 2**30 / 70_272 / 266e9, rel=1e-5)
    assert kept.disk_bytes is None


@given(st.floats(0, 4000), st.floats(0, 4000), st.floats(0, 1000))
def test_more_room_never_hits_less(memory_s, disk_s, more_s):
    """Whether it is memory's or the disk's, and no room at all hits nothing."""
    hit_rate = kept_hit_rate(CONVERSATION, memory_s, disk_s)

    assert kept_hit_rate(CONVERSATION, 0, 0) == 0
    assert hit_rate <= kept_hit_rate(CONVERSATION, memory_s + more_s, disk_s) + 1e-9
    assert hit_rate <= kept_hit_rate(CONVERSATION, memory_s, disk_s + more_s) + 1e-9


def test_disks_cost_their_room_and_what_is_moved():
    """116 disks of 4 TB for a day, at $3 a month; what memory lacks is read, and each second use is written."""
    price = DiskPriceSpec(usd_per_tb_month=3, usd_per_tb_written=0.5, usd_per_tb_read=0.25)
    kept = kv_cache(TrafficSpec(**DEEPSEEK), KEPT, 70_272, NODES, disks=Disks(price=price)).kept

    day_tb = 608e9 * 70_272 / 1e12
    moved = 0.25 * (kept.hit_rate - kept.memory_hit_rate) * day_tb + 0.5 * CONVERSATION.twice_share * day_tb
    assert kept.disk_usd_per_day == pytest.approx(116 * 4 * 3 * 12 / 365 + moved, rel=1e-4)


def test_a_trace_of_ones_own_says_what_the_sizes_hit():
    """Where every prompt comes again within a minute, little memory finds nearly all."""
    own = measure_reuse([(10.0 * number, [number % 3]) for number in range(100)], [10, 60, 600])
    ours, theirs = (
        kv_cache(TrafficSpec(**DEEPSEEK), KEPT, 70_272, NODES, curve).kept.hit_rate for curve in (own, CONVERSATION)
    )

    assert ours == pytest.approx(0.97)
    assert theirs < 0.4


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["[1]"], "line 1 is no request"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46,1,2"], "its prompts have no hash_ids"),
        ([ASKED % (0, "[1]"), ASKED % (9000, "[1]")], "its prompts come within 9 s, which says nothing of later ones"),
        ([ASKED % (0, "[1]"), ASKED % (9000, "[1e999]")], "line 2 is no request"),
        ([f"{'[' * 200_000}"], "line 1 is no request"),
    ],
)
def test_a_trace_without_content_or_time_says_nothing(lines, reason):
    """Its error says why."""
    with pytest.raises(NotATrace, match=reason):
        reuse_in("\n".join(lines).encode())
