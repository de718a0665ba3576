"""Maps whose experts survive the loss of a failure domain: `covered` searches, here is what came out of it.

Groups of experts do not stay on nodes in such maps: a group on one node would go dark with it.

With a previous map, few slots change: the search starts from it, and stops at the balance of a fresh map.
"""

import numpy as np

from planner.expert_map.bound import bind
from planner.expert_map.covered import bound_of_replicas, solve_covered
from planner.expert_map.moves import count_moves
from planner.expert_map.outcome import as_bounds, as_ratios, as_rows, holds_everything, slots_of_everything
from planner.expert_map.policy import GOOD_ENOUGH
from planner.expert_map.renew import align, part_repeats
from planner.expert_map.types import BoundKind, Domains, Effort, ExpertMap, Sizes
from planner.expert_map.weigh import Floats, Ints, fullest_in_whole_numbers, max_over_mean, scale

__all__ = ["make_covered_map"]

REASON = "replicas of each expert are in two failure domains"


def make_covered_map(
    loads_LE: Floats,
    sizes: Sizes,
    domains: Domains,
    effort: Effort,
    previous_LGS: Ints | None,
    keep_within: float,
) -> ExpertMap:
    """See `balance`. Slots suffice (`fewest_slots_per_gpu`)."""
    loads_LE = scale(loads_LE)
    bound_L, binding = _bind(loads_LE, sizes)
    slots_LGS, covered_L = _solve(loads_LE, sizes, domains, bound_L, effort)
    moved_slots = None
    if previous_LGS is not None:
        slots_LGS = _renew(loads_LE, previous_LGS, slots_LGS, sizes, keep_within, domains, effort)
        moved_slots = count_moves(slots_LGS, previous_LGS, loads_LE.shape[1])
    return ExpertMap(
        num_logical_experts=loads_LE.shape[1],
        physical_to_logical=as_rows(slots_LGS),
        max_over_mean=as_ratios(max_over_mean(loads_LE, slots_LGS)),
        bound=as_bounds(bound_L),
        binding=binding,
        policy="global",
        policy_reason=REASON,
        is_covered=bool(covered_L.all()),
        moved_slots=moved_slots,
    )


def _bind(loads_LE: Floats, sizes: Sizes) -> tuple[Floats, tuple[BoundKind, ...]]:
    """Return the bound of any map, or the bound for two replicas of each expert where that is higher."""
    bound_L, binding = bind(loads_LE, sizes, within_nodes=False)
    mean_L = loads_LE.sum(axis=1) / sizes.num_gpus
    of_two_L = np.divide(bound_of_replicas(loads_LE, sizes, 2), mean_L, out=np.zeros_like(mean_L), where=mean_L > 0)
    kinds = tuple("coverage" if higher else kind for kind, higher in zip(binding, of_two_L > bound_L, strict=True))
    return np.maximum(bound_L, of_two_L), kinds


def _solve(loads_LE: Floats, sizes: Sizes, domains: Domains, bound_L: Floats, effort: Effort) -> tuple[Ints, Ints]:
    """Return slots `[L, G, S]`, and which layers are covered."""
    num_experts = loads_LE.shape[1]
    if holds_everything(sizes, num_experts):
        slots_LGS = slots_of_everything(len(loads_LE), sizes, num_experts)
        return slots_LGS, np.ones(len(loads_LE), dtype=np.int64)
    mean_L = loads_LE.sum(axis=1) / sizes.num_gpus
    slots_LGS, covered_L = solve_covered(loads_LE, sizes, domains, mean_L * bound_L * GOOD_ENOUGH, effort)
    return slots_LGS, covered_L.astype(np.int64)


def _renew(
    loads_LE: Floats,
    previous_LGS: Ints,
    fresh_LGS: Ints,
    sizes: Sizes,
    keep_within: float,
    domains: Domains,
    effort: Effort,
) -> Ints:
    """Return the previous map with only the changes for coverage and the fresh map's balance; else the fresh map."""
    if holds_everything(sizes, loads_LE.shape[1]):
        return align(fresh_LGS, previous_LGS)
    enough_L = fullest_in_whole_numbers(loads_LE, fresh_LGS) * (1 + keep_within)
    near_LGS, covered_L = solve_covered(
        loads_LE, sizes, domains, enough_L, effort, part_repeats(loads_LE, previous_LGS)
    )
    is_near_L = covered_L & (fullest_in_whole_numbers(loads_LE, near_LGS) <= enough_L)
    return align(np.where(is_near_L[:, None, None], near_LGS, fresh_LGS), previous_LGS)
