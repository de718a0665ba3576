"""Size the prefix cache of KV on disks: its reads, writes and capacity, and the prefill nodes that it saves.

    reads     = hit tokens per second x KV bytes per token
    writes    = computed tokens per second, of prompts and answers, x KV bytes per token
    capacity  = prompt tokens per second x mean time that KV stays x KV bytes per token
    saved     = nodes needed without a cache x hit rate
    kept      the reverse: from the spec's memory and disks, the time that blocks stay there, and so the hit rate
    disks     their room for a day, and what a day reads and writes, at the spec's prices

A block stays for `keep` after its last use. A trace of requests shows after how long blocks are used again
(`planner/facts/reuse.py`), and so the hit rate and the mean stay for each `keep`. The curve of hit rate over `keep`
comes from the trace, and the capacity from the spec's traffic. An LRU cache behaves like that (Che's approximation).

Worked example, DeepSeek's day: 342e9 tokens of hits x 70,272 B / 86,400 s = 278 GB/s of reads on average.

The runtime writes a block to a disk when the block is used for the second time, so a disk is hit from the third use on.
Each point of the curve has both hit rates: for all blocks, as memory keeps them, and for blocks used twice, as disks
keep them. Prompts are assumed to go where their blocks are, so that memories and disks of all nodes count as one.

This module cannot tell whether the spec's hit rate will be reached: the published trace covers one hour, without hits
on the next morning. KV of answers is written too, and counts as a hit if the next prompt repeats the answer.

Source: H. Che, Y. Tung, Z. Wang, Hierarchical web caching systems, IEEE JSAC 20(7), 2002.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from planner.facts.day import DAY_S, MINUTE_S
from planner.facts.part import Maybe, Part, Rounded6
from planner.facts.reuse import CONVERSATION, ReuseCurve
from planner.spec.cost import DiskPriceSpec
from planner.spec.kv_cache import KvCacheSpec
from planner.spec.traffic import TrafficSpec

MONTH_DAYS = 365 / 12
TB = 1e12
MAX_SIZES = 100  # of caches that are compared; a curve of reuse has twelve


class CacheSize(Part):
    """The size of a cache that keeps blocks for `keep_s` after their last use, and the prefill nodes that it saves.

    The size is that of the busiest hour.
    """

    keep_s: float
    hit_rate: Rounded6
    bytes: Rounded6
    bytes_per_node: Rounded6
    saved_nodes: Rounded6  # on average over the day


class KeptKv(Part):
    """How long the spec's memory and disks keep KV in the busiest hour, and the hit rate that the trace has with them.

    Times are at most the longest `keep_s` of the trace's curve.
    """

    memory_bytes: Rounded6  # of all nodes
    memory_minutes: Rounded6  # how long a block stays in memory after its last use
    disk_bytes: Maybe[Rounded6] = None
    disk_minutes: Maybe[Rounded6] = None  # how long a block stays on disk after its last use
    hit_rate: Rounded6  # of memory and disk together
    saved_nodes: Rounded6  # on average over the day
    memory_hit_rate: Maybe[Rounded6] = None  # without the disk
    memory_saved_nodes: Maybe[Rounded6] = None  # without the disk
    written_bytes_per_day: Maybe[Rounded6] = None  # to the disk of a node that is on all day, or to a shared disk
    drive_writes_per_day: Maybe[Rounded6] = None  # how often a day's writes fill the disk, as in data sheets
    disk_usd_per_day: Maybe[Rounded6] = None  # all disks at the spec's prices: room, reads and writes
    lost_share: Maybe[Rounded6] = None  # most prompt tokens computed again as units turn off, over all computed ones


class KvCache(Part):
    """The prefix cache that a day of the spec's traffic needs. Rates are sums over nodes in the busiest hour."""

    hit_rate: float  # `traffic.cache_hit_rate` of the spec
    trace: str  # whose reuse `sizes` and `kept` have
    mean_read_bytes_per_s: Rounded6  # over the day
    read_bytes_per_s: Rounded6
    read_bytes_per_s_per_node: Rounded6
    write_bytes_per_s: Rounded6
    write_bytes_per_s_per_node: Rounded6
    day_bytes: Rounded6  # all KV that a day computes; a cache of this size drops nothing
    saved_nodes: Rounded6  # at the spec's hit rate
    nodes: int  # that read in the busiest hour
    sizes: Annotated[tuple[CacheSize, ...], Field(max_length=MAX_SIZES)]
    kept: Maybe[KeptKv] = None  # None if the spec keeps no KV


