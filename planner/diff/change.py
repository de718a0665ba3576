"""The effects of a change as one document: `tidemill diff --format json`, and `diff` of `tidemill plan --previous`.

Every fact that a reviewer sees is a field here, fully computed. `diff.py` builds the document. `text.py` and
`markdown.py` only choose fields. docs/diff.md documents each key.
"""

from typing import Any, Literal

from pydantic import Field

from planner.estimate.failures import Loss
from planner.facts.part import Digest, Maybe, Part, Rounded, Rounded6
from planner.facts.terms import Phase
from planner.plan.expected import Promise
from planner.plan.row import Row
from planner.plan.sections import JsonFinding

Verdict = Literal[
    "no_restart",  # no running pod ends
    "rolling",  # pods restart, and each phase keeps serving the hour's demand
    "degraded",  # a phase serves less than its demand
    "outage",  # a phase has no serving unit
]
Fate = Literal["new", "moved", "restarted", "removed", "kept"]
Workload = Literal[Phase, "gateway", "controller"]
Tool = Literal["git", "pulumi"]

ENDING_FATES: tuple[Fate, ...] = ("moved", "restarted", "removed")  # running pods end
STARTING_FATES: tuple[Fate, ...] = ("new", "moved", "restarted")


class UnitChange(Part):
    """What happens to the pods of a unit, of the gateway or of the controller."""

    name: str
    phase: Workload
    change: Fate
    why: tuple[str, ...]  # differences in its pods; empty if they keep running
    values: dict[str, tuple[str, str]]  # cause -> its old and its new value, where both are short
    in_turn: bool  # whether it waits for a turn of the controller or the provider, while other units of its phase serve


class UnitCount(Part):
    """How many of a phase's running units keep serving during the change."""

    units: int
    of_units: int


class Rollout(Part):
    """How the change goes with one tool: its duration, and what keeps serving in the worst hour of the day."""

    verdict: Verdict
    seconds: int  # until the last pod is ready
    minutes: int  # the same, rounded up
    least_capacity: dict[Phase, float]  # lowest share of running units that keep serving
    least_units: dict[Phase, UnitCount]
    missed_share: Rounded | None  # the largest of a phase's demand that nobody serves; None if unknown
    times: dict[Verdict, str]  # the hours with each verdict, if verdicts differ; with their days, if days differ


class Shortage(Part):
    """Hours of the new plan's days at which the units of a phase that are on miss demand."""

    phase: Phase
    times: str
    missed_share: Rounded | None  # of the demand, at the most; None if unknown
    has_no_unit: bool  # whether none is on, rather than too few
    is_new: bool  # False if the old plan's units missed as much


class PhaseMoves(Part):
    """How many slots of a phase's expert map get an expert that their GPU did not hold before."""

    slots_changed: int  # in one unit
    of_slots: int
    units: int
    bytes: int  # weights of these slots in all units


class ExpertMoves(Part):
    """How many expert slots change, in all units together."""

    slots_changed: int
    bytes: int
    phases: dict[Phase, PhaseMoves]


class WeightReads(Part):
    """The weights that starting units read; each unit reads all its weights."""

    units: int
    bytes: int
    checkpoint: str | None


class NodeMoves(Part):
    """Nodes that only the new plan uses (`taken`), or only the old plan (`freed`)."""

    taken: tuple[str, ...]
    freed: tuple[str, ...]


class State(Part):
    """A state of the schedule: from the time `at`, how many units of each phase are on, and on how many nodes."""

    at: str
    nodes: int
    units: dict[Phase, int]


class StateSides(Part):
    """The schedule's states in the old and in the new plan."""

    before: tuple[State, ...]
    after: tuple[State, ...]
    is_executed: bool  # False if a plan's schedule switches units but no controller does it, so that all stay on


class LoadSides(Part):
    """The expert loads that the old and the new plan were made for, in words."""

    before: str
    after: str
    figures_before: Literal["before", "after"]  # the loads for which the old plan's figures are


