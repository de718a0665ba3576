"""What GPUs carry under a split rule, from the shares that estimates reckon with: the slow reference of `layer.h`."""

from planner.estimate.throughput.shares import replica_shares

__all__ = ["carried_under"]


def carried_under(split, loads_E, slots_GS, num_nodes):
    """Return the load of each GPU, `[G]`."""
    return (replica_shares(split, len(loads_E), slots_GS, num_nodes) * loads_E).sum(axis=1)
