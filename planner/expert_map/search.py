"""The way to a good map: `replicate`, `pack`, `even_out`, all layers at once, until it is near the bound.

With effort `fast` once, as EPLB would count the replicas. With `refined` again, from other numbers of replicas, for the
layers that are not good enough yet: the best of each layer is kept and evened out for longer.
"""

from collections.abc import Sequence

import numpy as np

from planner.expert_map.balance import Effort, ExpertMap, Policy, Sizes
from planner.expert_map.bound import bind
from planner.expert_map.exchange import even_out
from planner.expert_map.hierarchy import choose_policy, experts_of_nodes
from planner.expert_map.pack import pack
from planner.expert_map.replicate import replicate
from planner.expert_map.weigh import Floats, Ints, gpu_loads, max_over_mean, replica_weights, scale

__all__ = ["search"]

GOOD_ENOUGH = 1.0008  # times the bound: what is left is less than the loads change between two steps
SHIFTS = (0.0, -0.5, -0.25, 0.25)  # of `replicate`; EPLB's first. Tried at EP72 and EP144, alpha 0.6 to 1.2
FIRST_ROUNDS = 4
MORE_ROUNDS = 64


def search(loads: Sequence[Sequence[float]] | Floats, sizes: Sizes, effort: Effort, policy: Policy) -> ExpertMap:
    """See `balance`."""
    loads_LE = scale(loads)
    chosen, reason = choose_policy(sizes, policy)
    within_nodes = chosen == "hierarchical"
    solve = _solve_hierarchical if within_nodes else _solve_global
    slots_LGS = solve(loads_LE, sizes, effort)
    bound_L, binding = bind(loads_LE, sizes, within_nodes=within_nodes)
    return ExpertMap(
        num_logical_experts=loads_LE.shape[1],
        physical_to_logical=tuple(map(tuple, slots_LGS.reshape(len(loads_LE), -1).tolist())),
        max_over_mean=tuple(max_over_mean(loads_LE, slots_LGS).round(6).tolist()),
        bound=tuple((np.floor(bound_L * 1e6) / 1e6).tolist()),
        binding=binding,
        policy=chosen,
        policy_reason=reason,
    )


def _solve_hierarchical(loads_LE: Floats, sizes: Sizes, effort: Effort) -> Ints:
    """Slots `[L, G, S]` with whole groups on nodes: each node of each layer is a problem of its own."""
    num_layers, num_experts = loads_LE.shape
    groups_LP = loads_LE.reshape(num_layers, sizes.num_groups, -1).sum(axis=2)
    groups_LMP = pack(groups_LP, np.ones(groups_LP.shape, dtype=np.int64), sizes.num_nodes)
    even_out(groups_LP, groups_LMP, np.zeros(num_layers), FIRST_ROUNDS)
    experts_LMF = experts_of_nodes(groups_LMP, num_experts, sizes.num_groups)
    nodes_KF = experts_LMF.reshape(num_layers * sizes.num_nodes, -1)
    loads_KF = np.repeat(loads_LE, sizes.num_nodes, axis=0)[np.arange(len(nodes_KF))[:, None], nodes_KF]
    node_sizes = Sizes(sizes.num_slots // sizes.num_nodes, sizes.num_gpus // sizes.num_nodes)
    local_KGS = _solve_global(loads_KF, node_sizes, effort)
    slots_KN = np.take_along_axis(nodes_KF, local_KGS.reshape(len(nodes_KF), -1), axis=1)
    return slots_KN.reshape(num_layers, sizes.num_gpus, sizes.slots_per_gpu)


def _solve_global(loads_LE: Floats, sizes: Sizes, effort: Effort) -> Ints:
    """Slots `[L, G, S]`, any expert on any GPU."""
    num_experts = loads_LE.shape[1]
    rounds, rest = divmod(sizes.slots_per_gpu, num_experts)
    if rounds:  # every GPU holds every expert, some for nothing: no other way to fill the slots
        slots = np.arange(rounds * num_experts + rest) % num_experts
        return np.tile(slots, (len(loads_LE), sizes.num_gpus, 1))
    bound_L, _ = bind(loads_LE, sizes, within_nodes=False)
    good_enough_L = loads_LE.sum(axis=1) / sizes.num_gpus * bound_L * GOOD_ENOUGH
    if effort == "fast":
        return _pack_evenly(loads_LE, sizes.num_slots, good_enough_L, 0.0, sizes.num_gpus)[1]
    return _refine(loads_LE, sizes.num_slots, good_enough_L, sizes.num_gpus)[1]


def _refine(loads_LE: Floats, num_slots: int, good_enough_L: Floats, num_gpus: int) -> tuple[Floats, Ints]:
    """The best of several numbers of replicas in each layer, evened out: weights `[L, E]`, slots `[L, G, S]`."""
    weights_LE, slots_LGS = _pack_evenly(loads_LE, num_slots, good_enough_L, SHIFTS[0], num_gpus)
    fullest_L = gpu_loads(weights_LE, slots_LGS).max(axis=1)
    for shift in SHIFTS[1:]:
        layers = np.flatnonzero(fullest_L > good_enough_L)
        if not layers.size:
            break
        weights, slots = _pack_evenly(loads_LE[layers], num_slots, good_enough_L[layers], shift, num_gpus)
        fullest = gpu_loads(weights, slots).max(axis=1)
        better = fullest < fullest_L[layers]
        chosen = layers[better]
        weights_LE[chosen], slots_LGS[chosen], fullest_L[chosen] = weights[better], slots[better], fullest[better]
    even_out(weights_LE, slots_LGS, good_enough_L, MORE_ROUNDS)
    return weights_LE, slots_LGS


def _pack_evenly(
    loads_LE: Floats, num_slots: int, good_enough_L: Floats, shift: float, num_gpus: int
) -> tuple[Floats, Ints]:
    counts_LE = replicate(loads_LE, num_slots, num_gpus, shift)
    weights_LE = replica_weights(loads_LE, counts_LE)
    slots_LGS = pack(weights_LE, counts_LE, num_gpus)
    even_out(weights_LE, slots_LGS, good_enough_L, FIRST_ROUNDS)
    return weights_LE, slots_LGS
