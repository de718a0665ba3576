"""A unit and its ranks. A unit is placed on nodes, drained, scaled and healed as one."""

from dataclasses import dataclass

from planner.facts.terms import Phase


@dataclass(frozen=True)
class Rank:
    """One process of a unit, on one GPU."""

    node: str
    local_rank: int  # number among the ranks of its node
    rank: int  # number among the ranks of its unit


@dataclass(frozen=True)
class Unit:
    """A set of ranks that serve one copy of the model; they are placed, drained, scaled and healed as one."""

    name: str
    phase: Phase
    index: int  # number among the units of its phase
    nodes: tuple[str, ...]
    ranks: int  # number of ranks, equally many on each node
    why: str  # why it is on these nodes

    @property
    def ranks_per_node(self) -> int:
        """Return the number of ranks on each node."""
        return self.ranks // len(self.nodes)

    @property
    def rank_places(self) -> tuple[Rank, ...]:
        """Return all ranks with their nodes, in order. Consecutive ranks fill one node after the other."""
        places = [(node, local) for node in self.nodes for local in range(self.ranks_per_node)]
        return tuple(Rank(node, local, rank) for rank, (node, local) in enumerate(places))
