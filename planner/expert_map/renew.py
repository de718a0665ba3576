"""Renew the map in service for new loads: as even as a fresh map, with few slots changed.

Every slot that gets another expert costs a copy of its weights over the network, beside the traffic. So the search
starts from the map in service and stops as soon as the map is even enough. A layer that is even enough does not change.
If the search finds no map nearby, the layer gets the fresh map, with nodes and GPUs renumbered so that most experts
stay in place.

Each expert has a price on each GPU: 0 on GPUs that hold it, 1 on others, and more away from its group's node if groups
may be split. The search weighs the load that a step takes off the fullest GPU against these prices.

The order of slots inside a GPU does not count, because it moves no weights.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.expert_map import native
from planner.expert_map.domains import count_uncovered
from planner.expert_map.front import find_home_nodes
from planner.expert_map.hierarchy import compute_eplb_peaks
from planner.expert_map.native import BARRED, Prices, Search
from planner.expert_map.problem import Problem
from planner.expert_map.types import Sizes
from planner.expert_map.weigh import Floats, Ints, as_rows

Flags = NDArray[np.bool_]
ROUNDING = 1e-9  # our loads are rounded down to whole numbers, EPLB's are not
KICKS = 600  # assumed: chosen to meet the benchmark's goals for moves and time; with 300, 1 layer in 150 missed them
AWAY_PRICE = 2  # of an expert away from its group's node
KICKS_IF_SLOW = 40  # with failure domains or another split rule, because kicks then take longer


def renew(
    problem: Problem,
    previous_LGS: Ints,
    fresh_LGS: Ints,
    keep_within: float,
    *,
    within_nodes: bool,
    keeps_groups_whole: bool,
) -> Ints:
    """Return the renewed map, slots `[L, G, S]`. An expert that stays on a GPU keeps its slot there.

    For each layer these maps are tried in turn, and the first acceptable one is taken: the previous map, a map near it,
    the fresh map with its GPUs renumbered. If none is acceptable, the fresh map is taken. A layer is acceptable if its
    max over mean is at most `1 + keep_within` times the fresh map's. With an equal split and without failure domains, a
    layer as even as the published EPLB's map is even enough too, which costs fewer moves. A layer is not acceptable if
    an expert lacks its second failure domain, or a group that must stay whole is split.

    With `within_nodes` experts stay on their nodes, and leave them only if nothing else helps.
    """
    sizes, loads_LE = problem.sizes, problem.loads_LE
    target_L = problem.ratio(fresh_LGS)
    if not problem.gpus_hold_all_experts:
        eplb_L = compute_eplb_peaks(loads_LE, sizes, within_nodes=within_nodes)
        target_L = np.maximum(target_L, eplb_L / np.where(problem.mean_gpu_load > 0, problem.mean_gpu_load, 1.0))
    target_L = target_L * (1 + ROUNDING) * (1 + keep_within)

    def is_acceptable(slots_LGS: Ints) -> Flags:
        is_even_L: Flags = problem.ratio(slots_LGS) <= target_L * (1 + ROUNDING)
        return is_even_L & _meets_constraints(problem, slots_LGS, keeps_groups_whole)

    choices = [previous_LGS, fresh_LGS]
    if not problem.gpus_hold_all_experts:  # else repeats cannot be removed
        start_LGS = remove_repeats(loads_LE, previous_LGS, _num_matched_nodes(problem, within_nodes))
        near_LGS = _search_near(problem, start_LGS, target_L, within_nodes and not keeps_groups_whole, within_nodes)
        choices[1:1] = [near_LGS, _match_all(problem, fresh_LGS, previous_LGS, within_nodes)]
    slots_LGS = choices.pop()
    for each in reversed(choices):
        slots_LGS = np.where(is_acceptable(each)[:, None, None], each, slots_LGS)
    return align_slots(slots_LGS, previous_LGS)


def keep_or_replace(
    problem: Problem,
    previous_LGS: Ints,
    fresh_LGS: Ints,
    keep_within: float,
    *,
    within_nodes: bool,
    keeps_groups_whole: bool,
) -> Ints:
    """Return all of the previous map, or else the fresh map for all layers, slots `[L, G, S]`.

    The previous map is kept while its max over mean, averaged over layers, is at most `1 + keep_within` times the
    fresh map's. The fresh map's GPUs are renumbered so that most experts stay where they are.
    """
    most = problem.ratio(fresh_LGS).mean() * (1 + keep_within) * (1 + ROUNDING)
    meets_constraints = _meets_constraints(problem, previous_LGS, keeps_groups_whole).all()
    if meets_constraints and problem.ratio(previous_LGS).mean() <= most:
        return previous_LGS
    matched_LGS = _match_all(problem, fresh_LGS, previous_LGS, within_nodes)
    is_as_good_L = problem.ratio(matched_LGS) <= problem.ratio(fresh_LGS) * (1 + ROUNDING)
    is_as_good_L &= _meets_constraints(problem, matched_LGS, keeps_groups_whole)
    return align_slots(np.where(is_as_good_L[:, None, None], matched_LGS, fresh_LGS), previous_LGS)


def _meets_constraints(problem: Problem, slots_LGS: Ints, keeps_groups_whole: bool) -> Flags:
    """Return whether each layer's experts are in two failure domains and its groups whole, where required, `[L]`."""
    is_covered_L = [not problem.domains or not count_uncovered([row], problem.domains) for row in as_rows(slots_LGS)]
    is_whole_L = not keeps_groups_whole or _groups_are_whole(slots_LGS, problem.sizes, problem.loads_LE.shape[1])
    return np.array(is_covered_L) & is_whole_L


