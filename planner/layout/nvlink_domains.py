"""NVLink domains: the nodes of a cluster that reach each other without a NIC.

An HGX domain is one node. An NVL72 domain is 18 nodes of four GPUs, so placement decides whether a unit's traffic takes
NVLink or the network. Consecutive nodes of a rack are assumed to form a domain, because no inventory says more.
"""

from collections import Counter
from collections.abc import Iterable

from planner.facts.catalog import Gpu
from planner.layout.nodes import Node, named_places

__all__ = ["nvlink_domains"]


def nvlink_domains(nodes: Iterable[Node], gpu: Gpu, gpus_per_node: int) -> dict[str, str]:
    """Return the domain of each of `nodes`, which are all of a cluster. Consecutive nodes of a rack fill a domain.

    If no rack is named, all nodes count as one rack. If some are, a node without a rack is alone.
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