class SpecField(Part):
    """A field of the spec that differs between the old and the new plan."""

    path: str  # dotted; for what is no field, its name
    values: tuple[str, str] | None  # old and new; None for lists and for names of Secrets


class Sides(Part):
    """Figures of both plans: name -> row of the plan's report."""

    before: dict[str, Row]
    after: dict[str, Row]


class Yardsticks(Part):
    """The yardsticks that the change moves, and both plans' figures under the old ones."""

    moved: tuple[SpecField, ...]
    counts: bool  # whether the change is judged by the old ones too; False where expert loads are all that changes
    performance: dict[Phase, Sides]  # empty if unknown
    cost: Sides
    promises: dict[str, Promise | None]  # latency -> the stricter promise and its prediction; None if not predicted
    unknown: str  # why nobody knows these figures; empty if they are known


class DecisionSides(Part):
    """A size of a phase's units that the planner decided: in the old and in the new plan, and why the new one."""

    path: str
    before: int
    after: int
    why: str


class DayCost(Part):
    """Dollars that a kind of day costs in the old and in the new plan, for days that are not ordinary."""

    days: tuple[str, ...]
    before: Rounded | None  # None without a price
    after: Rounded | None
    after_by_former: Rounded | None  # at the old prices; None if the change moves no yardstick


NetSides = tuple[Rounded6, Rounded6]  # before and after the change


class Net(Part):
    """An ordinary day's bill and income in dollars, as it runs, and the capacity of all units."""

    bill: NetSides | None  # None if a plan has no price of a GPU-hour
    income: NetSides | None  # None if a plan has no prices of tokens
    capacity: dict[Phase, NetSides]  # tokens/s at the expected speed; of phases that both plans have
    on_demand: dict[str, NetSides]  # `GPUs of PHASE` and `nodes` on which controller.demand may run less than before
    at_an_hour: dict[str, NetSides]  # `GPUs of PHASE`, `tokens/s of PHASE`: less is on than before, and traffic is new


class LossSides(Part):
    """The worst loss by a failure of one GPU, node or rack, in the old and in the new plan."""

    before: dict[str, Loss]
    after: dict[str, Loss]


class WarningSides(Part):
    """A warning that both plans have with different numbers."""

    before: JsonFinding
    after: JsonFinding


class WarningMoves(Part):
    """Warnings that only the new plan has (`new`), only the old plan (`gone`), or both with different numbers."""

    new: tuple[JsonFinding, ...]
    gone: tuple[JsonFinding, ...]
    changed: tuple[WarningSides, ...]


class Change(Part):
    """The effects of changing from one plan to another."""

    name: str
    old: Digest = Field(description="digest of the plan before")
    new: Digest = Field(description="digest of the plan after")
    verdict: Verdict  # this and the next two fields are those of the worse rollout
    minutes: int
    least_capacity: dict[Phase, float]
    ways: dict[Tool, Rollout]
    shortages: tuple[Shortage, ...]
    may_take_turns: bool  # with kubernetes.controller, which the new plan lacks, units would change in turns by Git too
    compared: tuple[str, ...]  # how the two plans were obtained
    loads: Maybe[LoadSides] = None  # None if both plans were made for the same expert loads
    yardsticks: Maybe[Yardsticks] = None  # None if the change moves none
    clients: tuple[SpecField, ...]  # what callers have to change at the same time
    unjudged: tuple[SpecField, ...]  # fields that may do what no figure here shows
    decided: tuple[DecisionSides, ...]
    units: tuple[UnitChange, ...]
    experts: ExpertMoves
    weights: WeightReads
    nodes: NodeMoves
    schedule: Maybe[StateSides] = None  # None if neither plan has a schedule
    performance: dict[Phase, Sides]
    former_promises: dict[str, Promise | None]  # latency -> the old plan's promise and prediction
    cost: Sides
    net: Net
    cost_of_other_days: tuple[DayCost, ...]
    failures: dict[Phase, LossSides]
    warnings: WarningMoves
    assumed: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the document as JSON values."""
        return self.model_dump(mode="json")
