"""A map for new loads beside the one in service: as even as a fresh map, with few slots changed.

Every slot that gets another expert costs a copy of its weights, over the network, beside the traffic. So the search
starts from the map in service and stops as soon as it is even enough. A layer that is good enough as it is stays. Where
nothing near it is, the layer gets the fresh map, whose nodes and GPUs are numbered anew so that most stays where it is.

Places have prices: nothing where the expert is, one elsewhere, and more away from its group's node if groups may be
split. The search gains as much as it can for them.

The order of slots inside a GPU does not count: moving nothing between GPUs moves no weights.
"""

from dataclasses import replace
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from planner.expert_map import native
from planner.expert_map.domains import count_uncovered
from planner.expert_map.front import homes_of_groups
from planner.expert_map.hierarchy import eplb_fullest
from planner.expert_map.native import BARRED, Prices, Search
from planner.expert_map.problem import Problem
from planner.expert_map.types import Sizes
from planner.expert_map.weigh import Floats, Ints, as_rows

__all__ = ["align", "match", "part_repeats", "prices_within_nodes", "renew", "search_windows"]

Flags = NDArray[np.bool_]
ROUNDING = 1e-9  # EPLB's loads are not rounded down to whole numbers, ours are
KICKS = 600  # assumed, as what the benchmark's goals of moves and of time leave room for; 300 left a layer in 150 out
FEW_SETS = 10  # of ways to choose the windows that count; assumed
AWAY = 2  # slots that one on another node counts as
KICKS_IF_SLOW = 40  # where more than one window, failure domains or another split are looked at


def renew(
    problem: Problem,
    previous_LGS: Ints,
    fresh_LGS: Ints,
    keep_within: float,
    *,
    within_nodes: bool,
    keeps_groups_whole: bool,
) -> Ints:
    """Return slots `[L, G, S]`; what is kept stays in its slot.

    A layer is good enough when it is as even as the fresh map, but for the share `keep_within`. With one window it may
    also be only as even as the published EPLB would make it, for equal shares and without failure domains: that is what
    others would have, and costs fewer moves. A layer that is not covered, or splits a group where groups stay whole, is
    never good enough.

    `within_nodes`: experts stay on the nodes that they are on. If they may leave them, it is where nothing else helps.
    """
    sizes, loads_LE = problem.sizes, problem.mean_loads
    enough_L = problem.ratio(fresh_LGS)
    if len(problem.counted) == 1 and not problem.holds_everything:
        eplb_L = eplb_fullest(loads_LE, sizes, within_nodes=within_nodes)
        enough_L = np.maximum(enough_L, eplb_L / np.where(problem.gpu_mean > 0, problem.gpu_mean, 1.0))
    enough_L = enough_L * (1 + ROUNDING) * (1 + keep_within)

    def is_enough(slots_LGS: Ints) -> Flags:
        is_even_L = problem.ratio(slots_LGS) <= enough_L * (1 + ROUNDING)
        is_covered_L = [
            not problem.domains or not count_uncovered([row], problem.domains) for row in as_rows(slots_LGS)
        ]
        is_whole_L = not keeps_groups_whole or _groups_are_whole(slots_LGS, sizes, loads_LE.shape[1])
        return is_even_L & is_covered_L & is_whole_L

    choices = [previous_LGS, fresh_LGS]
    if not problem.holds_everything:  # else repeats cannot be parted
        num_nodes = sizes.num_nodes if within_nodes or problem.split != "equal" else 1
        start_LGS = part_repeats(loads_LE, previous_LGS, num_nodes)
        near_LGS = _search_near(problem, start_LGS, enough_L, within_nodes and not keeps_groups_whole, within_nodes)
        matched_LGS = np.stack([match(*each, num_nodes) for each in zip(fresh_LGS, previous_LGS, strict=True)])
        choices[1:1] = [near_LGS, matched_LGS]
    slots_LGS = choices.pop()
    for each in reversed(choices):
        slots_LGS = np.where(is_enough(each)[:, None, None], each, slots_LGS)
    return align(slots_LGS, previous_LGS)


def _search_near(problem: Problem, start_LGS: Ints, enough_L: Floats, may_split: bool, within_nodes: bool) -> Ints:
    """Return slots `[L, G, S]` near the start. Where groups may be split, an expert away from its group costs more."""
    may_spill = may_split and problem.is_plain
    prices_LEG = 1 - _find_holders(problem, start_LGS).astype(np.uint8)
    if may_spill:
        homes_LE = homes_of_groups(problem.mean_loads, start_LGS, problem.sizes)
        nodes_G = np.arange(problem.sizes.num_gpus) // (problem.sizes.num_gpus // problem.sizes.num_nodes)
        prices_LEG[(homes_LE[..., None] != nodes_G) & (prices_LEG > 0)] = AWAY
    elif within_nodes:
        prices_LEG = np.maximum(prices_LEG, prices_within_nodes(problem, start_LGS))
    search = Search(
        enough_L=enough_L * problem.gpu_mean,
        num_kicks=0 if may_spill else KICKS if problem.is_plain else KICKS_IF_SLOW,
        prices_LEG=prices_LEG,
        may_reseat=problem.is_plain and not within_nodes,
    )
    return search_windows(problem, start_LGS, search)


