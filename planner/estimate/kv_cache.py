"""Size the prefix cache of KV on disks: its reads, writes and capacity, and the nodes it saves.

    reads     = hit tokens per second x KV bytes per token
    writes    = computed tokens per second, of prompts and answers, x KV bytes per token
    capacity  = prompt tokens per second x mean time that KV stays x KV bytes per token
    saved     = nodes needed without a cache x hit rate

A block stays for `keep` after its last use. A trace shows the ages at which blocks are used again, and so the hit rate
and the mean stay for each `keep`. Ages do not depend on the amount of traffic, as long as each user returns after the
same time. So the curve comes from the trace, and the capacity from the spec's traffic. An LRU cache behaves like that
(Che's approximation).

Worked example, DeepSeek's day: 342e9 tokens of hits x 70,272 B / 86,400 s = 278 GB/s of reads on average.

It cannot tell whether the spec's hit rate is reached: the trace covers one hour, without hits on the next morning.
Answers' KV is written too, and counts as a hit if the next prompt repeats the answer.

Sources: H. Che, Y. Tung, Z. Wang, Hierarchical web caching systems, IEEE JSAC 20(7), 2002; the trace is Mooncake's
conversation trace, kvcache-ai/Mooncake FAST25-release/traces @3b5a594, Apache-2.0: 12,031 requests in 59 minutes,
288,500 blocks of 512 tokens, 36.6 % of them seen before. `python -m tests.benchmarks.kv_reuse` reads it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.facts.day import DAY_S
from planner.facts.part import Part, Rounded6
from planner.spec.traffic import TrafficSpec

__all__ = ["CONVERSATION", "CacheSize", "KvCache", "Reuse", "kv_cache"]


@dataclass(frozen=True)
class Reuse:
    """The effect, in a trace, of keeping blocks for `keep_s` after their last use."""

    keep_s: float
    hit_rate: float  # share of all blocks that were there
    kept_s: float  # mean time that a block stays until its next use or its eviction


CONVERSATION = (
    Reuse(60, 0.1033, 55.8),
    Reuse(300, 0.2877, 231.7),
    Reuse(600, 0.3433, 406.1),
    Reuse(1800, 0.3635, 895.9),
)


class CacheSize(Part):
    """The size and value of a cache that keeps blocks for `keep_s`, in the busiest hour."""

    keep_s: float
    hit_rate: float
    bytes: Rounded6
    bytes_per_node: Rounded6
    saved_nodes: Rounded6  # on average over the day


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


def kv_cache(
    traffic: TrafficSpec, kv_bytes_per_token: float, mean_nodes: float, most_nodes: int, curve: Sequence[Reuse]
) -> KvCache:
    """Return the traffic, size and value of the prefix cache. Nodes are those that compute prompts."""
    bytes_per_token_a_day = kv_bytes_per_token / DAY_S
    busiest = traffic.peak_per_s("decode") / (traffic.output_tokens / DAY_S)
    hits, computed = traffic.input_tokens * traffic.cache_hit_rate, traffic.tokens_of("prefill")
    without_hits = mean_nodes / (1 - traffic.cache_hit_rate)
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
            for each in curve
        ),
    )
