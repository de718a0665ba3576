"""Determine the range of a prediction from its family of evidence.

    family                                           half width     on top
    this engine was measured on this GPU             10 %           or the unexplained part of its factor
    the same, in another phase                       20 %           its imbalance and overheads carry over
    this engine was measured on another GPU          20 %           where this GPU's kernels were measured
                                                     35 %           where some are scaled from another's
    no measurement of this engine                    a factor of 2
    an attention or precision that nobody measured   a factor of 2

The first width is nearly twice the largest error, 5.7 %, when each row is predicted from the others
(`tests/benchmarks/throughput.py`). An unexplained factor widens it, because the loss may be another share at another
point. The second width is assumed to be twice the first: its only row, SGLang's decode, is met within 1 %. The third is
assumed equal, because no engine was measured on two GPUs. The fourth covers at least 85 % of all measured operators
when their GPU's tables are left out (`left_out` in `kernels.json`). With a factor of two, the high end is at most the
rate of the same kernels without overheads, exposed exchanges or imbalance. Drift of popularity is known within bounds
(`imbalance.py`): the low end of the first three families takes the most drift, and then the family's width below that.

A user's own measurements count as the first family, and their range includes each of them.
"""

from dataclasses import dataclass
from typing import Literal

from planner.estimate.throughput.engines import EngineModel
from planner.estimate.throughput.machine import Machine
from planner.facts.terms import Phase

__all__ = ["SCALED_WIDTH", "Estimate", "Evidence", "add_range", "evidence_for"]

Family = Literal["same engine and GPU", "same engine and GPU, other phase", "same engine, other GPU", "none"]
WIDTHS: dict[Family, float] = {
    "same engine and GPU": 0.10,
    "same engine and GPU, other phase": 0.20,
    "same engine, other GPU": 0.20,
}
CHANCES: dict[Family, str] = {
    "same engine and GPU": "each of this engine's published measurements lies within such a range",
    "same engine and GPU, other phase": "the one measurement of this kind lies within such a range",
}
SCALED_CHANCE = "of operators, at least 85% were measured within such a range"
UNKNOWN_CHANCE = "how likely that is, nobody has measured"
SCALED_WIDTH = 0.35
FACTOR = 2.0


@dataclass(frozen=True)
class Estimate:
    """A predicted figure with its range."""

    low: float
    mid: float
    high: float

    def times(self, factor: float) -> "Estimate":
        """Return the estimate multiplied by `factor`."""
        return Estimate(self.low * factor, self.mid * factor, self.high * factor)

    def plus(self, seconds: float) -> "Estimate":
        """Return the estimate with `seconds` added to it and to both ends."""
        return Estimate(self.low + seconds, self.mid + seconds, self.high + seconds)

    def inverse(self, numerator: float) -> "Estimate":
        """Return `numerator` over the estimate, as a time from a rate."""
        return Estimate(numerator / self.high, numerator / self.mid, numerator / self.low)


@dataclass(frozen=True)
class Evidence:
    """The evidence behind a prediction, in words for people."""

    family: Family
    why: str
    scaled: tuple[str, ...]  # constants of the GPU that are scaled from another
    unexplained: float = 0.0  # share of the rate that the engine's factor removes
    measured: tuple[float, float] = (1.0, 1.0)  # a user's measurements over predictions: least, most

    @property
    def chance(self) -> str:
        """Say how likely a speed within the range is. No range is a probability distribution."""
        if self.family == "same engine, other GPU" and self.scaled:
            return SCALED_CHANCE
        return CHANCES.get(self.family, UNKNOWN_CHANCE)


def evidence_for(engine: EngineModel, phase: Phase, machine: Machine, unmeasured: str | None = None) -> Evidence:
    """Return the evidence for a phase of an engine on a GPU. `unmeasured` names kernels without measurements."""
    scaled = tuple(name for name, origin in machine.origins.items() if origin == "scaled")
    gpus = engine.measured_on.get(phase, ())
    if unmeasured is not None:
        return Evidence("none", f"no kernel of {unmeasured} was measured", scaled)
    if machine.name in gpus:
        unexplained = max(1 - engine.factor.get(phase, 1.0), 0.0)
        why = f"{engine.name} was measured on {machine.name}"
        if unexplained:
            why += f", and {unexplained:.0%} of the rate is lost for no known reason"
        return Evidence("same engine and GPU", why, scaled, unexplained)
    others = [each for each, on in engine.measured_on.items() if machine.name in on]
    if others:
        why = f"{engine.name} was measured on {machine.name} in {' and '.join(others)}, not in {phase}"
        return Evidence("same engine and GPU, other phase", why, scaled)
    if gpus:
        return Evidence("same engine, other GPU", f"{engine.name} was measured on {' and '.join(gpus)}", scaled)
    return Evidence(
        "none", f"nobody has measured {phase} units on {engine.name}{_describe_substitute(engine, phase)}", scaled
    )


def add_range(mid: float, bound: float, evidence: Evidence, drifted: float | None = None) -> Estimate:
    """Return a rate with its range.

    `bound` is the rate without overheads, and `drifted` the rate with the most drift. A factor of two already covers
    drift.
    """
    width = WIDTHS.get(evidence.family)
    if width is None:
        return Estimate(mid / FACTOR, mid, max(mid, min(mid * FACTOR, bound)))
    if evidence.family == "same engine, other GPU" and evidence.scaled:
        width = SCALED_WIDTH
    width = max(width, evidence.unexplained)
    slowest, (least, most) = mid if drifted is None else min(mid, drifted), evidence.measured
    return Estimate(min(slowest * (1 - width), mid * least), mid, mid * max(1 + width, most))


def _describe_substitute(engine: EngineModel, phase: Phase) -> str:
    """Say which engine's constants an unmeasured engine borrows, and what is known of it."""
    if engine.as_engine is None:
        return ""
    text = f", so its overheads are taken from {engine.as_engine}'s"
    if times := engine.alone.get(phase):
        text += f"; without exchanges, one {engine.alone_on} took {times:g} times as long as predicted"
    return text
