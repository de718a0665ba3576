"""Size the prefix cache of KV on disks: its reads, writes and capacity, and the nodes it saves.

    reads     = hit tokens per second x KV bytes per token
    writes    = computed tokens per second, of prompts and answers, x KV bytes per token
    capacity  = prompt tokens per second x mean time that KV stays x KV bytes per token
    saved     = nodes needed without a cache x hit rate
    kept      the other way round: the time that blocks stay in the spec's memory and disks, and the hit rate there

A block stays for `keep` after its last use. A trace shows the ages at which blocks are used again, and so the hit rate
and the mean stay for each `keep`. Ages do not depend on the amount of traffic, as long as each user returns after the
same time. So the curve comes from the trace, and the capacity from the spec's traffic. An LRU cache behaves like that
(Che's approximation).

Worked example, DeepSeek's day: 342e9 tokens of hits x 70,272 B / 86,400 s = 278 GB/s of reads on average.

The runtime writes a block to a disk when it is used for the second time, so a disk is hit from the third use on. Each
point of the curve has both: all blocks, as memory keeps them, and those that were used twice, as disks do. Prompts are
taken to go where their blocks are, so that memories and disks of all nodes are one.

It cannot tell whether the spec's hit rate is reached: the trace covers one hour, without hits on the next morning.
Answers' KV is written too, and counts as a hit if the next prompt repeats the answer.

Sources: H. Che, Y. Tung, Z. Wang, Hierarchical web caching systems, IEEE JSAC 20(7), 2002; the trace is Mooncake's
conversation trace, kvcache-ai/Mooncake FAST25-release/traces @3b5a594, Apache-2.0: 12,031 requests in 59 minutes,
288,500 blocks of 512 tokens, 36.6 % of them seen before. `python -m tests.benchmarks.kv_reuse` reads it again.
"""

from dataclasses import dataclass
from itertools import pairwise

from planner.facts.day import DAY_S, MINUTE_S
from planner.facts.part import Maybe, Part, Rounded6
from planner.spec.kv_cache import KvCacheSpec
from planner.spec.traffic import TrafficSpec

__all__ = ["CONVERSATION", "CacheSize", "KeptKv", "KvCache", "PromptNodes", "Reuse", "kept_hit_rate", "kv_cache"]


@dataclass(frozen=True)
class Reuse:
    """The effect, in a trace, of keeping blocks for `keep_s` after their last use.

    Times are means over all uses of blocks, until the next use or the eviction.
    """

    keep_s: float
    hit_rate: float  # share of all blocks that were there
    kept_s: float  # that a block stays
    twice_hit_rate: float  # that were there and had been used twice
    twice_kept_s: float  # that a block stays once it was used twice


CONVERSATION = (
    Reuse(10, 0.0428, 9.6, 0.0424, 3.3),
    Reuse(60, 0.1033, 55.8, 0.0775, 18.6),
    Reuse(120, 0.1916, 105.4, 0.1242, 34.0),
    Reuse(300, 0.2877, 231.7, 0.1789, 68.4),
    Reuse(600, 0.3433, 406.1, 0.207, 110.2),
    Reuse(1800, 0.3635, 895.9, 0.2131, 216.0),
)
WRITTEN_SHARE = 0.153  # of the trace's blocks: second uses, which are written to a disk


class CacheSize(Part):
    """The size and value of a cache that keeps blocks for `keep_s`, in the busiest hour."""

    keep_s: float
    hit_rate: float
    bytes: Rounded6
    bytes_per_node: Rounded6
    saved_nodes: Rounded6  # on average over the day


class KeptKv(Part):
    """What the spec's memory and disks keep in the busiest hour, and what they give with the trace's conversations.

    Times end at the curve's end.
    """

    memory_bytes: Rounded6  # of all nodes
    memory_minutes: Rounded6  # for so long a block stays after its last use
    disk_bytes: Maybe[Rounded6] = None
    disk_minutes: Maybe[Rounded6] = None
    hit_rate: Rounded6
    saved_nodes: Rounded6  # on average over the day
    memory_hit_rate: Maybe[Rounded6] = None  # without the disk
    memory_saved_nodes: Maybe[Rounded6] = None
    written_bytes_per_day: Maybe[Rounded6] = None  # to the disk of a node that is on all day, or to the claim
    drive_writes_per_day: Maybe[Rounded6] = None  # how often that fills the disk, as data sheets give endurance
    lost_share: Maybe[Rounded6] = None  # at most, of the day's computed prompt tokens: what memories lose in units off


class KvCache(Part):
    """The prefix cache that a day of the spec's traffic needs. Rates are sums over nodes in the busiest hour."""

    hit_rate: float  # the spec's
    mean_read_bytes_per_s: Rounded6  # over the day
    read_bytes_per_s: Rounded6
    read_bytes_per_s_per_node: Rounded6
    write_bytes_per_s: Rounded6
    write_bytes_per_s_per_node: Rounded6
    day_bytes: Rounded6  # all KV that a day computes; a cache of this size drops nothing
    saved_nodes: Rounded6  # at the spec's hit rate
    nodes: int  # reading in the busiest hour
    sizes: tuple[CacheSize, ...]
    kept: Maybe[KeptKv] = None  # None if the spec keeps no KV


