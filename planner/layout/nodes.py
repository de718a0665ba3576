"""The nodes of a cluster, from a number or a list in the spec, and which of them are usable.

If the spec has only a number, nodes are named node-0, node-1, ... and fill racks and leaf switches of equal sizes in
order. A list gives name and places of each node, and says which nodes take no pods. A plan does not use those, and says
why. Spares stay free of units as well, to replace a lost node.

An HGX NVLink domain is one node. An NVL72 domain is 18 nodes of four GPUs, so placement decides whether a unit's
traffic takes NVLink or the network. Consecutive nodes of a rack are assumed to form a domain, because no inventory says
more.

Nothing here asks a cluster: `tidemill inventory` writes the list.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from planner.facts import names
from planner.facts.catalog import Gpu
from planner.layout.layout import PhaseLayout
from planner.spec.cluster import ClusterSpec, NodeSpec
from planner.spec.pods import TolerationSpec
from planner.spec.resolved import ResolvedSpec

PlaceKind = Literal["leaf", "rack"]

SPARE = "a spare"
REPELLING_EFFECTS = ("NoSchedule", "NoExecute")  # PreferNoSchedule only discourages


@dataclass(frozen=True)
class Node:
    """A node with its rack and leaf switch; each of these is empty if the spec does not name it."""

    index: int
    name: str
    rack: str
    leaf: str
    unusable: str | None  # why no unit may be placed on it; None for a usable node
    gpu: str = ""

    @property
    def is_spare(self) -> bool:
        """Return whether the node is a spare: it has no unit, and a unit that loses a node may move to it."""
        return self.unusable == SPARE


def nodes_of(
    cluster: ClusterSpec, gpus: Collection[str] = (), tolerations: Sequence[TolerationSpec] = ()
) -> tuple[Node, ...]:
    """Return all nodes, usable or not, in the order of the spec.

    Whether a node is usable depends on `gpus`, the types that phases run on (default: the cluster's), and on the
    `tolerations` of the units' pods.
    """
    spares, used = frozenset(cluster.spares), gpus or (cluster.gpu_name,)
    nodes = (
        (_make_node(cluster, index) for index in range(cluster.nodes))
        if isinstance(cluster.nodes, int)
        else (_read_node(cluster, node, index, used, tolerations) for index, node in enumerate(cluster.nodes))
    )
    return tuple(
        replace(node, unusable=SPARE) if node.name in spares and node.unusable is None else node for node in nodes
    )


def nodes_for(spec: ResolvedSpec) -> tuple[Node, ...]:
    """Return all nodes in the order of the spec, each with a reason if the spec's units cannot use the node."""
    return nodes_of(spec.cluster, spec.written.gpu_names, spec.written.kubernetes.tolerations)


def spares_with(cluster: ClusterSpec, gpu: str, tolerations: Sequence[TolerationSpec] = ()) -> tuple[str, ...]:
    """Return the names of the spares that a unit on GPUs of type `gpu` may move to, in the order of the spec."""
    return tuple(node.name for node in nodes_of(cluster, (gpu,), tolerations) if node.is_spare)


def named_places(nodes: Iterable[Node], kind: PlaceKind) -> dict[str, str]:
    """Return node -> the name of its leaf switch or rack, by `kind`.

    If only some nodes have a name there, each other node is a place of its own. If none has, all names are empty.
    """
    places: dict[str, str] = {node.name: getattr(node, kind) for node in nodes}
    if any(places.values()):
        return {node: place or f"of {node} alone" for node, place in places.items()}
    return places


def nvlink_domains(nodes: Iterable[Node], gpu: Gpu, gpus_per_node: int) -> dict[str, str]:
    """Return node -> its NVLink domain, which consecutive nodes of a rack fill. `nodes` are all nodes of a cluster.

    If no rack is named, all nodes count as one rack. If some are named, a node without a rack is a rack of its own.
    """
    nodes_per_domain = gpu.domain_size(gpus_per_node) // gpus_per_node
    if nodes_per_domain <= 1:
        return {node.name: node.name for node in nodes}
    before: Counter[str] = Counter()
    domains = {}
    for node, rack in named_places(nodes, "rack").items():
        domains[node] = f"{rack} domain-{before[rack] // nodes_per_domain}".lstrip()
        before[rack] += 1
    return domains


def repelling_taint(taints: Sequence[str], tolerations: Sequence[TolerationSpec]) -> str | None:
    """Return the first of `taints` that keeps pods away in spite of `tolerations`; None if none does.

    Source: github.com/kubernetes/kubernetes 19c6083b staging/src/k8s.io/api/core/v1/toleration.go, ToleratesTaint: an
    empty effect or key matches all of them, Exists any value, and Equal the same value.
    """
    away = (taint for taint in taints if taint.rpartition(":")[2] in REPELLING_EFFECTS)
    return next((taint for taint in away if not any(_tolerates(each, taint) for each in tolerations)), None)


def _make_node(cluster: ClusterSpec, index: int) -> Node:
    return Node(
        index=index,
        name=names.logical_node(index),
        rack=_place("rack", index, cluster.rack_size),
        leaf=_place("leaf", index, cluster.leaf_size),
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
    return Node(index, node.name, node.rack or "", node.leaf or "", why_not, gpu)


def _find_obstacle(
    cluster: ClusterSpec, node: NodeSpec, gpu: str, used: Collection[str], taint: str | None
) -> str | None:
    """Return the reason why `node` is not usable, or None. Units need whole nodes with GPUs of the types in `used`."""
    if node.cordoned:
        return "cordoned"
    if gpu not in used:
        return f"has {gpu}"
    if node.gpus is not None and node.gpus < cluster.gpus_per_node:
        return f"has {node.gpus} GPUs"
    return f"tainted {taint}" if taint else None


def _tolerates(toleration: TolerationSpec, taint: str) -> bool:
    key_value, _, effect = taint.rpartition(":")
    key, _, value = key_value.partition("=")
    if toleration.effect not in (None, effect) or toleration.key not in (None, key) or toleration.seconds is not None:
        return False  # a taint tolerated for some seconds evicts the pod afterwards
    return toleration.operator == "Exists" or (toleration.value or "") == value


def gpu_pools(layouts: Sequence[PhaseLayout]) -> dict[str, list[PhaseLayout]]:
    """Return GPU type -> layouts of the phases that run on it."""
    gpus = dict.fromkeys(layout.gpu for layout in layouts)
    return {gpu: [layout for layout in layouts if layout.gpu == gpu] for gpu in gpus}


def count_unit_nodes(layouts: Sequence[PhaseLayout]) -> int:
    """Return the number of nodes that all units take."""
    return sum(layout.num_units * layout.nodes_per_unit for layout in layouts)


def short_gpu(spec: ResolvedSpec, layouts: Sequence[PhaseLayout]) -> str | None:
    """Return the first GPU type that has too few usable nodes for the units of `layouts`; None if all have enough."""
    cluster = spec.cluster
    if isinstance(cluster.nodes, int) and count_unit_nodes(layouts) <= cluster.nodes - len(cluster.spares):
        return None
    usable = Counter(node.gpu for node in nodes_for(spec) if node.unusable is None)
    return next((gpu for gpu, own in gpu_pools(layouts).items() if count_unit_nodes(own) > usable[gpu]), None)
