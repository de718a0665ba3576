"""Make an expert map: choose a policy, search, and change as little as possible of the map in service.

A fresh map is made in two steps. The first step makes a map for tokens that are split equally among replicas.
Policy `global` puts any expert on any GPU. `hierarchical` keeps groups on nodes (`hierarchy`) and searches each node of
each layer by itself. `auto` keeps groups on nodes if they fit. With effort `refined`, `auto` weighs balance against the
dispatch bytes between nodes: it takes the knee of a front (`front`) of maps with whole groups, maps with a few hot
experts on a second node, and the global map. If experts must survive the loss of a failure domain, groups do not stay
on nodes, because a group on one node would be lost with the node.

The second step searches on from that map for failure domains or another split rule. If a map is in service, `renew`
changes it towards the fresh one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.expert_map import native
from planner.expert_map.bound import compute_bounds
from planner.expert_map.domains import count_uncovered
from planner.expert_map.front import drop_dominated, find_knee, make_front
from planner.expert_map.hierarchy import choose_policy, fullest_node_bound, split_by_node, sum_groups
from planner.expert_map.native import Search
from planner.expert_map.problem import Problem
from planner.expert_map.renew import keep_or_replace, prices_within_nodes, renew, search_from
from planner.expert_map.types import BoundKind, Effort, ExpertMap, FrontPoint, Policy, Sizes
from planner.expert_map.weigh import (
    Floats,
    Ints,
    as_rows,
    count_replicas,
    make_full_map,
    round_bounds_down,
    round_ratios,
)

GOOD_ENOUGH = 1.0008  # a map within this factor of the bound is done: loads change by more between two steps
ROUNDING = 1e-9
LEVELS = (1.04, 1.02, 1.01, 1.005)  # max over mean to reach by the maps on the front
COVERED = "replicas of each expert are in two failure domains"
# How starts differ in numbers of replicas (`start.h`); tried at EP72 and EP144, with alpha from 0.6 to 1.2.
SHIFTS = (0.0, -0.5, -0.25, 0.25)
KICK_STARTS = (
    None,
    None,
    SHIFTS[2],
    None,
)  # a round of kicks starts at the best map (None) or at a packing with a shift
# The search's length is assumed: chosen to meet the benchmark's goals for balance and time.
BETTER_THAN_EPLB = 1e-3  # effort `fast` stops once a layer is better than EPLB's by this share
KICKS_AT_EP72 = 240
EP72_PAIRS = 72 * 288
KICKS_POWER = 3.6  # a map of n times the size gets n^3.6 times fewer kicks
MAX_KICKS = 400
KICKS_IF_SMALL, SMALL_PAIRS = 1200, 128
RESCUES, RESCUE_KICKS = 12, 40  # a rescue that does not help soon may never help
SECOND_STEP_KICKS = 40  # with failure domains, EP144, 576 slots: 10, 24, 40 kicks reach 1.031, 1.011, 1.006
LOCAL_SPLIT_KICKS = 6  # if tokens prefer near replicas, because a kick then takes five times as long
MAX_KICK_SIZE = 144 * 1152 * 8**2  # GPUs x slots x (slots per GPU)^2, above which a kick is not worth its time


@dataclass(frozen=True)
class _FreshMap:
    """The map of the first step, which ignores the map in service, and how it was made."""

    slots_LGS: Ints
    bound_L: Floats
    binding: tuple[BoundKind, ...]
    policy: Policy
    reason: str
    front: tuple[FrontPoint, ...] = ()  # maps to choose from, if groups could be split
    dispatch: FrontPoint | None = None

    @property
    def within_nodes(self) -> bool:
        """Whether later steps must keep experts on their nodes."""
        return self.policy == "hierarchical"

    @property
    def keeps_groups_whole(self) -> bool:
        """Whether each group of experts is on one node. A map from a front may split some groups."""
        return self.within_nodes and not self.front


def make_map(
    problem: Problem, previous_LGS: Ints | None = None, keep_within: float = 0.0, *, as_a_whole: bool = False
) -> ExpertMap:
    """Return the expert map for `problem`. For the arguments see `balance`."""
    first = _first_map(problem)
    bound_L, binding = _compute_bounds(problem, first)
    fresh_LGS, moved_slots, dispatch = _search_further(problem, first, bound_L), None, first.dispatch
    slots_LGS = fresh_LGS
    if previous_LGS is not None:
        nodes = {"within_nodes": first.within_nodes, "keeps_groups_whole": first.keeps_groups_whole}
        choose = keep_or_replace if as_a_whole else renew
        slots_LGS = choose(problem, previous_LGS, fresh_LGS, keep_within, **nodes)
        moved_slots = int((slots_LGS != previous_LGS).sum())
    if dispatch is not None and slots_LGS is not first.slots_LGS:
        (dispatch,) = make_front(problem.loads_LE, slots_LGS[None], problem.sizes, (first.policy,))
    rows = as_rows(slots_LGS)
    return ExpertMap(
        num_logical_experts=problem.loads_LE.shape[1],
        physical_to_logical=rows,
        max_over_mean=round_ratios(problem.ratio(slots_LGS)),
        bound=round_bounds_down(bound_L),
        binding=binding,
        policy=first.policy,
        policy_reason=first.reason,
        is_covered=bool(problem.domains) and count_uncovered(rows, problem.domains) == 0,
        split=problem.split,
        moved_slots=moved_slots,
        front=first.front,
        dispatch=dispatch,
    )


def _first_map(problem: Problem) -> _FreshMap:
    """Return the map of the first step.

    With failure domains it is only a packing with at least two replicas of each expert, or the map with all experts on
    each GPU.
    """
    loads_LE, sizes = problem.loads_LE, problem.sizes
    if problem.domains:
        slots_LGS = native.pack(loads_LE, sizes, least=2)[0]
        if problem.gpus_hold_all_experts:
            slots_LGS = make_full_map(len(loads_LE), sizes, loads_LE.shape[1])
        return _FreshMap(slots_LGS, np.ones(len(loads_LE)), (), "global", COVERED)
    policy, reason = choose_policy(sizes, problem.policy)
    within_nodes = policy == "hierarchical"
    # else each GPU has a slot for every expert of its node, and the node is balanced without a search
    is_crowded = sizes.slots_per_gpu * sizes.num_nodes < loads_LE.shape[1]
    may_spill = within_nodes and is_crowded and (problem.policy, problem.effort) == ("auto", "refined")
    may_spill &= problem.split == "equal"  # else a replica on another node takes a load that was not planned
    bound_L, binding = compute_bounds(loads_LE, sizes, within_nodes=within_nodes and not may_spill)
    if may_spill:
        slots_LGS, front, chosen = _solve_front(loads_LE, sizes, bound_L)
        reason += _explain_split_groups(front, chosen)
        return _FreshMap(slots_LGS, bound_L, binding, chosen.policy, reason, front, chosen)
    solve = _solve_hierarchical if within_nodes else _solve_global
    return _FreshMap(solve(loads_LE, sizes, bound_L, problem.effort), bound_L, binding, policy, reason)


def _compute_bounds(problem: Problem, first: _FreshMap) -> tuple[Floats, tuple[BoundKind, ...]]:
    """Return the lower bound on max over mean for `problem`, `[L]`, and its kind in each layer."""
    if problem.is_plain:
        return first.bound_L, first.binding
    is_whole = first.keeps_groups_whole
    are_covered = bool(problem.domains)
    return compute_bounds(
        problem.loads_LE, problem.sizes, within_nodes=is_whole, are_covered=are_covered, split=problem.split
    )


def _search_further(problem: Problem, first: _FreshMap, bound_L: Floats) -> Ints:
    """Return the slots `[L, G, S]` of the better map that a search from the first step's map finds.

    The first step's map is final for a plain problem, or if GPUs hold all experts. The search stops in a layer whose
    max/mean is near `bound_L`, its lower bound.
    """
    sizes = problem.sizes
    if problem.is_plain or problem.gpus_hold_all_experts:
        return first.slots_LGS
    kicks = SECOND_STEP_KICKS if problem.split == "equal" else LOCAL_SPLIT_KICKS
    is_large = sizes.num_gpus * sizes.num_slots * sizes.slots_per_gpu**2 > MAX_KICK_SIZE
    search = Search(
        target_L=bound_L * GOOD_ENOUGH * problem.mean_gpu_load,
        num_kicks=0 if is_large or problem.effort == "fast" else kicks,
        prices_LEG=prices_within_nodes(problem, first.slots_LGS) if first.within_nodes else None,
    )
    return search_from(problem, first.slots_LGS, search)


def _explain_split_groups(front: Sequence[FrontPoint], chosen: FrontPoint) -> str:
    if chosen == front[0]:
        return ""
    what = "no group does" if chosen.policy == "global" else "some experts have a replica on a second node"
    return (
        f"; {what}: max/mean {chosen.max_over_mean:.4f} instead of {front[0].max_over_mean:.4f} for "
        f"{chosen.bytes_ratio - 1:.2%} more of them, the knee of the front"
    )


def _solve_global(loads_LE: Floats, sizes: Sizes, bound_L: Floats, effort: Effort) -> Ints:
    """Return a map with any expert on any GPU, slots `[L, G, S]`. Smaller sizes are searched longer.

    A layer is done when it is near the bound and no worse than EPLB's. With effort `fast` it is done as soon as it is
    better than EPLB's. Layers that are not done are searched again from starts with other numbers of replicas, and
    layers that stay worse than EPLB's a few more times.
    """
    num_layers, num_experts = loads_LE.shape
    if sizes.slots_per_gpu >= num_experts:
        return make_full_map(num_layers, sizes, num_experts)
    start_LGS, eplb_L = native.pack(loads_LE, sizes, as_eplb=True)
    has_twins_L = (np.diff(np.sort(start_LGS, axis=2), axis=2) == 0).any(axis=(1, 2))
    start_LGS[has_twins_L] = native.pack(loads_LE[has_twins_L], sizes)[0]
    eplb_L *= 1 + ROUNDING
    target_L = np.minimum(loads_LE.sum(axis=1) / sizes.num_gpus * bound_L * GOOD_ENOUGH, eplb_L)
    num_pairs = sizes.num_gpus * sizes.num_slots  # of a GPU and a slot; a step's time grows with their number
    max_kicks = KICKS_IF_SMALL if num_pairs <= SMALL_PAIRS else MAX_KICKS
    num_kicks = min(int(KICKS_AT_EP72 * (EP72_PAIRS / num_pairs) ** KICKS_POWER), max_kicks)
    num_starts = len(SHIFTS) if num_pairs <= EP72_PAIRS else 2 if num_kicks else 1
    if effort == "fast":
        target_L, num_kicks, num_starts = np.maximum(target_L, eplb_L * (1 - BETTER_THAN_EPLB)), 0, 1
    found = native.improve(loads_LE, start_LGS, Search(target_L))
    for shift in SHIFTS[1:num_starts]:
        _retry_layers(loads_LE, sizes, *found, Search(target_L), shift)
    kicks_left = num_kicks * num_layers
    for turn, start in enumerate(KICK_STARTS):  # the kicks of layers that are done go to the others
        num_open = max(int((found[1] > target_L).sum()), 1)
        kicks_per_layer = kicks_left // num_open // (2 if turn < len(KICK_STARTS) - 1 else 1)
        kicks_left -= kicks_per_layer * num_open
        if kicks_per_layer:
            _retry_layers(loads_LE, sizes, *found, Search(target_L, kicks_per_layer, turn), start)
    for turn in range(RESCUES):
        _retry_layers(loads_LE, sizes, *found, Search(eplb_L, RESCUE_KICKS, turn), SHIFTS[turn % len(SHIFTS)])
    return _repack(loads_LE, sizes, found[0]) if sizes.slots_per_gpu == 2 else found[0]


def _retry_layers(
    loads_LE: Floats, sizes: Sizes, slots_LGS: Ints, fullest_L: Floats, search: Search, shift: float | None = None
) -> None:
    """Search again in layers whose fullest GPU is above `search.target_L`, and write better maps into `slots_LGS`.

    The search starts from the layer's map or, with a `shift`, from a packing with that shift. `fullest_L` is updated.
    """
    (open_K,) = np.nonzero(fullest_L > search.target_L)
    if open_K.size:
        loads_KE = loads_LE[open_K]
        start_KGS = slots_LGS[open_K] if shift is None else native.pack(loads_KE, sizes, shift=shift)[0]
        again = replace(search, target_L=search.target_L[open_K])
        tried_KGS, tried_K = native.improve(loads_KE, start_KGS, again)
        is_better_K = tried_K < fullest_L[open_K]
        slots_LGS[open_K[is_better_K]], fullest_L[open_K[is_better_K]] = tried_KGS[is_better_K], tried_K[is_better_K]


def _repack(loads_LE: Floats, sizes: Sizes, slots_LGS: Ints) -> Ints:
    """Return a map with two slots per GPU, `[L, G, 2]`, in which the heaviest replicas share GPUs with the lightest.

    A layer stays as it is if new pairs would make its fullest GPU fuller.

    Of all pairings, the heaviest with the lightest leaves the least load on the fullest GPU, and on the two, three and
    more fullest together: of any four replicas, the heaviest with the lightest and the other two are the most even
    pairs. The less load the fullest GPUs have, the fewer slots change when loads drift.
    """
    pairs_LGS, _ = native.pack(loads_LE, sizes, replicas_LE=count_replicas(slots_LGS, loads_LE.shape[1]))
    fullest_L = [native.gpu_loads(loads_LE, each).max(axis=1) for each in (pairs_LGS, slots_LGS)]
    return np.where((fullest_L[0] <= fullest_L[1])[:, None, None], pairs_LGS, slots_LGS)


def _solve_front(loads_LE: Floats, sizes: Sizes, bound_L: Floats) -> tuple[Ints, tuple[FrontPoint, ...], FrontPoint]:
    """Return (the map at the front's knee, slots `[L, G, S]`; the front; the knee's point).

    The first point of the front is the map with whole groups.
    """
    whole_group_bound_L = np.maximum(bound_L, fullest_node_bound(loads_LE, sizes))
    whole_LGS = _solve_hierarchical(loads_LE, sizes, whole_group_bound_L, "fast")
    mean_L = loads_LE.sum(axis=1) / sizes.num_gpus
    levels_QL = np.maximum(np.array(LEVELS)[:, None], bound_L * GOOD_ENOUGH) * mean_L
    spilled_QLGS = native.spill(loads_LE, whole_LGS, levels_QL, sizes.num_nodes)
    slots_QLGS = np.concatenate((spilled_QLGS, _solve_global(loads_LE, sizes, bound_L, "refined")[None]))
    policies: list[Policy] = ["hierarchical" for _ in spilled_QLGS]
    points = make_front(loads_LE, slots_QLGS, sizes, [*policies, "global"])
    best = find_knee(points)
    return slots_QLGS[best], drop_dominated(points), points[best]


def _solve_hierarchical(loads_LE: Floats, sizes: Sizes, bound_L: Floats, effort: Effort) -> Ints:
    """Return a map with whole groups on nodes, slots `[L, G, S]`, by solving each node of each layer by itself."""
    groups_LMP = _solve_global(*sum_groups(loads_LE, sizes), np.ones(len(loads_LE)), effort)
    experts_LMF, loads_LMF, node_sizes = split_by_node(loads_LE, sizes, groups_LMP)
    mean_L = loads_LE.sum(axis=1) / sizes.num_gpus
    node_mean_LM = loads_LMF.sum(axis=2) / node_sizes.num_gpus
    # the lighter nodes may be as full as the heaviest must be
    bound_LM = np.maximum(node_mean_LM, (mean_L * bound_L)[:, None]) / np.where(node_mean_LM > 0, node_mean_LM, 1.0)
    nodes_KF = experts_LMF.reshape(-1, experts_LMF.shape[2])
    local_KGS = _solve_global(loads_LMF.reshape(nodes_KF.shape), node_sizes, bound_LM.ravel(), effort)
    slots_KN = np.take_along_axis(nodes_KF, local_KGS.reshape(len(nodes_KF), -1), axis=1)
    return slots_KN.reshape(len(loads_LE), sizes.num_gpus, sizes.slots_per_gpu)
