"""How good a placement is, count by count, each beside a bound that no placement can beat.

The counts are whole numbers, in the order in which they matter; less is better:
    leaves       leaf switches under which units stand, summed over units
    racks        racks that any active unit touches, summed over the states of the day: the others are free for others
    rack_loss    decode units that the loss of one rack stops, at worst; mixed units where there is no decode
    power_loss   the same for a power domain
    moves        nodes that a unit has and that a previous plan did not give it

A count whose places the spec does not name is left out.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.inventory import Node
from planner.spec import Phase, ScheduleSpec

__all__ = ["Objective", "Wanted", "measure"]

Place = Callable[[Node], str]


@dataclass(frozen=True)
class Wanted:
    """A unit before it has nodes."""

    name: str
    phase: Phase
    index: int  # in its phase
    num_nodes: int
    minutes: int  # of a day for which it is on


@dataclass(frozen=True)
class Objective:
    """A count, and what no placement can be below."""

    name: str
    value: int
    bound: int
    meaning: str

    @property
    def excess(self) -> int:
        """Above the bound."""
        return self.value - self.bound


def measure(
    wanted: Sequence[Wanted],
    assignment: Mapping[str, Sequence[Node]],
    usable: Sequence[Node],
    schedule: ScheduleSpec | None,
    previous: Mapping[str, Sequence[str]],
) -> tuple[Objective, ...]:
    """All counts of `assignment`, most important first."""
    lost = [unit for unit in wanted if unit.phase != "prefill"]
    counts = [
        _leaves(wanted, assignment, usable),
        _racks(wanted, assignment, usable, schedule),
        _loss("rack_loss", "rack", lost, assignment, usable, lambda node: node.rack),
        _loss("power_loss", "power domain", lost, assignment, usable, lambda node: node.power),
        _moves(assignment, previous) if previous else None,
    ]
    return tuple(count for count in counts if count is not None)


def _leaves(
    wanted: Sequence[Wanted], assignment: Mapping[str, Sequence[Node]], usable: Sequence[Node]
) -> Objective | None:
    sizes = _sizes(usable, lambda node: node.leaf)
    if not sizes:
        return None
    value = sum(len({node.leaf for node in assignment[unit.name]}) for unit in wanted)
    bound = sum(_fewest(sizes, unit.num_nodes) for unit in wanted)
    return Objective("leaves", value, bound, "leaf switches under which units stand, summed over units")


def _racks(
    wanted: Sequence[Wanted],
    assignment: Mapping[str, Sequence[Node]],
    usable: Sequence[Node],
    schedule: ScheduleSpec | None,
) -> Objective | None:
    sizes = _sizes(usable, lambda node: node.rack)
    if not sizes:
        return None
    value = bound = 0
    for active in _states(wanted, schedule):
        nodes = [node for unit in active for node in assignment[unit.name]]
        value += len({node.rack for node in nodes})
        bound += _fewest(sizes, len(nodes))
    return Objective("racks", value, bound, "racks in use, summed over the states of the day")


def _states(wanted: Sequence[Wanted], schedule: ScheduleSpec | None) -> list[list[Wanted]]:
    if schedule is None:
        return [list(wanted)]
    return [[unit for unit in wanted if unit.index < window.num_units(unit.phase)] for window in schedule.windows]


def _loss(
    name: str,
    kind: str,
    units: Sequence[Wanted],
    assignment: Mapping[str, Sequence[Node]],
    usable: Sequence[Node],
    place: Place,
) -> Objective | None:
    """A place that is touched by two units stops both; every unit touches as many places as it needs at least."""
    sizes = _sizes(usable, place)
    if not sizes or not units:
        return None
    touched = Counter(where for unit in units for where in {place(node) for node in assignment[unit.name]})
    least_touched = sum(_fewest(sizes, unit.num_nodes) for unit in units)
    phase = units[0].phase
    meaning = f"{phase} units that the loss of one {kind} stops, at worst"
    return Objective(name, max(touched.values()), -(-least_touched // len(sizes)), meaning)


def _moves(assignment: Mapping[str, Sequence[Node]], previous: Mapping[str, Sequence[str]]) -> Objective:
    before = {(unit, node) for unit, nodes in previous.items() for node in nodes}
    now = {(unit, node.name) for unit, nodes in assignment.items() if unit in previous for node in nodes}
    return Objective("moves", len(now - before), 0, "nodes that units of the previous plan did not have")


def _sizes(nodes: Iterable[Node], place: Place) -> list[int]:
    """Nodes of each place, largest first; none where any node's place is unknown."""
    sizes = Counter(map(place, nodes))
    return [] if "" in sizes else sorted(sizes.values(), reverse=True)


def _fewest(sizes: Sequence[int], num_nodes: int) -> int:
    """The fewest places that hold `num_nodes`."""
    held = 0
    for number, size in enumerate(sizes):
        if held >= num_nodes:
            return number
        held += size
    return len(sizes)
