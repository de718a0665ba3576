"""Bytes, operations and seconds as types of their own, so that no rate is taken for another.

A bandwidth of 3.35 TB/s moves 3,350 bytes in a nanosecond, and 1,979 TFLOPS do 1,979,000 operations in it. The types
cost nothing at run time. A type checker refuses `moving(flops, bandwidth)`.
"""

from typing import NewType

__all__ = ["Bytes", "BytesPerSecond", "Flops", "FlopsPerSecond", "Seconds", "computing", "moving", "soft_maximum"]

Seconds = NewType("Seconds", float)
Bytes = NewType("Bytes", float)
Flops = NewType("Flops", float)
BytesPerSecond = NewType("BytesPerSecond", float)
FlopsPerSecond = NewType("FlopsPerSecond", float)

SHARPNESS = 2.5  # of the soft maximum: assumed; with 2 to 3, constants fit the tables of kernels.json equally well


def moving(num_bytes: Bytes, bandwidth: BytesPerSecond) -> Seconds:
    """Return the time to move `num_bytes`."""
    return Seconds(num_bytes / bandwidth)


def computing(flops: Flops, rate: FlopsPerSecond) -> Seconds:
    """Return the time to compute `flops`."""
    return Seconds(flops / rate)


def soft_maximum(one: Seconds, other: Seconds) -> Seconds:
    """Return the time of a kernel that reads its weights while it computes.

    It is a little more than the longer of the two, most where they are equal: (a^p + b^p)^(1/p).
    """
    longer, shorter = (one, other) if one > other else (other, one)
    if shorter <= 0:
        return longer
    return Seconds(longer * (1 + (shorter / longer) ** SHARPNESS) ** (1 / SHARPNESS))