@dataclass(frozen=True)
class PromptNodes:
    """Counts of the nodes that compute prompts: how many are on, and how often one is turned on."""

    mean: float  # nodes that are on, averaged over the day
    most: int  # nodes that are on in the busiest hour
    ranks: int  # on each node
    started: int = 0  # how many nodes are turned on in a day, each time counted


@dataclass(frozen=True)
class Disks:
    """The place of the spec's KV disk, in each node or shared, and what it costs."""

    is_shared: bool = False  # one for all nodes, instead of one in each
    price: DiskPriceSpec | None = None


IN_EACH_NODE = Disks()


def kv_cache(
    traffic: TrafficSpec,
    spec: KvCacheSpec,
    kv_bytes_per_token: float,
    nodes: PromptNodes,
    reuse: ReuseCurve = CONVERSATION,
    disks: Disks = IN_EACH_NODE,
) -> KvCache:
    """Return the reads, writes and sizes of the prefix cache for a day of `traffic`, and the nodes that a cache saves.

    `nodes` counts the nodes that compute prompts. `reuse` says how often blocks are used again in a trace like the
    traffic.
    """
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
        trace=traffic.trace or "Mooncake's conversations",
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
            for each in reuse.points
        ),
        kept=_kept_kv(traffic, spec, kv_bytes_per_token, nodes, reuse, disks),
    )


def kept_hit_rate(reuse: ReuseCurve, memory_s: float, disk_s: float) -> float:
    """Return the trace's hit rate with a memory that holds blocks for `memory_s` on average, and disks for `disk_s`.

    A block that is both in memory and on disk counts once.
    """
    in_memory = reuse.interpolate(memory_s, "kept_s", "hit_rate")
    keep_s = reuse.interpolate(memory_s, "kept_s", "keep_s")
    on_disk = reuse.interpolate(disk_s, "twice_kept_s", "twice_hit_rate")
    return in_memory + max(on_disk - reuse.interpolate(keep_s, "keep_s", "twice_hit_rate"), 0.0)


def _kept_kv(
    traffic: TrafficSpec,
    spec: KvCacheSpec,
    kv_bytes_per_token: float,
    nodes: PromptNodes,
    reuse: ReuseCurve,
    disks: Disks,
) -> KeptKv | None:
    """Return how long the memory and the disk of `spec` keep KV, and the hit rate; None if `spec` has no memory."""
    if spec.memory is None:
        return None
    day_bytes = traffic.input_tokens * kv_bytes_per_token
    bytes_per_s = traffic.peak_per_s("decode") / traffic.output_tokens * day_bytes
    memory_bytes = nodes.most * nodes.ranks * spec.memory
    disk_bytes = 0 if spec.disk is None else spec.disk.size * (1 if disks.is_shared else nodes.most)
    memory_s, disk_s = memory_bytes / bytes_per_s, disk_bytes / bytes_per_s
    hit_rate, memory_hit_rate = (kept_hit_rate(reuse, memory_s, each) for each in (disk_s, 0))
    without_hits = nodes.mean / (1 - traffic.cache_hit_rate)
    lost_tokens = nodes.started * nodes.ranks * spec.memory / kv_bytes_per_token
    kept = KeptKv(
        memory_bytes=memory_bytes,
        memory_minutes=reuse.interpolate(memory_s, "kept_s", "keep_s") / MINUTE_S,
        hit_rate=hit_rate,
        saved_nodes=without_hits * hit_rate,
        lost_share=lost_tokens / traffic.tokens_of("prefill") if nodes.started else None,
    )
    if spec.disk is None:
        return kept
    all_written, all_read = reuse.twice_share * day_bytes, (hit_rate - memory_hit_rate) * day_bytes
    written = all_written / (1 if disks.is_shared else nodes.mean)
    disk = {
        "disk_bytes": disk_bytes,
        "memory_hit_rate": memory_hit_rate,
        "memory_saved_nodes": without_hits * memory_hit_rate,
        "disk_minutes": reuse.interpolate(disk_s, "twice_kept_s", "keep_s") / MINUTE_S,
        "written_bytes_per_day": written,
        "drive_writes_per_day": written / spec.disk.size,
        "disk_usd_per_day": disks.price and _disk_usd(disks.price, disk_bytes, all_read, all_written),
    }
    return KeptKv(**dict(kept) | disk)


def _disk_usd(price: DiskPriceSpec, size: float, read: float, written: float) -> float:
    """Return the dollars that the disk costs in a day: for storing `size` bytes, and for bytes `read` and `written`."""
    moved = read * price.usd_per_tb_read + written * price.usd_per_tb_written
    return (size * price.usd_per_tb_month / MONTH_DAYS + moved) / TB
