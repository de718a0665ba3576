"""Units to nodes.

Each unit has its nodes to itself; nodes are those of a cluster given by counts: node-0, node-1, ... in order, in racks
of `rack_size` if that is given. Units are placed in order, prefill first: into the first rack that has room for the
whole unit, else onto the first free nodes.

It does not look at leaves or power, nor at where units stand already.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from planner import names
from planner.check import CheckedSpec
from planner.errors import InfeasibleError, Violation
from planner.parallelism import PhaseLayout
from planner.spec import Phase

__all__ = ["Unit", "place_units"]


@dataclass(frozen=True)
class Rank:
    """One process of a unit, on one GPU."""

    node: str
    local_rank: int  # on its node
    rank: int  # in its unit


@dataclass(frozen=True)
class Unit:
    """What is placed, drained, scaled and healed as one."""

    name: str
    phase: Phase
    nodes: tuple[str, ...]
    ranks_per_node: int

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """Node by node, so that neighbours in rank are neighbours on a node."""
        places = [(node, local) for node in self.nodes for local in range(self.ranks_per_node)]
        return tuple(Rank(node, local, rank) for rank, (node, local) in enumerate(places))


def place_units(spec: CheckedSpec, layouts: Sequence[PhaseLayout]) -> tuple[Unit, ...]:
    """All units on disjoint nodes. Raises InfeasibleError when the cluster has too few."""
    cluster = spec.spec.cluster
    needed = sum(layout.num_units * layout.nodes_per_unit for layout in layouts)
    if needed > cluster.nodes:
        raise InfeasibleError([spec.problem(_too_few(cluster.nodes, needed, layouts))])
    free = list(range(cluster.nodes))
    units = []
    for layout in layouts:
        for index in range(layout.num_units):
            nodes = _choose(free, layout.nodes_per_unit, cluster.rack_size)
            free = _without(free, nodes)
            units.append(_unit(names.unit_name(spec.spec.name, layout.phase, index), layout, nodes))
    return tuple(units)


def _too_few(num_nodes: int, needed: int, layouts: Sequence[PhaseLayout]) -> Violation:
    parts = [f"{layout.phase} {layout.num_units} x {layout.nodes_per_unit}" for layout in layouts]
    rule = f"S701 must be at least {needed} ({' + '.join(parts)})"
    return Violation("cluster.nodes", num_nodes, rule, "every unit has its nodes to itself", f"nearest: {needed}")


def _choose(free: list[int], num_nodes: int, rack_size: int | None) -> list[int]:
    if rack_size and num_nodes <= rack_size:
        for _, rack in groupby(free, key=lambda node: node // rack_size):
            nodes = list(rack)
            if len(nodes) >= num_nodes:
                return nodes[:num_nodes]
    return free[:num_nodes]


def _without(free: list[int], taken: list[int]) -> list[int]:
    gone = set(taken)
    return [node for node in free if node not in gone]


def _unit(name: str, layout: PhaseLayout, nodes: list[int]) -> Unit:
    return Unit(name, layout.phase, tuple(names.logical_node(node) for node in nodes), layout.ranks_per_node)
