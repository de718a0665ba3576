"""The nodes that a unit runs on: the planned ones, or spares in their place.

Pure: `status.py` looks the pods up. Which spare stands in for which node is what the unit's leader decides when all
spares come together (`give_places` of the runtime): the first spare for the first missing node.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from stacks.kube.manifest import Manifest

__all__ = ["StandIn", "lost_nodes", "stand_ins"]


@dataclass(frozen=True)
class StandIn:
    """A spare that runs in place of a planned node."""

    node: str
    for_node: str


def stand_ins(planned: Sequence[str], spares: Sequence[str], found: Sequence[Manifest]) -> tuple[StandIn, ...]:
    """Return which spares a unit's pods run on, and which planned node each spare replaces.

    Return none while any pod has no node yet.
    """
    used = _nodes_used(found)
    if len(used) < len(planned):
        return ()
    missing = [node for node in planned if node not in used]
    standing_in = [spare for spare in spares if spare in used]
    return tuple(StandIn(*each) for each in zip(standing_in, missing, strict=False))


def lost_nodes(
    planned: Sequence[str], spares: Sequence[str], found: Sequence[Manifest], down: AbstractSet[str]
) -> list[str]:
    """Return the nodes in `down` that a unit needs.

    A unit needs the nodes of its pods; a unit without spares needs all planned nodes.
    """
    used = _nodes_used(found)
    return sorted(down & (used if spares else used | set(planned)))


def _nodes_used(found: Sequence[Manifest]) -> set[str]:
    return {node for pod in found if (node := pod["spec"].get("nodeName"))}
