"""The links between a unit's ranks: NVLink in a domain, NICs on rails between domains, leaf switches above them.

Glossary:
    NVLink domain   GPUs that reach each other without a NIC: those of a node, of a part of it, or of 18 nodes of four
                    (72 GPUs). A rack's nodes fill its domains in order; no domain is in two racks
    rail            the NICs of equal number on all nodes; rank r of a node uses its own, or the one it shares
    leaf            the switch that a node's NICs are attached to; between leaves traffic climbs to the spine

    mesh            a domain without switches: each pair of GPUs has links of its own, and one to one is a part of a
                    GPU's whole (MI300X: 64 of 448 GB/s). Behind switches (NVLink) it is the whole

A message between domains takes the sender's NIC and the receiver's, on one node too: PCIe is taken to be as fast. What
is not on the same rail changes rails over NVLink, which is faster. Spines are taken to be non-blocking: a spec does not
say otherwise.

Bandwidths are one way, of one rank to one other, with nobody else on the way.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.facts.catalog import Gpu
from planner.facts.quantities import BITS_PER_BYTE
from planner.layout.nodes import Node
from planner.layout.unit import Unit

__all__ = ["Topology", "topology_of"]


@dataclass(frozen=True)
class Topology:
    """The links of one unit. Places are those of the unit's nodes, in the order of its ranks."""

    ranks_per_node: int
    nodes: tuple[str, ...]
    domains: tuple[str, ...]  # of each rank
    leaves: tuple[str, ...]  # of each node; empty where the spec does not say
    nvlink_gb_per_s: float  # of a rank to all others of its domain together
    peer_gb_per_s: float  # of a rank to one other of its domain
    nic_gb_per_s: float  # a rank's share of its NIC
    gpus_per_nic: int

    @property
    def num_ranks(self) -> int:
        """The number of ranks in the unit."""
        return len(self.nodes) * self.ranks_per_node

    def node(self, rank: int) -> int:
        """Return the index of the node that `rank` is on."""
        return rank // self.ranks_per_node

    def rail(self, rank: int) -> int:
        """Return the number of the NIC that `rank` uses."""
        return rank % self.ranks_per_node // self.gpus_per_nic

    def bandwidth(self, rank_a: int, rank_b: int) -> float:
        """Return the GB/s from one rank to another; infinite to itself."""
        if rank_a == rank_b:
            return float("inf")
        if self.domains[rank_a] == self.domains[rank_b]:
            return self.peer_gb_per_s
        return min(self.nic_gb_per_s, self.nvlink_gb_per_s)

    def group_gb_per_s(self, num_ranks: int) -> float:
        """Return the GB/s from one rank to all others of `num_ranks` of its domain together."""
        return min(self.nvlink_gb_per_s, (num_ranks - 1) * self.peer_gb_per_s)


def topology_of(unit: Unit, nodes: Mapping[str, Node], domains: Mapping[str, str], gpu: Gpu) -> Topology | None:
    """Return the topology of `unit`, or None where the GPU's links are not known, as on `cpu`.

    `nodes` and their NVLink `domains` (`nvlink_domains`) are by name.
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
