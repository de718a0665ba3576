"""Warnings about rates of a user's own GPU that no GPU has: PFLOPS written as TFLOPS, or FP8 below BF16.

They stay warnings, because a GPU may be unlike all that the catalog has.
"""

from collections.abc import Iterator

from planner.facts.catalog import GPUS, Gpu
from planner.problems.errors import Violation
from planner.problems.fix import HERE, Fix, nearest
from planner.spec.check import ResolvedSpec

__all__ = ["implausible_rates"]

RATES = ("fp8_tflops", "bf16_tflops")
MARGIN = 10.0  # times the fastest, or as many times below the slowest of the catalog: assumed
THOUSAND = 1000.0  # TFLOPS of a PFLOPS, and GFLOPS of a TFLOPS


def implausible_rates(spec: ResolvedSpec) -> Iterator[Violation]:
    """Yield rates of an own GPU that are far from all of the catalog, and FP8 that is slower than BF16."""
    if isinstance(spec.cluster.gpu, str):
        return
    far = [violation for field in RATES if (violation := _far(spec.gpu, field))]
    yield from far or _slower_in_fp8(spec.gpu)


def _far(gpu: Gpu, field: str) -> Violation | None:
    rate, known = getattr(gpu, field), sorted(each for known in GPUS.values() if (each := getattr(known, field)))
    if rate is None or known[0] / MARGIN <= rate <= known[-1] * MARGIN:
        return None
    rule = f"W117 is far from the {known[0]:,g} to {known[-1]:,g} TFLOPS of the GPUs that tidemill knows"
    meant = rate * THOUSAND if rate < known[0] else rate / THOUSAND
    is_likely = known[0] / MARGIN <= meant <= known[-1] * MARGIN
    unit = "PFLOPS" if rate < known[0] else "GFLOPS"
    reason = f"rates are in TFLOPS, and this may be in {unit}"
    plain = int(meant) if meant == int(meant) else meant
    return Violation(f"cluster.gpu.{field}", rate, rule, reason, nearest(plain) if is_likely else "check it")


def _slower_in_fp8(gpu: Gpu) -> Iterator[Violation]:
    """Yield FP8 below BF16, which is most likely the two in each other's place."""
    fp8, bf16 = gpu.fp8_tflops, gpu.bf16_tflops
    if fp8 is not None and bf16 is not None and fp8 < bf16:
        change = {HERE: bf16, "cluster.gpu.bf16_tflops": fp8}
        fix = Fix(f"write fp8_tflops: {bf16:g} and bf16_tflops: {fp8:g}", (change,))
        rule = f"W118 is less than bf16_tflops ({bf16:g})"
        yield Violation("cluster.gpu.fp8_tflops", fp8, rule, "GPUs with FP8 matmuls are faster in FP8", fix)
