"""The time in which prefill reads the KV of prompts that a cache has, from disks or other storage of its node.

    bytes of a step     tokens of hits for each computed one x KV of a token x GPUs of the node

Ranks read ahead while they compute, so that a step takes the longer of the two. A prompt waits for its own read before
its first step. All ranks of a node share one rate.
"""

from planner.estimate.throughput.dimensions import Bytes, BytesPerSecond, Seconds, moving
from planner.estimate.throughput.machine import GIGA
from planner.estimate.throughput.point import OperatingPoint
from planner.facts.quantities import BITS_PER_BYTE

__all__ = ["bytes_per_computed_token", "reading"]


def reading(point: OperatingPoint, kv_bytes_per_token: float, computed_tokens: float) -> Seconds:
    """Return the time to read the KV that `computed_tokens` of one node's prompts come with."""
    num_bytes = Bytes(computed_tokens * bytes_per_computed_token(point, kv_bytes_per_token))
    if not num_bytes:
        return Seconds(0.0)
    return moving(num_bytes, BytesPerSecond(point.cache_read_gbps * GIGA / BITS_PER_BYTE))


def bytes_per_computed_token(point: OperatingPoint, kv_bytes_per_token: float) -> Bytes:
    """Return the bytes that are read for each token that no cache has."""
    hits = point.cache_hit_rate
    return Bytes(hits / (1 - hits) * kv_bytes_per_token)
