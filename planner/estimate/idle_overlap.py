"""A warning about an overlap that is predicted to cost more than it hides.

Overlap computes one micro-batch while the other's tokens travel. Each micro-batch reads the weights again, fills tiles
of matmuls less, and leaves processors to the exchange. Where there is much to compute and little to wait for, or the
batch is small, that is more than the waiting which it hides.

SGLang measures the same: two-batch overlap gains nothing on H20 until a batch has 64 or 128 requests.
Source: github.com/sgl-project/sglang pull 9660.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.estimate.performance import PhaseOutlook
from planner.estimate.throughput.predict import saturated_rate
from planner.problems.finding import Finding
from planner.problems.fix import HERE, Fix
from planner.spec.check import ResolvedSpec

__all__ = ["idle_overlaps"]

LEAST_GAIN = 1.05  # assumed: two overlaps of one layout are not predicted more precisely than that


def idle_overlaps(spec: ResolvedSpec, outlooks: Sequence[PhaseOutlook]) -> tuple[Finding, ...]:
    """Return a warning for each phase that is predicted to be faster without its overlap."""
    return tuple(spec.locate(each) for outlook in outlooks for each in _idle(outlook))


def _idle(outlook: PhaseOutlook) -> Iterator[Finding]:
    case = outlook.case
    if case is None or case.overlap == "none":
        return
    overlapped, alone = saturated_rate(case), saturated_rate(replace(case, overlap="none"))
    if alone >= LEAST_GAIN * overlapped:
        rates = f"{overlapped:,.0f} instead of {alone:,.0f} tokens/s per GPU at full use"
        rule = f"W137 is predicted to be slower than overlap: none ({rates})"
        reason = "two half batches compute less efficiently than one batch, and the overlap hides less time than that"
        fix = Fix("write overlap: none", ({HERE: "none"},))
        yield Finding(f"{outlook.phase}.overlap", case.overlap, rule, reason, fix)
