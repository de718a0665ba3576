"""What the controller knows when it decides: the plan's day, the units as they are, and what a person has ordered.

All of it is in the cluster: the plan's day and the orders in a TidemillDeployment, the units in their own objects, what
they have to do at the gateway. The controller keeps nothing, so it may be ended at any moment and started again
anywhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.facts.terms import Phase
from planner.schedule.timetable import Timetable

__all__ = ["Force", "LiveUnit", "Orders", "Situation"]


@dataclass(frozen=True)
class LiveUnit:
    """A unit of the plan as the cluster has it."""

    name: str
    phase: Phase
    replicas: int | None  # that it is scaled to; None where its object is not there
    is_ready: bool  # all its pods, so that requests can be answered
    has_pods: bool = False  # which may still end
    num_nodes: int = 1
    nodes: tuple[str, ...] = ()  # that are its own; empty where the controller looks at no nodes
    spares: tuple[str, ...] = ()  # that it may move to; empty where units do not leave faulty nodes

    @property
    def is_on(self) -> bool:
        """True if somebody wants it to run."""
        return bool(self.replicas)


@dataclass(frozen=True)
class Force:
    """A state of the day that is wanted until a time, whatever the day says."""

    state: str  # the time at which the day's state begins: `22:00`
    until: float


@dataclass(frozen=True)
class Orders:
    """What a person has ordered and is not over. Times are seconds since 1970-01-01 00:00 UTC."""

    hold_until: float | None = None
    force: Force | None = None
    unreadable: tuple[str, ...] = ()  # orders that nobody can follow: which field, why, and what happens instead
    may_drain: bool = True  # not while nobody knows until when a person said hold


@dataclass(frozen=True)
class Situation:
    """One look at everything."""

    timetable: Timetable
    units: Sequence[LiveUnit]  # in the plan's order
    orders: Orders
    lends_nodes: bool = False
    floors: Mapping[Phase, int] = field(default_factory=dict)  # units that demand asks for at least
    unseen: str | None = None  # what could not be looked at, and what does not happen for it
    expected_units: frozenset[str] = frozenset()  # units that are on if what the gateway measures lasts

    def phases(self) -> Mapping[str, Phase]:
        """Return the phase of each unit."""
        return {unit.name: unit.phase for unit in self.units}
