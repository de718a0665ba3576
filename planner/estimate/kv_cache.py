"""The cache of prompts' KV on disks, sized: what it reads and writes, how large it is, and what a size is worth.

    reads     = tokens of hits a second x KV of a token
    writes    = tokens a second that are computed, of prompts and of answers, x KV of a token, written once
    capacity  = prompt tokens a second x the mean time that a token's KV stays x KV of a token
    saved     = nodes that would compute all prompts x hit rate

A block stays for `keep` after its last use. How many hits that gives, and how long a block then stays on average, is
read off a trace: the ages at which blocks were used again. Ages do not depend on how much traffic there is, as long as
each user comes back after the same time; so the curve is of the trace, and the capacity is of the spec's traffic. A
cache that drops what was not used for longest behaves like that (Che's approximation).

Worked example, DeepSeek's day: 342e9 tokens of hits x 70,272 B / 86,400 s = 278 GB/s of reads on average.

Whether the spec's own hit rate is reached it cannot tell: the trace has one hour, and hits of the next morning are not
in it. Answers' KV is written too, and the trace's hits on it count where the next prompt brings it.

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
    """What keeping blocks for `keep_s` after their last use gives, in a trace."""

    keep_s: float
    hit_rate: float  # share of all blocks that were there
    kept_s: float  # that a block stays until its next use or its end, on average over all uses


CONVERSATION = (
    Reuse(60, 0.1033, 55.8),
    Reuse(300, 0.2877, 231.7),
    Reuse(600, 0.3433, 406.1),
    Reuse(1800, 0.3635, 895.9),
)


class CacheSize(Part):
    """A cache that keeps blocks for so long, in the busiest hours."""

    keep_s: float
    hit_rate: float
    bytes: Rounded6
    bytes_per_node: Rounded6
    saved_nodes: Rounded6  # on average over the day


class KvCache(Part):
    """What a day of the spec's traffic asks of the cache. Rates are of all nodes together, in the busiest entry."""

    hit_rate: float  # the spec's
    mean_read_bytes_per_s: Rounded6  # over the day
    read_bytes_per_s: Rounded6
    read_bytes_per_s_per_node: Rounded6
    write_bytes_per_s: Rounded6
    write_bytes_per_s_per_node: Rounded6
    day_bytes: Rounded6  # of all that a day computes: the size at which nothing of it is dropped
    saved_nodes: Rounded6  # at the spec's hit rate
    nodes: int  # that read, in the busiest entry
    sizes: tuple[CacheSize, ...]


def kv_cache(
    traffic: TrafficSpec, kv_bytes_per_token: float, mean_nodes: float, most_nodes: int, curve: Sequence[Reuse]
) -> KvCache:
    """Return what the cache does and takes; nodes are those that compute prompts."""
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
