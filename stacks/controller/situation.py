"""The input of a decision: the plan's day, the units as they are, and the operator's orders.

All of it is in the cluster: the plan's day and the orders in a TidemillDeployment, the units in their own objects, what
they have to do at the gateway. The controller keeps no state, so it may end at any moment and start again anywhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from planner.facts.terms import Phase
from planner.schedule.schedule import Timetable

__all__ = ["Force", "Gateway", "LiveUnit", "Orders", "Situation"]

# What the gateway does while units of two KV formats run.
Gateway = Literal[
    "blind",  # another engine's router does not know of KV formats, and may pair any two units
    "former",  # the gateway serves units of the former format, and refuses those of the newest
    "newest",  # the gateway serves units of the newest format, and refuses those of the former
]


@dataclass(frozen=True)
class LiveUnit:
    """The present state of one unit of the plan in the cluster."""

    name: str
    phase: Phase
    replicas: int | None  # the number that it is scaled to; None if its object does not exist
    is_ready: bool  # whether it is on and all its pods are ready
    has_pods: bool = False  # also pods that are ending
    is_outdated: bool = False  # its pods have an older template than its object, or would have if they started now
    is_unseen: bool = False  # LeaderWorkerSet's controller has not seen the object's last change yet
    num_nodes: int = 1
    has_other_kv_format: bool = False  # it is outdated, and cannot exchange KV with units that have the newest template
    is_late: bool = False  # it has been starting for longer than a start may take
    nodes: tuple[str, ...] = ()  # the nodes that the plan gives it
    holds: frozenset[str] = frozenset()  # nodes that its pods are on; empty while no unit of the plan is outdated
    spares: tuple[str, ...] = ()  # nodes that it may move to; empty if units do not leave faulty nodes

    @property
    def is_on(self) -> bool:
        """True if the unit is scaled to run, ready or not."""
        return bool(self.replicas)


@dataclass(frozen=True)
class Force:
    """An operator's order to keep one state of the day until a given time, whatever the schedule says."""

    state: str  # the time at which the day's state begins: `22:00`
    until: float


@dataclass(frozen=True)
class Orders:
    """The operator's orders that are in force. Times are seconds since 1970-01-01 00:00 UTC."""

    hold_until: float | None = None
    force: Force | None = None
    unreadable: tuple[str, ...] = ()  # orders that cannot be followed: which field, why, and what happens instead
    may_drain: bool = True  # False while the end of a hold cannot be read


@dataclass(frozen=True)
class Situation:
    """Everything that a decision depends on, at one look."""

    timetable: Timetable
    units: Sequence[LiveUnit]  # in the plan's order
    orders: Orders
    lends_nodes: bool = False
    floors: Mapping[Phase, int] = field(default_factory=dict)  # the fewest units of a phase that demand asks for
    unseen: str | None = None  # what could not be read, and what the controller does not do because of that
    expected_units: frozenset[str] = frozenset()  # units that will be on if the measured load lasts
    gateway: Gateway = "newest"
    extra_drain_s: float = 0.0  # by how much longer pods with an older template take to end than new ones
    may_lack_one: bool = True  # whether a phase may lack a unit during a turn
    are_templates_known: bool = True  # whether the last look has found all outdated units, so that no more may follow
    departed: Sequence[LiveUnit] = ()  # units that have left the plan and still exist
    has_given_notice: bool = True  # whether users of free nodes have known for long enough that units change

    def phases(self) -> Mapping[str, Phase]:
        """Return unit -> its phase."""
        return {unit.name: unit.phase for unit in self.units}
