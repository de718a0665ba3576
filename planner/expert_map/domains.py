"""Failure domains: what dies as one, whether slots suffice to have every expert in two of them, and who is not.

A partition says for each GPU of a unit in which domain it stands. Whether slots suffice is exact for one partition:
    two replicas each      slots >= 2 E
    one replica outside    of each domain: slots outside >= E, as the domain may die
    two domains at least

They are enough: of experts dealt out one after the other, twice over, the two replicas are E slots apart. For several
partitions (units that share a map and stand in racks differently) they are needed for each, and a map is looked for.

It needs no numpy: who only validates specs asks here.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from planner.expert_map.types import Domains

__all__ = ["consecutive_domains", "count_uncovered", "fewest_slots_per_gpu"]


def consecutive_domains(num_gpus: int, gpus_per_domain: int) -> Domains:
    """One partition: GPU by GPU, so many to a domain."""
    return (tuple(gpu // gpus_per_domain for gpu in range(num_gpus)),)


def fewest_slots_per_gpu(num_experts: int, domains: Domains) -> int | None:
    """Slots a GPU with which every expert can be in two domains of every partition; None where there is but one."""
    num_gpus = len(domains[0])
    largest = max(max(Counter(partition).values()) for partition in domains)
    if largest == num_gpus:
        return None
    return max(-(-2 * num_experts // num_gpus), -(-num_experts // (num_gpus - largest)))


def count_uncovered(physical_to_logical: Iterable[Sequence[int]], domains: Domains) -> int:
    """Experts of the worst layer whose replicas are all in one domain, of the worst partition."""
    return max(_uncovered(slots, partition) for slots in physical_to_logical for partition in domains)


def _uncovered(slots: Sequence[int], partition: Sequence[int]) -> int:
    per_gpu = len(slots) // len(partition)
    places = [domain for domain in partition for _ in range(per_gpu)]
    first: dict[int, int] = {}
    apart = {expert for expert, place in zip(slots, places, strict=True) if first.setdefault(expert, place) != place}
    return len(first) - len(apart)
