"""The nodes of a cluster, whether the spec counts them or lists them, and which of them can be used.

A cluster given by counts has nodes node-0, node-1, ... in racks, under leaf switches and in power domains of equal
sizes, in order. A listed one says all of that for each node, and also which nodes take no pods: those are kept out of
every plan, with the reason. Spares are kept free of units as well, for one that loses a node of its own.

It asks no cluster: `tidemill inventory` will write the list.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from planner.facts import names
from planner.layout.taints import repelling_taint
from planner.spec.cluster import ClusterSpec, NodeSpec
from planner.spec.pods import TolerationSpec
from planner.spec.resolved import ResolvedSpec

__all__ = ["Node", "PlaceKind", "named_places", "nodes_for", "nodes_of", "spares_with"]

PlaceKind = Literal["leaf", "rack", "power"]

SPARE = "a spare"


@dataclass(frozen=True)
class Node:
    """A node and where it stands, in the order of the spec; names of places are empty where the spec does not say."""

    index: int
    name: str
    rack: str
    leaf: str
    power: str
    unusable: str | None  # why no unit is placed on it
    gpu: str = ""

    @property
    def is_spare(self) -> bool:
        """True if a unit may move to the node later."""
        return self.unusable == SPARE


def nodes_of(
    cluster: ClusterSpec, gpus: Collection[str] = (), tolerations: Sequence[TolerationSpec] = ()
) -> tuple[Node, ...]:
    """Return all nodes, in the order of the spec. `gpus`: those that phases run on, the cluster's unless given.

    `tolerations` are those of the units' pods. Only whether a node can be used depends on them.
    """
    spares, used = frozenset(cluster.spares), gpus or (cluster.gpu_name,)
    nodes = (
        (_count_node(cluster, index) for index in range(cluster.nodes))
        if isinstance(cluster.nodes, int)
        else (_read_node(cluster, node, index, used, tolerations) for index, node in enumerate(cluster.nodes))
    )
    return tuple(
        replace(node, unusable=SPARE) if node.name in spares and node.unusable is None else node for node in nodes
    )


def nodes_for(spec: ResolvedSpec) -> tuple[Node, ...]:
    """Return all nodes, in the order of the spec, as the pods of its units can use them."""
    return nodes_of(spec.cluster, spec.written.gpu_names, spec.written.kubernetes.tolerations)


def spares_with(cluster: ClusterSpec, gpu: str, tolerations: Sequence[TolerationSpec] = ()) -> tuple[str, ...]:
    """Return the spares that a unit on `gpu` may move to, in the order of the spec."""
    return tuple(node.name for node in nodes_of(cluster, (gpu,), tolerations) if node.is_spare)


def named_places(nodes: Iterable[Node], kind: PlaceKind) -> dict[str, str]:
    """Return the `kind` of place that each of `nodes` is in; where some have a name, a node without one stands alone.

    Where none has one, all names are empty.
    """
    places: dict[str, str] = {node.name: getattr(node, kind) for node in nodes}
    if any(places.values()):
        return {node: place or f"of {node} alone" for node, place in places.items()}
    return places


def _count_node(cluster: ClusterSpec, index: int) -> Node:
    return Node(
        index=index,
        name=names.logical_node(index),
        rack=_place("rack", index, cluster.rack_size),
        leaf=_place("leaf", index, cluster.leaf_size),
        power=_place("power", index, cluster.power_domain_size),
        unusable=None,
        gpu=cluster.gpu_name,
    )


def _place(kind: str, index: int, size: int | None) -> str:
    return "" if size is None else f"{kind}-{index // size}"


def _read_node(
    cluster: ClusterSpec, node: NodeSpec, index: int, used: Collection[str], tolerations: Sequence[TolerationSpec]
) -> Node:
    gpu = node.gpu or cluster.gpu_name
    why_not = _find_obstacle(cluster, node, gpu, used, repelling_taint(node.taints, tolerations))
    return Node(index, node.name, node.rack or "", node.leaf or "", node.power or "", why_not, gpu)


def _find_obstacle(
    cluster: ClusterSpec, node: NodeSpec, gpu: str, used: Collection[str], taint: str | None
) -> str | None:
    """Return why `node` may not be used, if so: a unit takes whole nodes, with the GPUs that were planned for."""
    if node.cordoned:
        return "cordoned"
    if gpu not in used:
        return f"has {gpu}"
    if node.gpus is not None and node.gpus < cluster.gpus_per_node:
        return f"has {node.gpus} GPUs"
    return f"tainted {taint}" if taint else None