def _num_matched_nodes(problem: Problem, within_nodes: bool) -> int:
    """Return the number of parts inside which renumbering may swap GPUs: the nodes, or 1 if it may swap any two."""
    return problem.sizes.num_nodes if within_nodes or problem.split != "equal" else 1


def _match_all(problem: Problem, fresh_LGS: Ints, previous_LGS: Ints, within_nodes: bool) -> Ints:
    num_nodes = _num_matched_nodes(problem, within_nodes)
    return np.stack([match_gpus(*each, num_nodes) for each in zip(fresh_LGS, previous_LGS, strict=True)])


def _search_near(problem: Problem, start_LGS: Ints, target_L: Floats, may_split: bool, within_nodes: bool) -> Ints:
    """Return a map near the start, slots `[L, G, S]`, whose max/mean the search brings down to `target_L` if it can.

    If groups may be split, experts off their home node cost more. With `within_nodes`, experts stay on their nodes.
    """
    may_spill = may_split and problem.is_plain
    prices_LEG = 1 - _find_holders(problem, start_LGS).astype(np.uint8)
    if may_spill:
        homes_LE = find_home_nodes(problem.loads_LE, start_LGS, problem.sizes)
        nodes_G = np.arange(problem.sizes.num_gpus) // (problem.sizes.num_gpus // problem.sizes.num_nodes)
        prices_LEG[(homes_LE[..., None] != nodes_G) & (prices_LEG > 0)] = AWAY_PRICE
    elif within_nodes:
        prices_LEG = np.maximum(prices_LEG, prices_within_nodes(problem, start_LGS))
    search = Search(
        target_L=target_L * problem.mean_gpu_load,
        num_kicks=0 if may_spill else KICKS if problem.is_plain else KICKS_IF_SLOW,
        prices_LEG=prices_LEG,
        may_reseat=problem.is_plain and not within_nodes,
    )
    return search_from(problem, start_LGS, search)


def search_from(problem: Problem, start_LGS: Ints, search: Search) -> Ints:
    """Return for each layer a map that is no worse than the start, slots `[L, G, S]`."""
    search = replace(search, num_nodes=problem.sizes.num_nodes, split=problem.split, domains=problem.domains)
    return native.improve(problem.loads_LE, start_LGS, search)[0]


def _find_holders(problem: Problem, slots_LGS: Ints) -> Flags:
    """Return whether each expert has a slot on each GPU, `[L, E, G]`."""
    held_LEG = np.zeros((len(slots_LGS), problem.loads_LE.shape[1], problem.sizes.num_gpus), np.bool_)
    layers, gpus = np.ogrid[: len(slots_LGS), : problem.sizes.num_gpus]
    held_LEG[layers[..., None], slots_LGS, gpus[..., None]] = True
    return held_LEG


