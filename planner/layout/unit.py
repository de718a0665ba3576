"""A unit and its ranks. A unit is placed on nodes, drained, scaled and healed as one."""

from dataclasses import dataclass

from planner.facts.terms import Phase

__all__ = ["Rank", "Unit"]


@dataclass(frozen=True)
class Rank:
    """One process of a unit, on one GPU."""

    node: str
    local_rank: int  # on its node
    rank: int  # in its unit


@dataclass(frozen=True)
class Unit:
    """The ranks that are placed, drained, scaled and healed as one."""

    name: str
    phase: Phase
    index: int  # in its phase
    nodes: tuple[str, ...]
    ranks: int  # equally many on each node
    why: str  # reason for these nodes

    @property
    def ranks_per_node(self) -> int:
        """Return the number of ranks on each node."""
        return self.ranks // len(self.nodes)

    @property
    def rank_places(self) -> tuple[Rank, ...]:
        """Return where each rank is, node by node: neighbours in rank are neighbours on a node."""
        places = [(node, local) for node in self.nodes for local in range(self.ranks_per_node)]
        return tuple(Rank(node, local, rank) for rank, (node, local) in enumerate(places))
