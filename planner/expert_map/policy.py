"""One map for all layers: what may go where, the search, and what came out of it.

`global` puts any expert on any GPU. `hierarchical` keeps groups on nodes (`hierarchy`) and then searches each node of
each layer by itself. `auto` keeps groups on nodes where that can be. With effort `refined` it weighs balance against
the dispatch bytes that cross nodes: maps of whole groups, those that give a few hot experts a replica on a second node
(`spill`), and the global one stand on one front, of which it takes the knee (`front`).
"""

from collections.abc import Sequence

import numpy as np

from planner.expert_map.bound import bind
from planner.expert_map.front import front_of, knee, undominated
from planner.expert_map.hierarchy import choose_policy, experts_of_nodes, fullest_node_bound
from planner.expert_map.moves import count_moves
from planner.expert_map.outcome import as_bounds, as_ratios, as_rows, holds_everything, slots_of_everything
from planner.expert_map.renew import renew
from planner.expert_map.search import solve
from planner.expert_map.spill import LEVELS, spill
from planner.expert_map.types import Effort, ExpertMap, FrontPoint, Policy, Sizes
from planner.expert_map.weigh import Floats, Ints, max_over_mean, scale

__all__ = ["make_map"]

GOOD_ENOUGH = 1.0008  # times the bound: what is left is less than the loads change between two steps


def make_map(
    loads_LE: Floats,
    sizes: Sizes,
    effort: Effort,
    policy: Policy,
    previous_LGS: Ints | None = None,
    keep_within: float = 0.0,
    *,
    may_spill: bool = True,
) -> ExpertMap:
    """Return the map; see `balance`.

    `may_spill`: tokens split equally, so that a replica on another node takes the load meant for it.
    """
    loads_LE = scale(loads_LE)
    chosen, reason = choose_policy(sizes, policy)
    within_nodes = chosen == "hierarchical"
    # where a node has no fewer slots a GPU than experts, its GPUs hold all of them and balance by themselves
    may_spill &= within_nodes and (policy, effort) == ("auto", "refined") and _is_crowded(loads_LE, sizes)
    bound_L, binding = bind(loads_LE, sizes, within_nodes=within_nodes and not may_spill)
    front: tuple[FrontPoint, ...] = ()
    dispatch = None
    if may_spill:
        slots_LGS, front, dispatch = _solve_weighing(loads_LE, sizes, bound_L)
        chosen, reason = dispatch.policy, reason + _why_not_whole(front, dispatch)
        within_nodes = may_spill = chosen == "hierarchical"
    else:
        solve_policy = _solve_hierarchical if within_nodes else _solve_global
        slots_LGS = solve_policy(loads_LE, sizes, bound_L, effort)
    moved_slots = None
    if previous_LGS is not None:
        slots_LGS = renew(
            loads_LE, previous_LGS, slots_LGS, sizes, keep_within, within_nodes=within_nodes, may_spill=may_spill
        )
        moved_slots = count_moves(slots_LGS, previous_LGS, loads_LE.shape[1])
        if dispatch is not None:
            (dispatch,) = front_of(loads_LE, slots_LGS[None], sizes, (chosen,))
    return ExpertMap(
        num_logical_experts=loads_LE.shape[1],
        physical_to_logical=as_rows(slots_LGS),
        max_over_mean=as_ratios(max_over_mean(loads_LE, slots_LGS)),
        bound=as_bounds(bound_L),
        binding=binding,
        policy=chosen,
        policy_reason=reason,
        moved_slots=moved_slots,
        front=front,
        dispatch=dispatch,
    )


def _is_crowded(loads_LE: Floats, sizes: Sizes) -> bool:
    return bool(sizes.slots_per_gpu * sizes.num_nodes < loads_LE.shape[1])


def _why_not_whole(front: Sequence[FrontPoint], chosen: FrontPoint) -> str:
    if chosen == front[0]:
        return ""
    what = "no group does" if chosen.policy == "global" else "some experts have a replica on a second node"
    return (
        f"; {what}: max/mean {chosen.max_over_mean:.4f} instead of {front[0].max_over_mean:.4f} for "
        f"{chosen.bytes_ratio - 1:.2%} more of them, the knee of the front"
    )


def _solve_global(loads_LE: Floats, sizes: Sizes, bound_L: Floats, effort: Effort) -> Ints:
    """Return slots `[L, G, S]`, with any expert on any GPU."""
    num_experts = loads_LE.shape[1]
    if holds_everything(sizes, num_experts):
        return slots_of_everything(len(loads_LE), sizes, num_experts)
    mean_L = loads_LE.sum(axis=1) / sizes.num_gpus
    return solve(loads_LE, sizes.num_gpus, sizes.slots_per_gpu, mean_L * bound_L * GOOD_ENOUGH, effort)


def _solve_weighing(loads_LE: Floats, sizes: Sizes, bound_L: Floats) -> tuple[Ints, tuple[FrontPoint, ...], FrontPoint]:
    """Return slots `[L, G, S]` at the knee of the front; the front, with whole groups first; and the knee."""
    whole_L = np.maximum(bound_L, fullest_node_bound(loads_LE, sizes))
    whole_LGS = _solve_hierarchical(loads_LE, sizes, whole_L, "fast")
    mean_L = loads_LE.sum(axis=1) / sizes.num_gpus
    levels_QL = np.maximum(np.array(LEVELS)[:, None], bound_L * GOOD_ENOUGH) * mean_L
    spilled_QLGS = spill(loads_LE, whole_LGS, levels_QL, sizes.num_nodes)
    slots_QLGS = np.concatenate((spilled_QLGS, _solve_global(loads_LE, sizes, bound_L, "refined")[None]))
    policies: list[Policy] = ["hierarchical" for _ in spilled_QLGS]
    points = front_of(loads_LE, slots_QLGS, sizes, [*policies, "global"])
    best = knee(points)
    return slots_QLGS[best], undominated(points), points[best]


def _solve_hierarchical(loads_LE: Floats, sizes: Sizes, bound_L: Floats, effort: Effort) -> Ints:
    """Return slots `[L, G, S]` with whole groups on nodes: each node of each layer is a problem of its own."""
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
