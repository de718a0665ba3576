"""Make the map: what may go where, the search, the map in service, and what came out of it.

A fresh map is made in two steps. First one for the mean of all windows and equal shares. `global` puts any expert on
any GPU. `hierarchical` keeps groups on nodes (`hierarchy`) and searches each node of each layer by itself. `auto` keeps
groups on nodes where that can be. With effort `refined` it weighs balance against the dispatch bytes that cross nodes:
maps of whole groups, those that give a few hot experts a replica on a second node, and the global one stand on one
front, of which it takes the knee (`front`). Where experts must survive the loss of a failure domain, groups do not stay
on nodes, because a group on one node would go dark with it.

Then the search goes on from there under what else was asked for: several windows, failure domains, a split rule. So the
map for a window is never worse than the map for the mean. With a map in service, `renew` follows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.expert_map import native
from planner.expert_map.bound import bind, bind_windows
from planner.expert_map.domains import count_uncovered
from planner.expert_map.front import front_of, knee, undominated
from planner.expert_map.hierarchy import choose_policy, experts_of_nodes, fullest_node_bound
from planner.expert_map.native import Search
from planner.expert_map.problem import Problem
from planner.expert_map.renew import on_their_nodes, renew
from planner.expert_map.types import BoundKind, Effort, ExpertMap, FrontPoint, Policy, Sizes, WindowsOutcome
from planner.expert_map.weigh import (
    Floats,
    Ints,
    as_bounds,
    as_ratios,
    as_rows,
    count_moves,
    holds_everything,
    slots_of_everything,
)

__all__ = ["make_map"]

GOOD_ENOUGH = 1.0008  # times the bound: what is left is less than the loads change between two steps
LEVELS = (1.04, 1.02, 1.01, 1.005)  # of max over mean, of the maps on the front
COVERED = "replicas of each expert are in two failure domains"
# How long is searched: assumed, as what the benchmark's goals of balance and of time leave room for.
BETTER_THAN_EPLB = 1e-3  # where effort `fast` stops
NUM_STARTS = 4
KICKS_AT_EP72 = 128
EP72_PAIRS = 72 * 288
FEWER_KICKS = 2.7  # the power of size by which a larger map gets fewer
MAX_KICKS = 400
KICKS_IF_SMALL, SMALL_PAIRS = 1200, 128
KICKS_ON = 40  # of the second step. Failure domains, EP144, 576 slots: 10, 24, 40 reach 1.031, 1.011, 1.006
KICKS_NEAR = 6  # where tokens choose near replicas, which takes five times as long to count
LARGE_KICK = 144 * 1152 * 8**2  # GPUs x slots x (slots a GPU)^2, beyond which a kick takes longer than it is worth


@dataclass(frozen=True)
class _Found:
    """A fresh map, and how it came about."""

    slots_LGS: Ints
    bound_L: Floats
    binding: tuple[BoundKind, ...]
    policy: Policy
    reason: str
    front: tuple[FrontPoint, ...] = ()  # where groups could be split
    dispatch: FrontPoint | None = None

    @property
    def within_nodes(self) -> bool:
        """Whether experts are on few nodes, and stay there."""
        return self.policy == "hierarchical"

    @property
    def keeps_groups_whole(self) -> bool:
        """Whether each group of experts is on one node. A map that has a front may split some."""
        return self.within_nodes and not self.front


def make_map(problem: Problem, previous_LGS: Ints | None = None, keep_within: float = 0.0) -> ExpertMap:
    """Return the map for `problem`; see `balance`."""
    first = _first_map(problem)
    bound_L, binding = _bind(problem, first)
    slots_LGS, moved_slots, dispatch = _go_on(problem, first, bound_L), None, first.dispatch
    if previous_LGS is not None:
        nodes = {"within_nodes": first.within_nodes, "keeps_groups_whole": first.keeps_groups_whole}
        slots_LGS = renew(problem, previous_LGS, slots_LGS, keep_within, **nodes)
        moved_slots = count_moves(slots_LGS, previous_LGS)
    if dispatch is not None and slots_LGS is not first.slots_LGS:
        (dispatch,) = front_of(problem.mean_loads, slots_LGS[None], problem.sizes, (first.policy,))
    rows = as_rows(slots_LGS)
    return ExpertMap(
        num_logical_experts=problem.mean_loads.shape[1],
        physical_to_logical=rows,
        max_over_mean=as_ratios(problem.ratio(slots_LGS)),
        bound=as_bounds(bound_L),
        binding=binding,
        policy=first.policy,
        policy_reason=first.reason,
        is_covered=bool(problem.domains) and count_uncovered(rows, problem.domains) == 0,
        split=problem.split,
        moved_slots=moved_slots,
        front=first.front,
        dispatch=dispatch,
        windows=_outcome(problem, first, slots_LGS) if len(problem.loads_WLE) > 1 else None,
    )


def _outcome(problem: Problem, first: _Found, slots_LGS: Ints) -> WindowsOutcome:
    """Return what the map reaches in each window, and what any map could."""
    is_whole = first.keeps_groups_whole
    bounds = [as_bounds(bind(each, problem.sizes, within_nodes=is_whole)[0]) for each in problem.loads_WLE]
    ratios = tuple(as_ratios(each) for each in problem.ratios(slots_LGS))
    return WindowsOutcome(problem.quantile, ratios, tuple(bounds), as_ratios(problem.ratio(first.slots_LGS)))


def _first_map(problem: Problem) -> _Found:
    """Return a map for the mean loads and equal shares; with failure domains, a packing with two replicas of each."""
    loads_LE, sizes = problem.mean_loads, problem.sizes
    if problem.domains:
        slots_LGS = native.pack(loads_LE, sizes.num_gpus, sizes.slots_per_gpu, least=2)
        if holds_everything(sizes, loads_LE.shape[1]):
            slots_LGS = slots_of_everything(len(loads_LE), sizes, loads_LE.shape[1])
        return _Found(slots_LGS, np.ones(len(loads_LE)), (), "global", COVERED)
    policy, reason = choose_policy(sizes, problem.policy)
    within_nodes = policy == "hierarchical"
    # where a node has no fewer slots a GPU than experts, its GPUs hold all of them and balance by themselves
    is_crowded = sizes.slots_per_gpu * sizes.num_nodes < loads_LE.shape[1]
    may_spill = within_nodes and is_crowded and (problem.policy, problem.effort) == ("auto", "refined")
    may_spill &= problem.split == "equal"  # else a replica on another node does not take the load meant for it
    bound_L, binding = bind(loads_LE, sizes, within_nodes=within_nodes and not may_spill)
    if may_spill:
        slots_LGS, front, chosen = _solve_weighing(loads_LE, sizes, bound_L)
        reason += _why_not_whole(front, chosen)
        return _Found(slots_LGS, bound_L, binding, chosen.policy, reason, front, chosen)
    solve = _solve_hierarchical if within_nodes else _solve_global
    return _Found(solve(loads_LE, sizes, bound_L, problem.effort), bound_L, binding, policy, reason)


def _bind(problem: Problem, first: _Found) -> tuple[Floats, tuple[BoundKind, ...]]:
    """Return the bound of any map for the problem, `[L]`, and its kinds."""
    if problem.is_plain:
        return first.bound_L, first.binding
    is_whole = first.keeps_groups_whole
    if len(problem.loads_WLE) > 1:
        return bind_windows(problem.loads_WLE, problem.sizes, problem.num_counted, within_nodes=is_whole)
    are_covered = bool(problem.domains)
    return bind(problem.mean_loads, problem.sizes, within_nodes=is_whole, are_covered=are_covered, split=problem.split)


def _go_on(problem: Problem, first: _Found, bound_L: Floats) -> Ints:
    """Return the map after the second step, slots `[L, G, S]`."""
    sizes = problem.sizes
    if problem.is_plain or holds_everything(sizes, problem.mean_loads.shape[1]):
        return first.slots_LGS
    kicks = KICKS_ON if problem.split == "equal" else KICKS_NEAR
    is_large = sizes.num_gpus * sizes.num_slots * sizes.slots_per_gpu**2 > LARGE_KICK
    search = Search(
        enough_L=bound_L * GOOD_ENOUGH * problem.gpu_mean,
        num_kicks=0 if is_large or problem.effort == "fast" else kicks,
        num_nodes=sizes.num_nodes,
        split=problem.split,
        allowed_LEG=on_their_nodes(problem, first.slots_LGS) if first.within_nodes else None,
        domains=problem.domains,
        num_counted=problem.num_counted,
    )
    return native.improve(problem.loads_WLE.swapaxes(0, 1), first.slots_LGS, search)[0]


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
    return _solve(loads_LE, sizes.num_gpus, sizes.slots_per_gpu, mean_L * bound_L * GOOD_ENOUGH, effort)


def _solve(loads_LE: Floats, num_gpus: int, per_gpu: int, enough_L: Floats, effort: Effort) -> Ints:
    """Return slots `[L, G, S]`, searched for as long as the size allows."""
    if effort == "fast":
        return native.solve(loads_LE, num_gpus, per_gpu, enough_L, 1, 0, BETTER_THAN_EPLB)
    num_pairs = num_gpus * num_gpus * per_gpu  # of a GPU and a slot: what one step looks at grows with them
    max_kicks = KICKS_IF_SMALL if num_pairs <= SMALL_PAIRS else MAX_KICKS
    num_kicks = min(int(KICKS_AT_EP72 * (EP72_PAIRS / num_pairs) ** FEWER_KICKS), max_kicks)
    num_starts = NUM_STARTS if num_pairs <= EP72_PAIRS else 2 if num_kicks else 1
    return native.solve(loads_LE, num_gpus, per_gpu, enough_L, num_starts, num_kicks, 0.0)


def _solve_weighing(loads_LE: Floats, sizes: Sizes, bound_L: Floats) -> tuple[Ints, tuple[FrontPoint, ...], FrontPoint]:
    """Return slots `[L, G, S]` at the knee of the front; the front, with whole groups first; and the knee."""
    whole_L = np.maximum(bound_L, fullest_node_bound(loads_LE, sizes))
    whole_LGS = _solve_hierarchical(loads_LE, sizes, whole_L, "fast")
    mean_L = loads_LE.sum(axis=1) / sizes.num_gpus
    levels_QL = np.maximum(np.array(LEVELS)[:, None], bound_L * GOOD_ENOUGH) * mean_L
    spilled_QLGS = native.spill(loads_LE, whole_LGS, levels_QL, sizes.num_nodes)
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
