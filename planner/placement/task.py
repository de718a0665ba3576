"""The task of placement, reduced to whole numbers: each unit needs a number of nodes, and each cell has a number.

A cell is all usable nodes with the same leaf switch and rack. These nodes are interchangeable, except
that a unit may have had some of them before. So the search looks for an assignment: how many nodes of each cell each
unit takes. `nodes.py` chooses the nodes afterwards.

If the spec names the places of some nodes only, each other node counts as a place of its own (`named_places`).

A state is a set of units that are on together. Its weight is the number of windows of the day with just these units.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from planner.facts.terms import Phase
from planner.layout.nodes import Node, named_places
from planner.spec.schedule import ScheduleSpec

LeafKind = Literal["leaves", "domains"]  # leaf switches, or NVLink domains of several nodes

Assignment = Sequence[Mapping[int, int]]  # for each unit: cell -> number of its nodes there


@dataclass(frozen=True)
class UnplacedUnit:
    """A unit that has no nodes yet."""

    name: str
    phase: Phase
    index: int  # number among the units of its phase
    num_nodes: int
    minutes: int  # how long it is on in a day


@dataclass(frozen=True)
class Cell:
    """All usable nodes with the same leaf and rack, which are interchangeable."""

    leaf: str
    rack: str
    nodes: tuple[Node, ...]
    racks: tuple[int, ...] = ()  # if the cell is a whole leaf (`greedy.py`): sizes of its racks, largest first


@dataclass(frozen=True)
class Places:
    """All leaves or all racks of a task, by number."""

    of_cell: tuple[int, ...]  # cell -> its place
    sizes: tuple[int, ...]  # place -> number of usable nodes

    @cached_property
    def cells(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the cells (groups of interchangeable nodes) of each leaf or rack, by its number."""
        return tuple(
            tuple(cell for cell, own in enumerate(self.of_cell) if own == place) for place in range(len(self.sizes))
        )

    @cached_property
    def largest_first(self) -> tuple[int, ...]:
        """The sizes of the places, largest first, as `fewest_places` takes them."""
        return tuple(sorted(self.sizes, reverse=True))


@dataclass(frozen=True)
class State:
    """A state of the schedule: the set of units that are on at the same time."""

    units: frozenset[int]
    weight: int  # number of windows of the schedule with just these units on


@dataclass(frozen=True)
class Task:
    """What placement has to solve: units, cells of nodes, states of the schedule, and units' previous nodes."""

    units: tuple[UnplacedUnit, ...]
    cells: tuple[Cell, ...]
    states: tuple[State, ...]
    before: tuple[Mapping[int, int], ...]  # for each unit: cell -> number of its nodes there in a previous placement
    had_nodes: frozenset[int]  # units that were in the previous placement
    leaves_are: LeafKind = "leaves"

    @cached_property
    def kept(self) -> frozenset[int]:
        """The units that stay on their previous nodes, because these are usable and as many as the unit needs."""
        return frozenset(
            unit for unit in self.had_nodes if sum(self.before[unit].values()) == self.units[unit].num_nodes
        )

    @cached_property
    def movable(self) -> tuple[int, ...]:
        """The units that are to be placed, which are all but the kept ones."""
        return tuple(unit for unit in range(len(self.units)) if unit not in self.kept)

    @cached_property
    def kept_assignment(self) -> Assignment:
        """The assignment in which only the kept units have nodes."""
        return tuple(had if unit in self.kept else {} for unit, had in enumerate(self.before))

    @cached_property
    def leaves(self) -> Places | None:
        """The leaf switches, or the NVLink domains in their place; None if the spec names no leaves."""
        return _places(self.cells, lambda cell: cell.leaf)

    @cached_property
    def racks(self) -> Places | None:
        """The racks; None if the spec names none."""
        return _places(self.cells, lambda cell: cell.rack)

    @cached_property
    def states_on(self) -> tuple[int, ...]:
        """Unit -> the states in which the unit is on, as a bit mask: bit s is set for state s."""
        return tuple(
            sum(1 << number for number, state in enumerate(self.states) if unit in state.units)
            for unit in range(len(self.units))
        )

    @cached_property
    def producers(self) -> tuple[int, ...]:
        """The units that produce tokens, decode or mixed. Losing a rack should stop few of them."""
        return tuple(index for index, unit in enumerate(self.units) if unit.phase != "prefill")

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of usable nodes in each cell, `[cells]`."""
        return tuple(len(cell.nodes) for cell in self.cells)

    def are_alike(self, one: int, other: int) -> bool:
        """Return whether two units, given by number, are interchangeable: swapping their nodes changes no count."""
        return self._first_alike[one] == self._first_alike[other]

    @cached_property
    def _first_alike(self) -> tuple[int, ...]:
        """Unit -> the unit with the lowest number among those that are interchangeable with the unit."""
        numbers: dict[tuple[Phase, int, int, int], int] = {}
        return tuple(
            numbers.setdefault(
                (each.phase, each.num_nodes, self.states_on[unit], unit if unit in self.had_nodes else -1), unit
            )
            for unit, each in enumerate(self.units)
        )


def make_task(
    units: Sequence[UnplacedUnit],
    usable: Sequence[Node],
    schedule: ScheduleSpec | None,
    before: Mapping[str, Sequence[str]],
    domains: Mapping[str, str] | None = None,
) -> Task:
    """Return the task of placing `units` on `usable` nodes. `before` has unit -> its previous nodes, by name.

    `domains` has node -> its NVLink domain, if domains have several nodes. Domains then take the place of leaves,
    because traffic inside a domain uses no NIC and so no leaf switch.
    """
    by_cell: dict[tuple[str, str], list[Node]] = {}
    rack, outer = named_places(usable, "rack"), domains or named_places(usable, "leaf")
    for node in usable:
        by_cell.setdefault((outer[node.name], rack[node.name]), []).append(node)
    cells = tuple(Cell(*place, tuple(nodes)) for place, nodes in by_cell.items())
    cell_of = {node.name: index for index, cell in enumerate(cells) for node in cell.nodes}
    kept = tuple(Counter(cell_of[name] for name in before.get(unit.name, ()) if name in cell_of) for unit in units)
    had_nodes = frozenset(index for index, unit in enumerate(units) if unit.name in before)
    return Task(tuple(units), cells, _states(units, schedule), kept, had_nodes, "domains" if domains else "leaves")


def _states(units: Sequence[UnplacedUnit], schedule: ScheduleSpec | None) -> tuple[State, ...]:
    if schedule is None:
        return (State(frozenset(range(len(units))), 1),)
    windows = Counter(
        frozenset(index for index, unit in enumerate(units) if unit.index < window.num_units(unit.phase))
        for window in schedule.all_windows
    )
    return tuple(State(active, weight) for active, weight in windows.items())


def _places(cells: Sequence[Cell], name: Callable[[Cell], str]) -> Places | None:
    sizes: dict[str, int] = {}
    for cell in cells:
        sizes[name(cell)] = sizes.get(name(cell), 0) + len(cell.nodes)
    if "" in sizes:
        return None
    index = {place: number for number, place in enumerate(sizes)}
    return Places(tuple(index[name(cell)] for cell in cells), tuple(sizes.values()))


def fewest_places(largest_first: Sequence[int], num_nodes: int) -> int:
    """Return the smallest number of places that together hold `num_nodes`; `largest_first` has the places' sizes."""
    held = 0
    for number, size in enumerate(largest_first):
        if held >= num_nodes:
            return number
        held += size
    return len(largest_first)
