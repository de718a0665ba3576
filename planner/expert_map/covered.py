"""A map in which no expert goes dark when one failure domain dies: each has replicas in two domains at least.

A domain is what dies as one: a node, or a rack. Which GPUs stand together is told by partitions, `[P, G]`: the number
of the domain of each GPU. There are several when units that share a map stand in racks differently; an expert is
covered when its replicas are in two domains of every partition.

The way is that of `search`, with a constraint: two replicas for every expert and the others to the hottest (`pack`
places them), exchanges until every expert is covered (`_cover`), then swaps and hand-overs that relieve the fullest GPU
and leave every expert covered (`_descend`), and kicks. Where the exchanges do not get there the layer starts from the
experts one after the other, twice over (`_deal`): two replicas are then as many slots apart as there are experts, so
that no domain of consecutive GPUs with at most half of the slots holds both.

    slots >= 2 E and, outside of any domain, slots >= E      needed, and enough for one partition (`domains`)
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.expert_map.compiled import compiled
from planner.expert_map.layer import Layer, copy, fullest, hand_over, keep, new_layer, swap, take
from planner.expert_map.order import rising
from planner.expert_map.pack import pack
from planner.expert_map.replicate import replicate
from planner.expert_map.search import SEED, kick
from planner.expert_map.types import Effort, Sizes
from planner.expert_map.weigh import Floats, Ints

__all__ = ["bound_of_replicas", "solve_covered"]

NONE = -1
NUM_KICKS = 40  # tried 24 to 400 at EP144 with 576 slots, alpha 1.01: mean max over mean 1.011 to 1.004
KICK_CHANGES = 6  # assumed; with 4 small maps stayed more than 5 % above the best
LARGE_KICK = 144 * 1152 * 8**2  # GPUs x slots x (slots a GPU)^2, beyond which a kick takes longer than it is worth
ROUNDING = 1e-9


def solve_covered(
    loads_LE: Floats,
    sizes: Sizes,
    domains: Sequence[Sequence[int]],
    enough_L: Floats,
    effort: Effort,
    start_LGS: Ints | None = None,
) -> tuple[Ints, NDArray[np.bool_]]:
    """Return slots `[L, G, S]`, and in which layers every expert is covered. Effort `fast` makes no kicks.

    With `start_LGS`, only the few slots change that coverage and `enough_L` ask for.
    """
    is_large = sizes.num_gpus * sizes.num_slots * sizes.slots_per_gpu**2 > LARGE_KICK
    num_kicks = 0 if is_large or effort == "fast" or start_LGS is not None else NUM_KICKS
    start = np.zeros((0, 0, 0), np.int64) if start_LGS is None else start_LGS
    domains_PG = np.array(domains, dtype=np.int64)
    return _solve(loads_LE, sizes.num_gpus, sizes.slots_per_gpu, domains_PG, enough_L, start, num_kicks)


def bound_of_replicas(loads_LE: Floats, sizes: Sizes, least: int = 1) -> Floats:
    """Return a lower bound on the fullest GPU's load, `[L]`: the largest replica, at `least` replicas or more each."""
    return _largest_replicas(loads_LE, sizes.num_slots, sizes.num_gpus, least) * (1 - ROUNDING)


@compiled
def _largest_replicas(loads_LE: Floats, num_slots: int, num_gpus: int, least: int) -> Floats:
    largest_L = np.zeros(loads_LE.shape[0])
    for index in range(loads_LE.shape[0]):
        largest_L[index] = (loads_LE[index] / replicate(loads_LE[index], num_slots, num_gpus, 0.0, least)).max()
    return largest_L


