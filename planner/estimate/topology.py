"""The links between a unit's ranks: NVLink in a domain, NICs on rails between domains, leaf switches above.

Glossary:
    NVLink domain   GPUs connected without a NIC: a node, a part of one, or 18 nodes of four GPUs (72 GPUs). A rack's
                    nodes fill its domains in order; no domain spans two racks
    rail            the NICs with the same number on all nodes
    leaf            the switch that a node's NICs are attached to; between leaves traffic climbs to the spine

    mesh            a domain without switches: each pair of GPUs has its own links, so one pair has only a part of the
                    bandwidth (MI300X: 64 of 448 GB/s). Behind switches (NVLink) one pair can use all of it

A message between domains uses the sender's and the receiver's NIC, even within a node: PCIe is assumed to be as fast.
Messages change rails over NVLink, which is faster. Spines are assumed non-blocking, because a spec cannot say
otherwise.

Bandwidths are one way and uncontended.

GPUs that share attention sum their results as collective libraries do: a reduce-scatter inside each NVLink domain, an
all-reduce of each part between domains over the NICs, and an all-gather inside each domain. With d GPUs of the
group in each of D domains, an array of S bytes brings
    each GPU    2 (d - 1) / d x S        over NVLink
    each NIC    2 (D - 1) / D x S / d    for each GPU that uses it; none where the group is in one domain
A group under several leaf switches brings 2 (D - 1) / D x S into each of them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.facts.catalog import Gpu
from planner.facts.quantities import BITS_PER_BYTE
from planner.layout.nodes import Node
from planner.layout.unit import Unit

__all__ = ["Topology", "all_reduce_bytes", "gpus_in_one_domain", "shared_bytes", "topology_of"]


@dataclass(frozen=True)
class Topology:
    """The links of one unit. Nodes and ranks are in rank order."""

    ranks_per_node: int
    nodes: tuple[str, ...]
    domains: tuple[str, ...]  # of each rank
    leaves: tuple[str, ...]  # of each node; empty if the spec does not say
    nvlink_gb_per_s: float  # of a rank to all others of its domain together
    peer_gb_per_s: float  # of a rank to one other of its domain
    nic_gb_per_s: float  # a rank's share of its NIC
    gpus_per_nic: int

    @property
    def num_ranks(self) -> int:
        """Return the number of ranks in the unit."""
        return len(self.nodes) * self.ranks_per_node

    def node(self, rank: int) -> int:
        """Return the index of the rank's node."""
        return rank // self.ranks_per_node

    def rail(self, rank: int) -> int:
        """Return the number of the NIC that the rank uses."""
        return rank % self.ranks_per_node // self.gpus_per_nic

    def group_gb_per_s(self, num_ranks: int) -> float:
        """Return a rank's GB/s to `num_ranks - 1` others of its domain together."""
        return min(self.nvlink_gb_per_s, (num_ranks - 1) * self.peer_gb_per_s)


def topology_of(unit: Unit, nodes: Mapping[str, Node], domains: Mapping[str, str], gpu: Gpu) -> Topology | None:
    """Return the unit's topology, or None if the GPU's links are unknown, as on `cpu`.

    `nodes` and their NVLink `domains` (`nvlink_domains`) are keyed by node name.
    """
    if gpu.nvlink_gb_per_s is None or gpu.nic_gbps is None or gpu.gpus_per_nic is None:
        return None
    placed = [nodes[name] for name in unit.nodes]
    sharing = min(gpu.gpus_per_nic, unit.ranks_per_node)
    part = min(gpu.nvlink_domain or unit.ranks_per_node, unit.ranks_per_node)
    return Topology(
        ranks_per_node=unit.ranks_per_node,
        nodes=unit.nodes,
        domains=tuple(
            domains[node.name] if part == unit.ranks_per_node else f"{domains[node.name]} part-{local // part}"
            for node in placed
            for local in range(unit.ranks_per_node)
        ),
        leaves=tuple(node.leaf for node in placed),
        nvlink_gb_per_s=gpu.nvlink_gb_per_s,
        peer_gb_per_s=gpu.peer_gb_per_s or gpu.nvlink_gb_per_s,
        nic_gb_per_s=gpu.nic_gbps / BITS_PER_BYTE / sharing,
        gpus_per_nic=gpu.gpus_per_nic,
    )


def all_reduce_bytes(size: int, num_gpus: int) -> int:
    """Return the bytes into each of `num_gpus` GPUs, and out of it, of an all-reduce of `size` bytes."""
    return round(2 * (num_gpus - 1) * size / num_gpus)


def gpus_in_one_domain(topology: Topology, num_sharing: int) -> int:
    """Return the most GPUs of one group of `num_sharing` that are in one NVLink domain."""
    return max(max(Counter(group).values()) for group in _groups(topology.domains, num_sharing))


def shared_bytes(topology: Topology, num_sharing: int, size: int) -> dict[str, int]:
    """Return the all-reduce bytes each way on the fullest link of each kind.

    Groups of `num_sharing` GPUs sum `size` bytes.
    """
    widest = max(_groups(topology.domains, num_sharing), key=lambda group: len(set(group)))
    in_domain = Counter(widest)
    between = all_reduce_bytes(size, len(in_domain))
    by_nic = between / min(in_domain.values())
    return {
        "gpu": all_reduce_bytes(size, gpus_in_one_domain(topology, num_sharing)),
        "nic": round(by_nic * min(topology.gpus_per_nic, topology.ranks_per_node)),
        "node": round(by_nic * topology.ranks_per_node),
        "leaf": between * _groups_crossing_leaf(topology, num_sharing),
    }


def _groups_crossing_leaf(topology: Topology, num_sharing: int) -> int:
    """Return the most groups that one leaf switch has only a part of."""
    leaves = [topology.leaves[topology.node(rank)] for rank in range(topology.num_ranks)]
    torn = [set(group) for group in _groups(leaves, num_sharing) if len(set(group)) > 1]
    return max(Counter(leaf for group in torn for leaf in group).values(), default=0)


def _groups(by_rank: Sequence[str], size: int) -> list[Sequence[str]]:
    return [by_rank[first : first + size] for first in range(0, len(by_rank), size)]
