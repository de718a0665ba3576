"""Failure domains: sets of GPUs that fail together. Can a map have every expert in two of them, and does it?

A partition gives the domain of each GPU of a unit. For one partition a map exists exactly if there are
    two slots for each expert               slots >= 2 E
    one of them outside any one domain      slots outside the largest domain >= E
    at least two domains

These suffice: deal out the experts in order, twice, and the two replicas of each are E slots apart. Units that share a
map may stand in racks differently. That gives several partitions, each with these conditions, and a search for a map.

It needs no numpy, because `validate` calls it too.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from planner.expert_map.types import Domains

__all__ = ["consecutive_domains", "count_uncovered", "fewest_slots_per_gpu"]


def consecutive_domains(num_gpus: int, gpus_per_domain: int) -> Domains:
    """Return one partition, with `gpus_per_domain` consecutive GPUs in each domain."""
    return (tuple(gpu // gpus_per_domain for gpu in range(num_gpus)),)


def fewest_slots_per_gpu(num_experts: int, domains: Domains) -> int | None:
    """Return the slots per GPU that every expert needs to be in two domains; None if a partition has only one."""
    num_gpus = len(domains[0])
    largest = max(max(Counter(partition).values()) for partition in domains)
    if largest == num_gpus:
        return None
    return max(-(-2 * num_experts // num_gpus), -(-num_experts // (num_gpus - largest)))


def count_uncovered(physical_to_logical: Iterable[Sequence[int]], domains: Domains) -> int:
    """Return how many experts have all replicas in one domain, in the worst layer and partition."""
    return max(_uncovered(slots, partition) for slots in physical_to_logical for partition in domains)


def _uncovered(slots: Sequence[int], partition: Sequence[int]) -> int:
    per_gpu = len(slots) // len(partition)
    places = [domain for domain in partition for _ in range(per_gpu)]
    first: dict[int, int] = {}
    apart = {expert for expert, place in zip(slots, places, strict=True) if first.setdefault(expert, place) != place}
    return len(first) - len(apart)
