"""Determine the range of a predicted speed from its family of evidence: what of it has been measured.

    family                                           half width     remark
    this engine was measured on this GPU             10 %           or the unexplained part of its factor, if larger,
                                                                    as in all families with a width
    it was, but only in another phase                20 %           imbalance and overheads carry over
    this engine was measured on another GPU          20 %           if this GPU's kernels were measured
                                                     35 %           if some are scaled from another GPU's
    no measurement of this engine                    a factor of 2
    an attention or precision that nobody measured   a factor of 2

10 % is nearly twice the largest error, 5.7 %, when DeepSeek's rows and SGLang's row with even routing are predicted
without their source (docs/accuracy.md). An unexplained factor widens the range, because the loss may be another share
at another operating point. 20 % in another phase is assumed: SGLang's decode, the only such row, is within 5 %. 20 % on
another GPU is wider than what rows of two GPUs differ by from a constant that both give: 8 % at most. 35 % covers at
least 85 % of all measured operators when their GPU's tables are left out (`left_out` in `kernels.json`). With a factor
of two, the high end is at most the rate of the same kernels without overheads, exposed exchanges or imbalance; where
some are scaled, 35 % more: of 21 published figures on Blackwell ten are better than predicted, four of them so.

Drift of experts' popularity is known within bounds (`imbalance.py`). For all families but those with a factor of two,
the low end is the rate with the most drift, less the family's width.

A user's own measurements count as the first family, and the range then includes each measured ratio.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from planner.estimate.throughput.engines import EngineModel
from planner.estimate.throughput.machine import Machine
from planner.facts.terms import Phase

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
    """A predicted number with the low and high end of its range."""

    low: float
    mid: float
    high: float

    def times(self, factor: float) -> "Estimate":
        """Return the estimate multiplied by `factor`."""
        return Estimate(self.low * factor, self.mid * factor, self.high * factor)

    def plus(self, seconds: float) -> "Estimate":
        """Return the estimate with `seconds` added to its middle and both ends."""
        return Estimate(self.low + seconds, self.mid + seconds, self.high + seconds)

    def inverse(self, numerator: float) -> "Estimate":
        """Return `numerator` divided by the estimate, to turn a rate into a time."""
        return Estimate(numerator / self.high, numerator / self.mid, numerator / self.low)


@dataclass(frozen=True)
class Evidence:
    """The measurements on which a prediction and its range rest. `why` describes these measurements to people."""

    family: Family
    why: str
    scaled: tuple[str, ...]  # constants of the GPU that are scaled from another
    unexplained: float = 0.0  # share of the rate that the engine's fitted factor removes
    measured: tuple[float, float] = (1.0, 1.0)  # least and most of a user's measured over predicted rates

    @property
    def chance(self) -> str:
        """Return words that say how likely the real speed lies in the range. Nobody knows an exact probability."""
        if self.family == "same engine, other GPU" and self.scaled:
            return SCALED_CHANCE
        return CHANCES.get(self.family, UNKNOWN_CHANCE)


def evidence_for(engine: EngineModel, phase: Phase, machine: Machine, unmeasured: str | None = None) -> Evidence:
    """Return the evidence for predicting a phase of an engine on a GPU.

    `unmeasured` names kernels of the phase that nobody has measured, if there are any.
    """
    scaled = tuple(name for name, origin in machine.origins.items() if origin == "scaled")
    gpus = engine.measured_on.get(phase, ())
    if unmeasured is not None:
        return Evidence("none", f"no kernel of {unmeasured} was measured", scaled)
    unexplained = max(1 - engine.factor.get(phase, 1.0), 0.0)
    if machine.name in gpus:
        return Evidence("same engine and GPU", _describe_measured(engine, gpus, unexplained), scaled, unexplained)
    others = [each for each, on in engine.measured_on.items() if machine.name in on]
    if others:
        why = f"{engine.name} was measured on {machine.name} in {' and '.join(others)}, not in {phase}"
        return Evidence("same engine and GPU, other phase", why, scaled, unexplained)
    if gpus:
        return Evidence("same engine, other GPU", _describe_measured(engine, gpus, unexplained), scaled, unexplained)
    return Evidence(
        "none", f"nobody has measured {phase} units on {engine.name}{_describe_substitute(engine, phase)}", scaled
    )


def add_range(mid: float, bound: float, evidence: Evidence, drifted: float | None = None) -> Estimate:
    """Return the predicted rate `mid` with the range that its evidence justifies.

    `bound` is the rate without overheads, and `drifted` the rate with the most drift of experts' popularity. The range
    of an unmeasured engine, a factor of two, already covers drift.
    """
    width = WIDTHS.get(evidence.family)
    if width is None:
        better = 1 + SCALED_WIDTH if evidence.scaled else 1.0
        return Estimate(mid / FACTOR, mid, min(mid * FACTOR, max(mid, bound) * better))
    if evidence.family == "same engine, other GPU" and evidence.scaled:
        width = SCALED_WIDTH
    width = max(width, evidence.unexplained)
    slowest, (least, most) = mid if drifted is None else min(mid, drifted), evidence.measured
    return Estimate(min(slowest * (1 - width), mid * least), mid, mid * max(1 + width, most))


def _describe_measured(engine: EngineModel, gpus: Sequence[str], unexplained: float) -> str:
    """Return words for where an engine was measured, and for the share of its rate that no constant explains."""
    lost = f", and {unexplained:.0%} of the rate is lost for no known reason" if unexplained else ""
    return f"{engine.name} was measured on {' and '.join(gpus)}{lost}"


def _describe_substitute(engine: EngineModel, phase: Phase) -> str:
    """Say which engine's constants stand in for an unmeasured engine's, and how fast one GPU of it was, if measured.

    Return an empty text for a measured engine.
    """
    if engine.as_engine is None:
        return ""
    text = f", so its overheads are taken from {engine.as_engine}'s"
    if times := engine.alone.get(phase):
        text += f"; without exchanges, one {engine.alone_on} took {times:g} times as long as predicted"
    return text