def prices_within_nodes(problem: Problem, slots_LGS: Ints) -> Prices:
    """Return prices that bar experts from nodes where they have no slot in the map, `[L, E, G]`."""
    num_nodes = problem.sizes.num_nodes
    per_node = problem.sizes.num_gpus // num_nodes
    held_LEG = _find_holders(problem, slots_LGS)
    on_LEM = held_LEG.reshape(*held_LEG.shape[:2], num_nodes, per_node).any(axis=3)
    return np.where(np.repeat(on_LEM, per_node, axis=2), 0, BARRED).astype(np.uint8)


def _groups_are_whole(slots_LGS: Ints, sizes: Sizes, num_experts: int) -> Flags:
    """Return for each layer whether all groups are whole on a node, `[L]`."""
    groups = slots_LGS.reshape(len(slots_LGS), sizes.num_nodes, -1) // (num_experts // sizes.num_groups)
    num_held = (np.diff(np.sort(groups, axis=2), axis=2) > 0).sum(axis=2) + 1
    is_whole_L: Flags = (num_held == sizes.num_groups // sizes.num_nodes).all(axis=1)
    return is_whole_L


def remove_repeats(loads_LE: Floats, slots_LGS: Ints, num_nodes: int = 1) -> Ints:
    """Return the map with no expert twice on a GPU, `[L, G, S]`.

    The second slot goes to the hottest expert that the GPU lacks. Experts that the GPU's node already holds are
    preferred.
    """
    parted, gpus_per_node = slots_LGS.copy(), slots_LGS.shape[1] // num_nodes
    for index, gpu in np.argwhere((np.diff(np.sort(parted, axis=2), axis=2) == 0).any(axis=2)):
        slots = parted[index, gpu]
        for slot in range(1, len(slots)):
            if slots[slot] in slots[:slot]:
                counts = np.bincount(parted[index].ravel(), minlength=loads_LE.shape[1])
                loads, first = loads_LE[index] / np.maximum(counts, 1), gpu // gpus_per_node * gpus_per_node
                lacking = np.setdiff1d(parted[index, first : first + gpus_per_node], slots)
                if lacking.size == 0:
                    lacking = np.setdiff1d(np.arange(len(loads)), slots)
                slots[slot] = lacking[loads[lacking].argmax()]
    return parted


def match_gpus(fresh_GS: Ints, previous_GS: Ints, num_nodes: int) -> Ints:
    """Return a layer's fresh map, `[G, S]`, with nodes and their GPUs reordered so that most experts stay in place."""
    num_experts = int(max(fresh_GS.max(), previous_GS.max())) + 1
    fresh = fresh_GS.reshape(num_nodes, -1, fresh_GS.shape[1])
    previous = previous_GS.reshape(fresh.shape)
    nodes = _most_alike(fresh.reshape(num_nodes, -1), previous.reshape(num_nodes, -1), num_experts)
    gpus = [fresh[node][_most_alike(fresh[node], previous[place], num_experts)] for place, node in enumerate(nodes)]
    return np.concatenate(gpus)


def _most_alike(rows: Ints, places: Ints, num_experts: int) -> Ints:
    """Return the number of the row for each place, `[places]`. Rows and places are lists of experts.

    A row and a place with most experts in common are matched first.
    """
    held = [np.stack([np.bincount(row, minlength=num_experts) for row in each]) > 0 for each in (rows, places)]
    common = held[1].astype(np.int64) @ held[0].T.astype(np.int64)
    chosen = np.zeros(len(places), dtype=np.int64)
    for _ in range(len(places)):
        place, row = np.unravel_index(common.argmax(), common.shape)
        chosen[place] = row
        common[place, :] = common[:, row] = -1
    return chosen


def align_slots(slots_LGS: Ints, previous_LGS: Ints) -> Ints:
    """Return the map with the experts on each GPU reordered, `[L, G, S]`.

    Experts that stay on their GPU keep their slots.
    """
    aligned = slots_LGS.copy()
    for index, gpu in np.argwhere((slots_LGS != previous_LGS).any(axis=2)):
        coming = slots_LGS[index, gpu].tolist()
        freed = []
        for slot, expert in enumerate(previous_LGS[index, gpu].tolist()):
            if expert in coming:
                coming.remove(expert)
                aligned[index, gpu, slot] = expert
            else:
                freed.append(slot)
        aligned[index, gpu, freed] = coming
    return aligned