@compiled
def _solve(
    loads_LE: Floats,
    num_gpus: int,
    slots_per_gpu: int,
    domains: Ints,
    enough_L: Floats,
    start_LGS: Ints,
    num_kicks: int,
) -> tuple[Ints, NDArray[np.bool_]]:
    slots_LGS = np.zeros((loads_LE.shape[0], num_gpus, slots_per_gpu), np.int64)
    covered_L = np.zeros(loads_LE.shape[0], np.bool_)
    for index in range(loads_LE.shape[0]):
        layer = new_layer(loads_LE[index], num_gpus, slots_per_gpu)
        if start_LGS.shape[0] > 0:
            take(layer, start_LGS[index])
        else:
            pack(layer, replicate(layer.loads, num_gpus * slots_per_gpu, num_gpus, 0.0, 2))
        covered_L[index] = _cover(layer, domains)
        if not covered_L[index]:
            _deal(layer, domains)
            covered_L[index] = _cover(layer, domains)
        if covered_L[index]:
            _descend(layer, domains, enough_L[index])
            _kick_on(layer, domains, enough_L[index], num_kicks)
        keep(layer, slots_LGS, index)
    return slots_LGS, covered_L


@compiled
def _kick_on(best: Layer, domains: Ints, enough: float, num_kicks: int) -> None:
    state = np.array([SEED], np.uint64)
    trial = new_layer(best.loads, best.slots.shape[0], best.slots.shape[1])
    copy(trial, best)
    for _ in range(num_kicks):
        reached = best.carried.max()
        if reached <= enough:
            return
        kick(trial, state, KICK_CHANGES)
        if _cover(trial, domains) and _descend(trial, domains, enough) <= reached:
            copy(best, trial)
        else:
            copy(trial, best)


@compiled
def _num_exposed(layer: Layer, domains: Ints, expert: int, leaves: int, enters: int) -> int:
    """Return in how many partitions all replicas of `expert` would be in one domain, after one moved between two GPUs.

    The replica moves from GPU `leaves` to GPU `enters`. Either may be NONE: then a replica only goes, or only comes.
    """
    _, counts, _, _, _, homes, _ = layer
    num_exposed = 0
    for partition in range(domains.shape[0]):
        first, apart = NONE if enters == NONE else domains[partition, enters], False
        for home in homes[expert, : counts[expert]]:
            if home != leaves:
                domain = domains[partition, home]
                apart = apart or (first != NONE and domain != first)
                first = domain
        num_exposed += not apart
    return num_exposed


@compiled
def _cover(layer: Layer, domains: Ints) -> bool:
    """Exchange or hand over slots until every expert is covered; return whether that succeeded."""
    for expert in range(layer.loads.size):
        exposed = _num_exposed(layer, domains, expert, NONE, NONE)
        while exposed > 0:
            if not _cover_one(layer, domains, expert, exposed):
                return False
            exposed = _num_exposed(layer, domains, expert, NONE, NONE)
    return True


@compiled
def _cover_one(layer: Layer, domains: Ints, expert: int, exposed: int) -> bool:
    """Cover `expert` by the step that uncovers nobody and changes GPU loads least; return whether there was one."""
    _, counts, weights, slots, held, homes, _ = layer
    best_gpu, best_slot, best_home, least = NONE, NONE, NONE, np.inf
    for gpu in range(slots.shape[0]):
        if held[expert, gpu]:
            continue
        for slot in range(slots.shape[1]):
            other = slots[gpu, slot]
            change = abs(weights[expert] - weights[other])
            if change >= least:
                continue
            others_exposed = _num_exposed(layer, domains, other, NONE, NONE)
            for home in homes[expert, : counts[expert]]:
                if (
                    not held[other, home]
                    and _num_exposed(layer, domains, expert, home, gpu) < exposed
                    and _num_exposed(layer, domains, other, gpu, home) <= others_exposed
                ):
                    best_gpu, best_slot, best_home, least = gpu, slot, home, change
                    break
            gives = counts[other] > 2 and _num_exposed(layer, domains, other, gpu, NONE) <= others_exposed
            if least > change and gives and _num_exposed(layer, domains, expert, NONE, gpu) < exposed:
                best_gpu, best_slot, best_home, least = gpu, slot, NONE, change
    if best_gpu == NONE:
        return False
    if best_home == NONE:
        hand_over(layer, expert, best_gpu, best_slot)
        return True
    for slot in range(slots.shape[1]):
        if slots[best_home, slot] == expert:
            swap(layer, best_home, slot, best_gpu, best_slot)
            break
    return True