def search_windows(problem: Problem, start_LGS: Ints, search: Search) -> Ints:
    """Return better maps, slots `[L, G, S]`, for the windows that count.

    For a quantile only some windows count: those where the start is most even, or another set. The best map is kept.
    """
    search = replace(search, num_nodes=problem.sizes.num_nodes, split=problem.split, domains=problem.domains)
    loads_LWE = problem.counted.swapaxes(0, 1)
    if problem.num_counted == loads_LWE.shape[1]:
        return native.improve(loads_LWE, start_LGS, search)[0]
    best_LGS, best_L = start_LGS, problem.ratio(start_LGS)
    rising_LW = problem.ratios(start_LGS, problem.counted).argsort(axis=0, kind="stable").T
    for chosen_LK in (rising_LW[:, : problem.num_counted], *_sets_of_windows(loads_LWE, problem.num_counted)):
        slots_LGS, _ = native.improve(np.take_along_axis(loads_LWE, chosen_LK[..., None], axis=1), start_LGS, search)
        reached_L = problem.ratio(slots_LGS)
        best_LGS = np.where((reached_L < best_L)[:, None, None], slots_LGS, best_LGS)
        best_L = np.minimum(reached_L, best_L)
        if (best_L * problem.gpu_mean <= search.enough_L).all():
            break
    return best_LGS


def _sets_of_windows(loads_LWE: Floats, num_counted: int) -> list[Ints]:
    """Return sets of windows that may count, `[L, num_counted]` each: all where they are few, else neighbours.

    Neighbours are the windows most like the one or the other window.
    """
    num_layers, num_windows, _ = loads_LWE.shape
    if comb(num_windows, num_counted) <= FEW_SETS:
        return [np.tile(each, (num_layers, 1)) for each in combinations(range(num_windows), num_counted)]
    distances = [np.abs(loads_LWE - loads_LWE[:, [each]]).sum(axis=2) for each in range(num_windows)]
    return [np.sort(each.argsort(axis=1, kind="stable")[:, :num_counted], axis=1) for each in distances]


def _find_holders(problem: Problem, slots_LGS: Ints) -> Flags:
    """Return which experts each GPU holds, `[L, E, G]`."""
    held_LEG = np.zeros((len(slots_LGS), problem.mean_loads.shape[1], problem.sizes.num_gpus), np.bool_)
    layers, gpus = np.ogrid[: len(slots_LGS), : problem.sizes.num_gpus]
    held_LEG[layers[..., None], slots_LGS, gpus[..., None]] = True
    return held_LEG


def prices_within_nodes(problem: Problem, slots_LGS: Ints) -> Prices:
    """Return prices that let experts go to the GPUs of nodes that they are on, and nowhere else, `[L, E, G]`."""
    num_nodes = problem.sizes.num_nodes
    per_node = problem.sizes.num_gpus // num_nodes
    held_LEG = _find_holders(problem, slots_LGS)
    on_LEM = held_LEG.reshape(*held_LEG.shape[:2], num_nodes, per_node).any(axis=3)
    return np.where(np.repeat(on_LEM, per_node, axis=2), 0, BARRED).astype(np.uint8)


def _groups_are_whole(slots_LGS: Ints, sizes: Sizes, num_experts: int) -> Flags:
    """Return for each layer whether every node holds only its own number of groups, `[L]`."""
    groups = slots_LGS.reshape(len(slots_LGS), sizes.num_nodes, -1) // (num_experts // sizes.num_groups)
    num_held = (np.diff(np.sort(groups, axis=2), axis=2) > 0).sum(axis=2) + 1
    is_whole_L: Flags = (num_held == sizes.num_groups // sizes.num_nodes).all(axis=1)
    return is_whole_L


def part_repeats(loads_LE: Floats, slots_LGS: Ints, num_nodes: int = 1) -> Ints:
    """Return the same map without an expert twice on a GPU: the hottest of its node that the GPU lacks takes the slot.

    Where a GPU holds all experts of its node, it is the hottest of all others.
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


def match(fresh_GS: Ints, previous_GS: Ints, num_nodes: int) -> Ints:
    """Return the fresh map with its nodes, and the GPUs of each node, in the order that leaves most where it is."""
    num_experts = int(max(fresh_GS.max(), previous_GS.max())) + 1
    fresh = fresh_GS.reshape(num_nodes, -1, fresh_GS.shape[1])
    previous = previous_GS.reshape(fresh.shape)
    nodes = _most_alike(fresh.reshape(num_nodes, -1), previous.reshape(num_nodes, -1), num_experts)
    gpus = [fresh[node][_most_alike(fresh[node], previous[place], num_experts)] for place, node in enumerate(nodes)]
    return np.concatenate(gpus)


def _most_alike(rows: Ints, places: Ints, num_experts: int) -> Ints:
    """Return the row for each place, `[places]`: the pair with most experts in common is matched first."""
    held = [np.stack([np.bincount(row, minlength=num_experts) for row in each]) > 0 for each in (rows, places)]
    common = held[1].astype(np.int64) @ held[0].T.astype(np.int64)
    chosen = np.zeros(len(places), dtype=np.int64)
    for _ in range(len(places)):
        place, row = np.unravel_index(common.argmax(), common.shape)
        chosen[place] = row
        common[place, :] = common[:, row] = -1
    return chosen


def align(slots_LGS: Ints, previous_LGS: Ints) -> Ints:
    """Return the same experts on each GPU, in the slots where it held them before if it did."""
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
