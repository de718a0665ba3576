"""The time in which prefill reads cached KV of prompts from storage of its node.

    bytes of a step     cached tokens per computed one x KV bytes per token x tokens that the node computes

Ranks read ahead while they compute, so a step takes the longer of the two times. A prompt waits for its own read before
its first step. All ranks of a node share one rate.
"""

from planner.estimate.throughput.dimensions import Bytes, BytesPerSecond, Seconds, transfer_time
from planner.estimate.throughput.machine import GIGA
from planner.estimate.throughput.point import OperatingPoint
from planner.facts.quantities import BITS_PER_BYTE

__all__ = ["bytes_per_computed_token", "cache_read_time"]


def cache_read_time(point: OperatingPoint, kv_bytes_per_token: float, computed_tokens: float) -> Seconds:
    """Return the time to read the cached KV that belongs to `computed_tokens` of one node's prompts."""
    num_bytes = Bytes(computed_tokens * bytes_per_computed_token(point, kv_bytes_per_token))
    if not num_bytes:
        return Seconds(0.0)
    return transfer_time(num_bytes, BytesPerSecond(point.cache_read_gbps * GIGA / BITS_PER_BYTE))


def bytes_per_computed_token(point: OperatingPoint, kv_bytes_per_token: float) -> Bytes:
    """Return the cached bytes read per computed token."""
    hits = point.cache_hit_rate
    return Bytes(hits / (1 - hits) * kv_bytes_per_token)