@compiled
def _deal(layer: Layer, domains: Ints) -> None:
    """Deal the experts out one after the other, again and again, to the GPUs in the order of their domains."""
    slots = np.zeros_like(layer.slots)
    order = rising(domains[0] * 1.0)
    for place in range(order.size):
        for slot in range(slots.shape[1]):
            slots[order[place], slot] = (place * slots.shape[1] + slot) % layer.loads.size
    take(layer, slots)


@compiled
def _descend(layer: Layer, domains: Ints, enough: float) -> float:
    """Relieve the fullest GPU until it carries `enough`, or no step that keeps coverage helps; return its load."""
    while True:
        hot = fullest(layer)
        if layer.carried[hot] <= enough:
            return float(layer.carried[hot])
        gpu, slot, other_slot, least = _best_swap(layer, domains, hot)
        expert, handed_gpu, handed_slot, handed_least = _best_hand_over(layer, domains, hot, least)
        if handed_least < least:
            hand_over(layer, expert, handed_gpu, handed_slot)
        elif gpu != NONE:
            swap(layer, hot, slot, gpu, other_slot)
        else:
            return float(layer.carried[hot])


@compiled
def _best_swap(layer: Layer, domains: Ints, hot: int) -> tuple[int, int, int, float]:
    """Return the other GPU, the two slots, and the load of the fuller of the two GPUs after that swap."""
    _, _, weights, slots, held, _, carried = layer
    best_gpu, best_slot, best_other, least = NONE, NONE, NONE, carried[hot]
    for gpu in range(slots.shape[0]):
        if carried[gpu] >= least:
            continue
        for slot in range(slots.shape[1]):
            leaving = slots[hot, slot]
            if held[leaving, gpu]:
                continue
            for other_slot in range(slots.shape[1]):
                coming = slots[gpu, other_slot]
                moved = weights[leaving] - weights[coming]
                fuller = max(carried[hot] - moved, carried[gpu] + moved)
                if (
                    fuller < least
                    and not held[coming, hot]
                    and _num_exposed(layer, domains, leaving, hot, gpu) == 0
                    and _num_exposed(layer, domains, coming, gpu, hot) == 0
                ):
                    best_gpu, best_slot, best_other, least = gpu, slot, other_slot, fuller
    return best_gpu, best_slot, best_other, least


@compiled
def _best_hand_over(layer: Layer, domains: Ints, hot: int, least: float) -> tuple[int, int, int, float]:
    """Return the expert that takes a slot, the GPU, the slot, and the highest load on the GPUs touched.

    Either an expert of the hot GPU takes a slot elsewhere, or any expert takes a slot of the hot GPU. The expert that
    gives up the slot keeps at least two others.
    """
    loads, counts, weights, slots, held, homes, carried = layer
    best, best_gpu, best_slot = NONE, NONE, NONE
    for gpu in range(slots.shape[0]):
        for slot in range(slots.shape[1]):
            giver = slots[gpu, slot]
            if counts[giver] < 3:
                continue
            heavier = np.floor(loads[giver] / (counts[giver] - 1)) - weights[giver]
            elsewhere = 0.0
            for home in homes[giver, : counts[giver]]:
                if home != gpu:
                    elsewhere = max(elsewhere, carried[home] + heavier)
            if elsewhere >= least or _num_exposed(layer, domains, giver, gpu, NONE) > 0:
                continue
            for number in range(loads.size if gpu == hot else slots.shape[1]):
                expert = number if gpu == hot else slots[hot, number]
                if held[expert, gpu]:
                    continue
                weight = np.floor(loads[expert] / (counts[expert] + 1))
                fuller = max(elsewhere, carried[gpu] - weights[giver] + weight)
                if gpu != hot:
                    lighter = weights[expert] - weight
                    fuller = max(fuller, carried[hot] - lighter + held[giver, hot] * heavier)
                if fuller < least:
                    best, best_gpu, best_slot, least = expert, gpu, slot, fuller
    return best, best_gpu, best_slot, least
