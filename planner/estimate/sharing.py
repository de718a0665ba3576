"""Bytes that GPUs exchange to share attention, on each kind of link.

A group sums its GPUs' results as collectives libraries do: first inside each NVLink domain, so that each GPU has the
sum of a part of the values, then each part between domains over the NICs, then back. With d GPUs of the group in each
of D domains, an array of S bytes brings
    each GPU    2 (d - 1) / d x S        over NVLink
    each NIC    2 (D - 1) / D x S / d    for each GPU that uses it; none where the group is in one domain
A group under several leaf switches brings 2 (D - 1) / D x S into each of them.
"""

from collections import Counter
from collections.abc import Sequence

from planner.estimate.topology import Topology

__all__ = ["all_reduce_bytes", "gpus_in_one_domain", "shared_bytes"]


def all_reduce_bytes(size: int, num_gpus: int) -> int:
    """Return the bytes into each of `num_gpus`, and out of it, to sum one array of `size` bytes from each of them."""
    return round(2 * (num_gpus - 1) * size / num_gpus)


def gpus_in_one_domain(topology: Topology, num_sharing: int) -> int:
    """Return how many of the `num_sharing` GPUs of a group are in one domain, at most."""
    return max(max(Counter(group).values()) for group in _groups(topology.domains, num_sharing))


def shared_bytes(topology: Topology, num_sharing: int, size: int) -> dict[str, int]:
    """Return the bytes each way on the fullest link of each kind, where groups of `num_sharing` sum `size` bytes."""
    widest = max(_groups(topology.domains, num_sharing), key=lambda group: len(set(group)))
    in_domain = Counter(widest)
    between = all_reduce_bytes(size, len(in_domain))
    by_nic = between / min(in_domain.values())
    return {
        "gpu": all_reduce_bytes(size, gpus_in_one_domain(topology, num_sharing)),
        "nic": round(by_nic * min(topology.gpus_per_nic, topology.ranks_per_node)),
        "node": round(by_nic * topology.ranks_per_node),
        "leaf": between * _groups_through_a_leaf(topology, num_sharing),
    }


def _groups_through_a_leaf(topology: Topology, num_sharing: int) -> int:
    """Return how many groups stand partly under a leaf and partly under others, at the leaf with most such groups."""
    leaves = [topology.leaves[topology.node(rank)] for rank in range(topology.num_ranks)]
    torn = [set(group) for group in _groups(leaves, num_sharing) if len(set(group)) > 1]
    return max(Counter(leaf for group in torn for leaf in group).values(), default=0)


def _groups(of_rank: Sequence[str], size: int) -> list[Sequence[str]]:
    return [of_rank[first : first + size] for first in range(0, len(of_rank), size)]
