"""One map for all layers: what may go where, the search, and what came out of it.

`global` puts any expert on any GPU. `hierarchical` keeps groups on nodes (`hierarchy`) and then searches each node of
each layer by itself. `auto` keeps groups on nodes where that can be.
"""

from collections.abc import Sequence

import numpy as np

from planner.expert_map.balance import Effort, ExpertMap, Policy, Sizes
from planner.expert_map.bound import bind
from planner.expert_map.hierarchy import choose_policy, experts_of_nodes
from planner.expert_map.moves import count_moves
from planner.expert_map.renew import renew
from planner.expert_map.search import solve
from planner.expert_map.weigh import Floats, Ints, max_over_mean, scale

__all__ = ["make_map"]

GOOD_ENOUGH = 1.0008  # times the bound: what is left is less than the loads change between two steps


def make_map(
    loads: Sequence[Sequence[float]] | Floats,
    sizes: Sizes,
    effort: Effort,
    policy: Policy,
    previous: Sequence[Sequence[int]] | None = None,
    keep_within: float = 0.0,
) -> ExpertMap:
    """See `balance`."""
    loads_LE = scale(loads)
    chosen, reason = choose_policy(sizes, policy)
    within_nodes = chosen == "hierarchical"
    bound_L, binding = bind(loads_LE, sizes, within_nodes=within_nodes)
    solve_policy = _solve_hierarchical if within_nodes else _solve_global
    slots_LGS = solve_policy(loads_LE, sizes, bound_L, effort)
    moved_slots = None
    if previous is not None:
        previous_LGS = np.array(previous, dtype=np.int64).reshape(slots_LGS.shape)
        slots_LGS = renew(loads_LE, previous_LGS, slots_LGS, sizes, keep_within, within_nodes=within_nodes)
        moved_slots = count_moves(slots_LGS, previous_LGS, loads_LE.shape[1])
    return ExpertMap(
        num_logical_experts=loads_LE.shape[1],
        physical_to_logical=tuple(map(tuple, slots_LGS.reshape(len(loads_LE), -1).tolist())),
        max_over_mean=tuple(max_over_mean(loads_LE, slots_LGS).round(6).tolist()),
        bound=tuple((np.floor(bound_L * 1e6) / 1e6).tolist()),
        binding=binding,
        policy=chosen,
        policy_reason=reason,
        moved_slots=moved_slots,
    )


def _solve_global(loads_LE: Floats, sizes: Sizes, bound_L: Floats, effort: Effort) -> Ints:
    """Slots `[L, G, S]`, any expert on any GPU."""
    num_experts = loads_LE.shape[1]
    if sizes.slots_per_gpu >= num_experts:  # every GPU holds every expert, some for nothing: no other way to fill them
        slots = np.arange(sizes.slots_per_gpu) % num_experts
        return np.tile(slots, (len(loads_LE), sizes.num_gpus, 1))
    mean_L = loads_LE.sum(axis=1) / sizes.num_gpus
    return solve(loads_LE, sizes.num_gpus, sizes.slots_per_gpu, mean_L * bound_L * GOOD_ENOUGH, effort)


def _solve_hierarchical(loads_LE: Floats, sizes: Sizes, bound_L: Floats, effort: Effort) -> Ints:
    """Slots `[L, G, S]` with whole groups on nodes: each node of each layer is a problem of its own."""
    num_layers, num_experts = loads_LE.shape
    groups_LP = loads_LE.reshape(num_layers, sizes.num_groups, -1).sum(axis=2)
    ones_L = np.ones(num_layers)
    group_sizes = Sizes(sizes.num_groups, sizes.num_nodes)
    groups_LMP = _solve_global(groups_LP, group_sizes, ones_L, effort)
    experts_LMF = experts_of_nodes(groups_LMP, num_experts, sizes.num_groups)
    loads_LMF = np.take_along_axis(loads_LE[:, None], experts_LMF, axis=2)
    mean_L = loads_LE.sum(axis=1) / sizes.num_gpus
    node_mean_LM = loads_LMF.sum(axis=2) / (sizes.num_gpus // sizes.num_nodes)
    # a lighter node need not be more even than the heaviest can be
    bound_LM = np.maximum(node_mean_LM, (mean_L * bound_L)[:, None]) / np.where(node_mean_LM > 0, node_mean_LM, 1.0)
    node_sizes = Sizes(sizes.num_slots // sizes.num_nodes, sizes.num_gpus // sizes.num_nodes)
    nodes_KF = experts_LMF.reshape(-1, experts_LMF.shape[2])
    local_KGS = _solve_global(loads_LMF.reshape(nodes_KF.shape), node_sizes, bound_LM.ravel(), effort)
    slots_KN = np.take_along_axis(nodes_KF, local_KGS.reshape(len(nodes_KF), -1), axis=1)
    return slots_KN.reshape(num_layers, sizes.num_gpus, sizes.slots_per_gpu)
