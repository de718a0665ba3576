"""Warn if overlap is predicted to cost more time than it hides; define `Predicted`, which rules about speed check.

Overlap computes one micro-batch while the other's tokens travel. But each micro-batch reads the weights again, fills
the matmuls' tiles less, and leaves processors to the exchange. If the exchange is short or the batch is small, this
costs more time than the overlap hides.

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

LEAST_GAIN = 1.05  # assumed: smaller differences between two overlaps are within the prediction's error


class Predicted(Candidate, Protocol):
    """A candidate whose speed is predicted, and which can predict changed specs too."""

    @property
    def speed(self) -> Sequence[PhaseOutlook]:
        """The predicted speed of each phase."""

    @property
    def searched(self) -> Collection[Phase]:
        """The phases whose layouts the search chose by predicted speed."""

    @property
    def fullest(self) -> Sequence[PhaseLoad]:
        """The highest load of each phase on any kind of day."""

    def predicted_with(self, phase: Phase, change: Change) -> Prediction | None:
        """Return the prediction of `phase` after a `change` of the spec, with the present expert map."""

    def fuller(self, load: PhaseLoad) -> Prediction | None:
        """Return the prediction of units that serve all of `load`, which is one of `fullest`; None if they cannot."""


def overlap_pays_off(c: Predicted) -> Iterator[Finding]:
    """Warn of each phase that is predicted to be faster without its overlap."""
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


RULES = (Rule("W137", "predicted", overlap_pays_off),)
