"""Choose a GPU for each replica: a good packing, not the best one. `descend` goes on from here.

Longest first: replicas in falling order of weight, each to the GPU that carries least so far, has a free slot and does
not hold the expert yet. Where every GPU with a free slot holds it, a full one that does not passes its most similar
expert on to make room.

Source: longest processing time first, R. L. Graham 1969; with equal counts, as in github.com/deepseek-ai/EPLB.
"""

import numpy as np

from planner.expert_map.compiled import compiled
from planner.expert_map.heap import put, sink
from planner.expert_map.layer import Layer, clear, rehome
from planner.expert_map.order import rising
from planner.expert_map.weigh import Floats, Ints

__all__ = ["pack", "swap_repeats"]


@compiled
def pack(layer: Layer, counts: Ints) -> None:
    """Place `counts` replicas of each expert, at most as many as there are GPUs."""
    clear(layer)
    for expert in range(counts.size):
        layer.counts[expert] = counts[expert]
        layer.weights[expert] = np.floor(layer.loads[expert] / counts[expert])
    filled = np.zeros(layer.carried.size, np.int64)
    heap, size = np.arange(filled.size), filled.size  # of the GPUs with room, but for those that just got the expert
    chosen = np.zeros(filled.size, np.int64)
    for expert in rising(-layer.weights):
        num_chosen = 0
        for replica in range(counts[expert]):
            if size == 0:
                gpu = _make_room(layer, filled, expert)
            else:
                gpu = heap[0]
                size -= 1
                heap[0] = heap[size]
                sink(heap, size, layer.carried)
                chosen[num_chosen] = gpu
                num_chosen += 1
                layer.slots[gpu, filled[gpu]] = expert
                filled[gpu] += 1
            layer.homes[expert, replica] = gpu
            layer.held[expert, gpu] = True
            layer.carried[gpu] += layer.weights[expert]
        for gpu in chosen[:num_chosen]:
            if filled[gpu] < layer.slots.shape[1]:
                put(heap, size, gpu, layer.carried)
                size += 1


@compiled
def _make_room(layer: Layer, filled: Ints, expert: int) -> int:
    """Free a slot of a GPU that lacks the expert, put the expert there and return the GPU.

    One exists, for no expert has more replicas than there are GPUs. It is full, and of its S experts at least two are
    not on the GPU with a free slot, which holds this one and at most S - 2 others.
    """
    num_gpus, slots_per_gpu = layer.slots.shape
    open_gpu = 0
    while filled[open_gpu] == slots_per_gpu:
        open_gpu += 1
    best_gpu, best_slot, least = -1, -1, np.inf
    for gpu in range(num_gpus):
        if layer.held[expert, gpu] or filled[gpu] < slots_per_gpu:
            continue
        for slot in range(slots_per_gpu):
            passed_on = layer.slots[gpu, slot]
            change = abs(layer.weights[passed_on] - layer.weights[expert])
            if change < least and not layer.held[passed_on, open_gpu]:
                best_gpu, best_slot, least = gpu, slot, change
    passed_on = layer.slots[best_gpu, best_slot]
    layer.slots[open_gpu, filled[open_gpu]] = passed_on
    filled[open_gpu] += 1
    rehome(layer, passed_on, best_gpu, open_gpu)
    layer.carried[best_gpu] -= layer.weights[passed_on]
    layer.carried[open_gpu] += layer.weights[passed_on]
    layer.slots[best_gpu, best_slot] = expert
    return best_gpu


@compiled
def swap_repeats(slots: Ints, loads: Floats, counts: Ints) -> bool:
    """Swap second replicas on a GPU, each for the most similar expert of a GPU that lacks it.

    Return whether none is left.
    """
    for gpu in range(slots.shape[0]):
        for slot in range(1, slots.shape[1]):
            if _holds(slots, gpu, slot, slots[gpu, slot]) and not _swap_away(slots, loads / counts, gpu, slot):
                return False
    return True


@compiled
def _swap_away(slots: Ints, weights: Floats, gpu: int, slot: int) -> bool:
    num_gpus, slots_per_gpu = slots.shape
    repeated = slots[gpu, slot]
    best_gpu, best_slot, least = -1, -1, np.inf
    for other_gpu in range(num_gpus):
        if _holds(slots, other_gpu, slots_per_gpu, repeated):
            continue
        for other_slot in range(slots_per_gpu):
            expert = slots[other_gpu, other_slot]
            change = abs(weights[expert] - weights[repeated])
            if change < least and not _holds(slots, gpu, slots_per_gpu, expert):
                best_gpu, best_slot, least = other_gpu, other_slot, change
    if best_gpu < 0:
        return False
    slots[gpu, slot], slots[best_gpu, best_slot] = slots[best_gpu, best_slot], repeated
    return True


@compiled
def _holds(slots: Ints, gpu: int, end: int, expert: int) -> bool:
    """Return whether one of the GPU's slots before `end` holds the expert."""
    found = False
    for slot in range(end):
        found |= slots[gpu, slot] == expert
    return found
