"""Failure domains: what dies together, whether there are slots to have every expert in two of them, and who is not.

A partition says for each GPU of a unit in which domain it stands. For one partition these conditions are exact:
    two replicas each      slots >= 2 E
    one replica outside    of each domain: slots outside >= E, as the domain may die
    two domains at least

They suffice: deal the experts out one after the other, twice over, and the two replicas of each are E slots apart. For
several partitions (units that share a map and stand in racks differently) each needs them, and a map is searched for.

It needs no numpy, because `validate` asks here too.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from planner.expert_map.types import Domains

__all__ = ["consecutive_domains", "count_uncovered", "fewest_slots_per_gpu"]


def consecutive_domains(num_gpus: int, gpus_per_domain: int) -> Domains:
    """Return one partition that puts every `gpus_per_domain` consecutive GPUs into a domain."""
    return (tuple(gpu // gpus_per_domain for gpu in range(num_gpus)),)


def fewest_slots_per_gpu(num_experts: int, domains: Domains) -> int | None:
    """Return how many slots a GPU needs so that every expert can be in two domains of every partition.

    It is None when a partition has only one domain.
    """
    num_gpus = len(domains[0])
    largest = max(max(Counter(partition).values()) for partition in domains)
    if largest == num_gpus:
        return None
    return max(-(-2 * num_experts // num_gpus), -(-num_experts // (num_gpus - largest)))


def count_uncovered(physical_to_logical: Iterable[Sequence[int]], domains: Domains) -> int:
    """Return how many experts have all replicas in one domain, in the worst layer and the worst partition."""
    return max(_uncovered(slots, partition) for slots in physical_to_logical for partition in domains)


def _uncovered(slots: Sequence[int], partition: Sequence[int]) -> int:
    per_gpu = len(slots) // len(partition)
    places = [domain for domain in partition for _ in range(per_gpu)]
    first: dict[int, int] = {}
    apart = {expert for expert, place in zip(slots, places, strict=True) if first.setdefault(expert, place) != place}
    return len(first) - len(apart)
