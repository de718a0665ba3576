"""Make a packing better: relieve the fullest GPU, again and again, while anything helps.

Each step makes the swap of one of its slots that leaves the fuller of the two GPUs emptiest. Where no swap helps, it
looks at all ways to hand a slot over that make it lighter: one of its experts gets a replica elsewhere, or one that has
replicas elsewhere leaves it. Swaps come first because they are found in a third of the time, and a search that kicks
gets as far by them. With four or five slots a GPU, where single swaps run out early, two slots are swapped for two when
nothing else helps. So the highest load only ever falls.

`even_out` comes first, because it is quick: GPUs pair up, the fullest with the emptiest, and every pair makes the swap
that leaves its two loads closest.
"""

import numpy as np

from planner.expert_map.compiled import compiled
from planner.expert_map.layer import Layer, fullest, hand_over, swap
from planner.expert_map.order import rising

__all__ = ["best_swap", "descend", "even_out"]

NONE = -1


@compiled
def even_out(layer: Layer, first_gpu: int, end_gpu: int, num_rounds: int) -> None:
    """Pair these GPUs and swap within each pair, `num_rounds` times."""
    num_gpus = end_gpu - first_gpu
    for _ in range(num_rounds):
        ranked = first_gpu + rising(layer.carried[first_gpu:end_gpu])
        for rank in range(num_gpus // 2):
            emptier, fuller = ranked[rank], ranked[num_gpus - 1 - rank]
            gpu, slot, other_slot, _ = best_swap(layer, fuller, emptier, emptier + 1)
            if gpu != NONE:
                swap(layer, fuller, slot, gpu, other_slot)


@compiled
def descend(layer: Layer, enough: float) -> float:
    """Relieve the fullest GPU until it carries `enough` or no step helps; return the load of the fullest."""
    while True:
        hot = fullest(layer)
        if layer.carried[hot] <= enough or not (_relieve(layer, hot) or _swap_two(layer, hot)):
            return float(layer.carried[hot])


@compiled
def _relieve(layer: Layer, hot: int) -> bool:
    """Make the best swap, or the best hand-over if no swap helps; return whether either did."""
    gpu, slot, other_slot, _ = best_swap(layer, hot, 0, layer.carried.size)
    if gpu != NONE:
        swap(layer, hot, slot, gpu, other_slot)
        return True
    replica, gpu, slot, least = _best_replica(layer, hot, layer.carried[hot])
    newcomer, left_slot = _best_newcomer(layer, hot, least)
    if newcomer != NONE:
        hand_over(layer, newcomer, hot, left_slot)
    elif replica != NONE:
        hand_over(layer, replica, gpu, slot)
    return newcomer != NONE or replica != NONE


# Each of these looks at one kind of step and returns the best: what it is, and what the fullest GPU touched then
# carries; only steps after which that is below `least` count. They unpack the layer once, for its fields are looked at
# in the innermost loops, and a layer that is handed on costs more than such a loop.


@compiled
def best_swap(layer: Layer, hot: int, first_gpu: int, end_gpu: int) -> tuple[int, int, int, float]:
    """Return the best swap with a GPU from `first_gpu` up to `end_gpu`: that GPU, both slots, the fuller one's load."""
    _, _, weights, slots, held, _, carried = layer
    best_gpu, best_slot, best_other, least = NONE, NONE, NONE, carried[hot]
    for gpu in range(first_gpu, end_gpu):
        if carried[hot] + carried[gpu] >= 2 * least:  # one of two carries at least half of both
            continue
        for slot in range(slots.shape[1]):
            leaving = slots[hot, slot]
            if held[leaving, gpu]:
                continue
            for other_slot in range(slots.shape[1]):
                coming = slots[gpu, other_slot]
                moved = weights[leaving] - weights[coming]
                fuller = max(carried[hot] - moved, carried[gpu] + moved)
                if fuller < least and not held[coming, hot]:
                    best_gpu, best_slot, best_other, least = gpu, slot, other_slot, fuller
    return best_gpu, best_slot, best_other, least


@compiled
def _best_replica(layer: Layer, hot: int, least: float) -> tuple[int, int, int, float]:
    """Return the best hand-over that gives an expert of the hot GPU another replica elsewhere.

    It is the expert, the GPU and the slot that it takes there from another expert, and the highest load that results.
    """
    loads, counts, weights, slots, held, homes, carried = layer
    best, best_gpu, best_slot = NONE, NONE, NONE
    lighter_weights, lightest, most_lighter = np.empty(slots.shape[1]), np.inf, 0.0
    for number in range(slots.shape[1]):
        expert = slots[hot, number]
        lighter_weights[number] = np.floor(loads[expert] / (counts[expert] + 1))
        lightest = min(lightest, lighter_weights[number])
        most_lighter = max(most_lighter, weights[expert] - lighter_weights[number])
    for gpu in range(slots.shape[0]):
        for slot in range(slots.shape[1]):
            giver = slots[gpu, slot]
            if counts[giver] == 1 or gpu == hot or carried[gpu] - weights[giver] + lightest >= least:
                continue
            heavier = np.floor(loads[giver] / (counts[giver] - 1)) - weights[giver]
            elsewhere = 0.0
            for replica in range(counts[giver]):
                home = homes[giver, replica]
                if home != gpu and home != hot:
                    elsewhere = max(elsewhere, carried[home])
            if elsewhere + heavier - most_lighter >= least:  # whoever of the hot GPU's is there as well
                continue
            for number in range(slots.shape[1]):
                expert, weight = slots[hot, number], lighter_weights[number]
                lighter = weights[expert] - weight
                here = carried[gpu] - weights[giver] + weight
                fuller = max(here, carried[hot] - lighter + held[giver, hot] * heavier)
                if fuller >= least or expert == giver or held[expert, gpu]:
                    continue
                for replica in range(counts[giver]):
                    home = homes[giver, replica]
                    if home != gpu and home != hot:
                        fuller = max(fuller, carried[home] + heavier - held[expert, home] * lighter)
                if fuller < least:
                    best, best_gpu, best_slot, least = expert, gpu, slot, fuller
    return best, best_gpu, best_slot, least


@compiled
def _best_newcomer(layer: Layer, hot: int, least: float) -> tuple[int, int]:
    """Return the best expert to take a slot of the hot GPU from one that has replicas elsewhere, and the slot."""
    loads, counts, weights, slots, held, homes, carried = layer
    best, best_slot = NONE, NONE
    for slot in range(slots.shape[1]):
        giver = slots[hot, slot]
        if counts[giver] == 1:
            continue
        heavier = np.floor(loads[giver] / (counts[giver] - 1)) - weights[giver]
        elsewhere = 0.0
        for replica in range(counts[giver]):
            home = homes[giver, replica]
            if home != hot:
                elsewhere = max(elsewhere, carried[home] + heavier)
        if elsewhere >= least:
            continue
        for expert in range(loads.size):
            weight = np.floor(loads[expert] / (counts[expert] + 1))
            fuller = max(elsewhere, carried[hot] - weights[giver] + weight)
            if fuller < least and expert != giver and not held[expert, hot]:
                best, best_slot, least = expert, slot, fuller
    return best, best_slot


@compiled
def _swap_two(layer: Layer, hot: int) -> bool:
    """Make the best swap of two slots for two, with four or five slots a GPU; return whether there was one."""
    _, _, weights, slots, held, _, carried = layer
    slots_per_gpu = slots.shape[1]
    best_gpu, best, least = NONE, (0, 0, 0, 0), carried[hot]
    there = np.empty(slots_per_gpu)
    for gpu in range(slots.shape[0] if slots_per_gpu in (4, 5) else 0):
        if carried[hot] + carried[gpu] >= 2 * least:
            continue
        for slot in range(slots_per_gpu):
            there[slot] = weights[slots[gpu, slot]]
        for first in range(slots_per_gpu):
            for second in range(first + 1, slots_per_gpu):
                one, two = slots[hot, first], slots[hot, second]
                leaving = weights[one] + weights[two]
                for third in range(slots_per_gpu):
                    for fourth in range(third):
                        moved = leaving - (there[third] + there[fourth])
                        if carried[hot] - moved >= least or carried[gpu] + moved >= least:
                            continue
                        three, four = slots[gpu, third], slots[gpu, fourth]
                        if held[one, gpu] or held[two, gpu] or held[three, hot] or held[four, hot]:
                            continue
                        best_gpu, best = gpu, (first, second, third, fourth)
                        least = max(carried[hot] - moved, carried[gpu] + moved)
    if best_gpu == NONE:
        return False
    first, second, third, fourth = best
    swap(layer, hot, first, best_gpu, third)
    swap(layer, hot, second, best_gpu, fourth)
    return True
