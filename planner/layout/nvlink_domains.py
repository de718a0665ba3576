"""NVLink domains: which nodes of a cluster reach each other without a NIC.

Those of HGX end with a node. One of NVL72 is 18 nodes of four GPUs, so that where a unit stands decides whether its
traffic takes NVLink or the network. A domain is made of nodes in a row of one rack: no inventory says more.
"""

from collections import Counter
from collections.abc import Iterable

from planner.facts.catalog import Gpu
from planner.layout.nodes import Node, named_places

__all__ = ["nvlink_domains"]


def nvlink_domains(nodes: Iterable[Node], gpu: Gpu, gpus_per_node: int) -> dict[str, str]:
    """Return the domain of each of `nodes`, all of a cluster: whole nodes of a rack, in order, as many as fill one.

    Where racks are not known, nodes in a row are taken to stand together; where some are, a node without one is alone.
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