@dataclass(frozen=True)
class PromptNodes:
    """The nodes that compute prompts."""

    mean: float  # that are on, over the day
    most: int  # in the busiest hour
    ranks: int  # on each
    started: int = 0  # a day, each time one is turned on


def kv_cache(
    traffic: TrafficSpec, spec: KvCacheSpec, kv_bytes_per_token: float, nodes: PromptNodes, *, is_shared: bool = False
) -> KvCache:
    """Return the traffic, size and value of the prefix cache. The disk of `spec` is each node's, or all share it."""
    most_nodes = nodes.most
    bytes_per_token_a_day = kv_bytes_per_token / DAY_S
    busiest = traffic.peak_per_s("decode") / (traffic.output_tokens / DAY_S)
    hits, computed = traffic.input_tokens * traffic.cache_hit_rate, traffic.tokens_of("prefill")
    without_hits = nodes.mean / (1 - traffic.cache_hit_rate)
    written = computed + traffic.output_tokens
    reads, writes = (busiest * each * bytes_per_token_a_day for each in (hits, written))
    bytes_of_a_second = busiest * traffic.input_tokens * bytes_per_token_a_day
    return KvCache(
        hit_rate=traffic.cache_hit_rate,
        mean_read_bytes_per_s=hits * bytes_per_token_a_day,
        read_bytes_per_s=reads,
        read_bytes_per_s_per_node=reads / most_nodes,
        write_bytes_per_s=writes,
        write_bytes_per_s_per_node=writes / most_nodes,
        day_bytes=written * kv_bytes_per_token,
        saved_nodes=without_hits * traffic.cache_hit_rate,
        nodes=most_nodes,
        sizes=tuple(
            CacheSize(
                keep_s=each.keep_s,
                hit_rate=each.hit_rate,
                bytes=bytes_of_a_second * each.kept_s,
                bytes_per_node=bytes_of_a_second * each.kept_s / most_nodes,
                saved_nodes=without_hits * each.hit_rate,
            )
            for each in CONVERSATION
        ),
        kept=_kept(traffic, spec, kv_bytes_per_token, nodes, is_shared=is_shared),
    )


def kept_hit_rate(memory_s: float, disk_s: float) -> float:
    """Return the trace's hit rate where memory holds the blocks of so many seconds, and disks behind it so many.

    What both have is counted once.
    """
    in_memory = _follow(memory_s, "kept_s", "hit_rate")
    keep_s = _follow(memory_s, "kept_s", "keep_s")
    on_disk = _follow(disk_s, "twice_kept_s", "twice_hit_rate")
    return in_memory + max(on_disk - _follow(keep_s, "keep_s", "twice_hit_rate"), 0.0)


def _kept(
    traffic: TrafficSpec, spec: KvCacheSpec, kv_bytes_per_token: float, nodes: PromptNodes, *, is_shared: bool
) -> KeptKv | None:
    """Return what the memory and the disk of `spec` keep; None if it has none."""
    if spec.memory is None:
        return None
    day_bytes = traffic.input_tokens * kv_bytes_per_token
    bytes_per_s = traffic.peak_per_s("decode") / traffic.output_tokens * day_bytes
    memory_bytes = nodes.most * nodes.ranks * spec.memory
    disk_bytes = 0 if spec.disk is None else spec.disk.size * (1 if is_shared else nodes.most)
    memory_s, disk_s = memory_bytes / bytes_per_s, disk_bytes / bytes_per_s
    hit_rate, memory_hit_rate = kept_hit_rate(memory_s, disk_s), kept_hit_rate(memory_s, 0)
    without_hits = nodes.mean / (1 - traffic.cache_hit_rate)
    lost_tokens = nodes.started * nodes.ranks * spec.memory / kv_bytes_per_token
    kept = KeptKv(
        memory_bytes=memory_bytes,
        memory_minutes=_follow(memory_s, "kept_s", "keep_s") / MINUTE_S,
        hit_rate=hit_rate,
        saved_nodes=without_hits * hit_rate,
        lost_share=lost_tokens / traffic.tokens_of("prefill") if nodes.started else None,
    )
    if spec.disk is None:
        return kept
    written = WRITTEN_SHARE * day_bytes / (1 if is_shared else nodes.mean)
    disk = {
        "disk_bytes": disk_bytes,
        "memory_hit_rate": memory_hit_rate,
        "memory_saved_nodes": without_hits * memory_hit_rate,
        "disk_minutes": _follow(disk_s, "twice_kept_s", "keep_s") / MINUTE_S,
        "written_bytes_per_day": written,
        "drive_writes_per_day": written / spec.disk.size,
    }
    return KeptKv(**dict(kept) | disk)


def _follow(value: float, given: str, wanted: str) -> float:
    """Return the curve's `wanted` where its `given` has this value: straight between points, constant at the end."""
    points = [(0.0, 0.0), *((getattr(each, given), getattr(each, wanted)) for each in CONVERSATION)]
    for (x0, y0), (x1, y1) in pairwise(points):
        if value <= x1:
            return float(y0 + (y1 - y0) * (value - x0) / (x1 - x0))
    return float(points[-1][1])
