"""What rules of predictions ask for, and the warning about an overlap that is predicted to cost more than it hides.

Overlap computes one micro-batch while the other's tokens travel. Each micro-batch reads the weights again, fills tiles
of matmuls less, and leaves processors to the exchange. Where there is much to compute and little to wait for, or the
batch is small, that is more than the waiting which it hides.

SGLang measures the same: two-batch overlap gains nothing on H20 until a batch has 64 or 128 requests.
Source: github.com/sgl-project/sglang pull 9660.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from planner.cost.demand import PhaseLoad
from planner.estimate.performance import PhaseOutlook
from planner.estimate.throughput.predict import Prediction, saturated_rate
from planner.facts.terms import Phase
from planner.problems.finding import Finding
from planner.problems.fix import HERE, Change, Fix
from planner.rules.rule import Candidate, Rule

__all__ = ["RULES", "Predicted"]

LEAST_GAIN = 1.05  # assumed: two overlaps of one layout are not predicted more precisely than that


class Predicted(Candidate, Protocol):
    """A plan whose speed is known, and how its phases would do otherwise."""

    @property
    def speed(self) -> Sequence[PhaseOutlook]:
        """What each phase is expected to do."""

    @property
    def searched(self) -> Collection[Phase]:
        """The phases whose layouts were chosen by their speed."""

    @property
    def fullest(self) -> Sequence[PhaseLoad]:
        """The fullest load of each phase."""

    def predicted_with(self, phase: Phase, change: Change) -> Prediction | None:
        """What a phase would do, with its own map, if the spec were changed so."""

    def fuller(self, load: PhaseLoad) -> Prediction | None:
        """What units do that serve all of a load; None where they cannot."""


def overlaps_gain(c: Predicted) -> Iterator[Finding]:
    """Find each phase that is predicted to be faster without its overlap."""
    for outlook in c.speed:
        case = outlook.case
        if case is None or case.overlap == "none":
            continue
        overlapped, alone = saturated_rate(case), saturated_rate(replace(case, overlap="none"))
        if alone >= LEAST_GAIN * overlapped:
            rates = f"{overlapped:,.0f} instead of {alone:,.0f} tokens/s per GPU at full use"
            rule = f"W137 is predicted to be slower than overlap: none ({rates})"
            reason = (
                "two half batches compute less efficiently than one batch, and the overlap hides less time than that"
            )
            fix = Fix("write overlap: none", ({HERE: "none"},))
            yield Finding(f"{outlook.phase}.overlap", case.overlap, rule, reason, fix)


RULES = (Rule("W137", "predicted", overlaps_gain),)
