"""What a change does, as one document: `tidemill diff --format json`, and `diff` of `tidemill plan --previous`.

Everything a reviewer is told is a field here, with its arithmetic done. `diff.py` makes the document, and what writes
it as text or markdown only chooses fields. docs/diff.md says what each key means.
"""

from typing import Any, Literal

from pydantic import Field

from planner.estimate.failures import Loss
from planner.facts.part import Maybe, Part
from planner.facts.terms import Phase
from planner.plan.row import Row
from planner.plan.sections import Digest, JsonFinding

__all__ = [
    "ENDS",
    "STARTS",
    "Change",
    "ExpertMoves",
    "Fate",
    "LossSides",
    "NodeMoves",
    "PhaseMoves",
    "Sides",
    "State",
    "StateSides",
    "Tool",
    "UnitChange",
    "Units",
    "Verdict",
    "WarningMoves",
    "Way",
    "WeightReads",
]

Verdict = Literal[
    "no_restart",  # no running pod ends
    "rolling",  # pods restart, and each phase keeps what the hour asks of it
    "degraded",  # a phase serves less than that, but serves
    "outage",  # a phase has no unit that serves
]
Fate = Literal["new", "moved", "restarted", "removed", "kept"]
Workload = Literal[Phase, "gateway", "controller"]
Tool = Literal["git", "pulumi"]

ENDS: tuple[Fate, ...] = ("moved", "restarted", "removed")  # the pods that run end
STARTS: tuple[Fate, ...] = ("new", "moved", "restarted")


class UnitChange(Part):
    """What becomes of the pods of a unit, of the gateway or of the controller."""

    name: str
    phase: Workload
    change: Fate
    why: tuple[str, ...]  # what differs in its pods; empty unless they are started anew
    in_turn: bool  # the provider changes it while others of its phase serve


class Units(Part):
    """How many units of a phase serve, of those that the hour has on."""

    units: int
    of_units: int


class Way(Part):
    """How one way of applying the change goes, at the worst hour of the day."""

    verdict: Verdict
    minutes: int | None  # until the last pod is ready; none where nobody knows how much a unit reads
    least_capacity: dict[Phase, float]  # share of the units that serve
    least_units: dict[Phase, Units]
    times: dict[Verdict, str]  # the hours of each verdict, where they differ


class PhaseMoves(Part):
    """The slots of a phase's map whose GPU did not hold the expert before."""

    slots_changed: int  # of one unit
    of_slots: int
    units: int
    bytes: int | None  # of all units; none where memory is not planned


class ExpertMoves(Part):
    """Expert slots that change, of all units together."""

    slots_changed: int
    bytes: int | None
    phases: dict[Phase, PhaseMoves]


class WeightReads(Part):
    """What units that start read: each reads its weights whole."""

    units: int
    bytes: int | None
    checkpoint: str | None


class NodeMoves(Part):
    """Nodes that have a unit in one of the plans alone."""

    taken: tuple[str, ...]
    freed: tuple[str, ...]


class State(Part):
    """A state of the day."""

    at: str
    nodes: int
    units: dict[Phase, int]


class StateSides(Part):
    """The day's states before and after."""

    before: tuple[State, ...]
    after: tuple[State, ...]


class Sides(Part):
    """Figures of both plans by name, as their reports have them."""

    before: dict[str, Row]
    after: dict[str, Row]


class LossSides(Part):
    """What the loss of each failure domain stops, before and after."""

    before: dict[str, Loss]
    after: dict[str, Loss]


class WarningMoves(Part):
    """Warnings that one of the plans has alone."""

    new: tuple[JsonFinding, ...]
    gone: tuple[JsonFinding, ...]


class Change(Part):
    """What the change from one plan to another does."""

    name: str
    old: Digest = Field(description="digest of the plan before")
    new: Digest = Field(description="digest of the plan after")
    verdict: Verdict  # these three are of the way that goes worse
    minutes: int | None
    least_capacity: dict[Phase, float]
    ways: dict[Tool, Way]
    units: tuple[UnitChange, ...]
    experts: ExpertMoves
    weights: WeightReads
    nodes: NodeMoves
    schedule: Maybe[StateSides] = None  # none where neither plan has a day
    performance: dict[Phase, Sides]
    cost: Sides
    failures: dict[Phase, LossSides]
    warnings: WarningMoves
    assumed: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the document."""
        return self.model_dump(mode="json")
