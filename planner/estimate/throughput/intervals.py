"""How wide a prediction is, and why: the family of evidence that it rests on.

    family                                           half width     on top
    this engine was measured on this GPU             10 %           or what its factor leaves unexplained
    the same, in another phase                       20 %           its imbalance and overheads carry over
    this engine was measured on another GPU          20 %           where this GPU's kernels were measured
                                                     35 %           where some are scaled from another's
    no measurement of this engine                    a factor of 2  nobody has looked
    an attention or precision that nobody measured   a factor of 2

Engines' rows miss by 5.7 % at most when each is left out in turn (`tests/benchmarks/throughput.py`): the first width is
nearly twice that. Where a row gave its engine a factor that nothing explains, what is unexplained is the width if that
is more: at another point it may be a time and no share. The second is assumed to be twice the first: the only row of
that kind is SGLang's decode, which is met within 1 %. The third is assumed to be the same, as no engine's rows are of
two GPUs. The fourth covers at least 85 % of all measured operators when the tables of their GPU are left out
(`left_out` in `kernels.json`). A factor of two has an upper end: what the same kernels give with nothing between them,
nothing exposed and all GPUs equally full. How much popularity drifts is known within bounds (`imbalance.py`): the low
end of the first three has the most of it, and the family's width below that.

A user's own measurements are the first family, and their range holds each of them.
"""

from dataclasses import dataclass
from typing import Literal

from planner.estimate.throughput.engines import EngineModel
from planner.estimate.throughput.machine import Machine
from planner.facts.terms import Phase

__all__ = ["SCALED_WIDTH", "Estimate", "Evidence", "evidence_for", "spread"]

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
    """A figure with the range that its evidence gives it."""

    low: float
    mid: float
    high: float

    def times(self, factor: float) -> "Estimate":
        """Return the estimate in another unit."""
        return Estimate(self.low * factor, self.mid * factor, self.high * factor)

    def plus(self, seconds: float) -> "Estimate":
        """Return the estimate with what is certain added."""
        return Estimate(self.low + seconds, self.mid + seconds, self.high + seconds)

    def inverse(self, numerator: float) -> "Estimate":
        """Return `numerator` over the estimate: a time, from a rate."""
        return Estimate(numerator / self.high, numerator / self.mid, numerator / self.low)


@dataclass(frozen=True)
class Evidence:
    """What a prediction rests on, in words for people."""

    family: Family
    why: str
    scaled: tuple[str, ...]  # constants of the GPU that are scaled from another
    unexplained: float = 0.0  # share of the rate that a factor of the engine takes away
    measured: tuple[float, float] = (1.0, 1.0)  # a user's own over what is predicted of them: the least, the most

    @property
    def chance(self) -> str:
        """Return what is known of how likely a speed within the range is, for people: no range is a distribution."""
        if self.family == "same engine, other GPU" and self.scaled:
            return SCALED_CHANCE
        return CHANCES.get(self.family, UNKNOWN_CHANCE)


def evidence_for(engine: EngineModel, phase: Phase, machine: Machine, unmeasured: str | None = None) -> Evidence:
    """Return the family of a phase of an engine on a GPU; `unmeasured` says which kernels nobody measured, if any."""
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
    return Evidence("none", f"nobody has measured {phase} units on {engine.name}{_instead(engine, phase)}", scaled)


def spread(mid: float, bound: float, evidence: Evidence, drifted: float | None = None) -> Estimate:
    """Return a rate with its range.

    `bound` is what no overhead would leave, and `drifted` what is left of it when popularity drifts most. A factor of
    two has room for that.
    """
    width = WIDTHS.get(evidence.family)
    if width is None:
        return Estimate(mid / FACTOR, mid, max(mid, min(mid * FACTOR, bound)))
    if evidence.family == "same engine, other GPU" and evidence.scaled:
        width = SCALED_WIDTH
    width = max(width, evidence.unexplained)
    slowest, (least, most) = mid if drifted is None else min(mid, drifted), evidence.measured
    return Estimate(min(slowest * (1 - width), mid * least), mid, mid * max(1 + width, most))


def _instead(engine: EngineModel, phase: Phase) -> str:
    """Return what an unmeasured engine is predicted by, and what is known of it."""
    if engine.as_engine is None:
        return ""
    text = f", so its overheads are taken from {engine.as_engine}'s"
    if times := engine.alone.get(phase):
        text += f"; without exchanges, one {engine.alone_on} took {times:g} times as long as predicted"
    return text
