"""Failure domains: sets of GPUs that fail together. Whether a map can have, and has, each expert in two of them.

A partition gives the domain of each GPU of a unit. For one partition such a map exists exactly if there are
    two slots for each expert               slots >= 2 E
    for each expert one slot outside        slots outside the largest domain >= E
    at least two domains

These conditions suffice: deal out the experts in order, twice, and the two replicas of each are E slots apart. Units
that share a map may be spread over racks differently. That gives several partitions, of which each must meet the
conditions, and a map has to be searched for.

This module needs no numpy, because `validate` calls it too.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from planner.expert_map.types import Domains


def consecutive_domains(num_gpus: int, gpus_per_domain: int) -> Domains:
    """Return the single partition that puts every `gpus_per_domain` consecutive GPUs into a domain."""
    return (tuple(gpu // gpus_per_domain for gpu in range(num_gpus)),)


def fewest_slots_per_gpu(num_experts: int, domains: Domains) -> int | None:
    """Return the fewest slots per GPU that let every expert be in two domains; None if a partition has only one."""
    num_gpus = len(domains[0])
    largest = max(max(Counter(partition).values()) for partition in domains)
    if largest == num_gpus:
        return None
    return max(-(-2 * num_experts // num_gpus), -(-num_experts // (num_gpus - largest)))


def count_uncovered(physical_to_logical: Iterable[Sequence[int]], domains: Domains) -> int:
    """Return how many experts of a layer have all their replicas in one domain, in the worst layer and partition."""
    return max(_num_uncovered(slots, partition) for slots in physical_to_logical for partition in domains)


def _num_uncovered(slots: Sequence[int], partition: Sequence[int]) -> int:
    per_gpu = len(slots) // len(partition)
    places = [domain for domain in partition for _ in range(per_gpu)]
    first: dict[int, int] = {}
    apart = {expert for expert, place in zip(slots, places, strict=True) if first.setdefault(expert, place) != place}
    return len(first) - len(apart)
