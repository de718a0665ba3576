"""Define distinct types for bytes, operations, seconds and rates, so that a type checker catches mixed-up units.

In a nanosecond, 3.35 TB/s move 3,350 bytes, and 1,979 TFLOPS do 1,979,000 operations. The types cost nothing at run
time. A type checker refuses `transfer_time(flops, bandwidth)`.
"""

from typing import NewType

Seconds = NewType("Seconds", float)
Bytes = NewType("Bytes", float)
Flops = NewType("Flops", float)
BytesPerSecond = NewType("BytesPerSecond", float)
FlopsPerSecond = NewType("FlopsPerSecond", float)

SHARPNESS = 2.5  # exponent of the soft maximum. Assumed: values from 2 to 3 fit the tables of kernels.json equally well


def transfer_time(num_bytes: Bytes, bandwidth: BytesPerSecond) -> Seconds:
    """Return the time to move `num_bytes` at `bandwidth`."""
    return Seconds(num_bytes / bandwidth)


def compute_time(flops: Flops, rate: FlopsPerSecond) -> Seconds:
    """Return the time to compute `flops` operations at `rate`."""
    return Seconds(flops / rate)


def soft_maximum(one: Seconds, other: Seconds) -> Seconds:
    """Return the time of a kernel whose two parts, such as reading weights and computing, overlap: (a^p + b^p)^(1/p).

    The result is slightly more than the longer of the two times, most so if they are equal.
    """
    longer, shorter = (one, other) if one > other else (other, one)
    if shorter <= 0:
        return longer
    return Seconds(longer * (1 + (shorter / longer) ** SHARPNESS) ** (1 / SHARPNESS))
