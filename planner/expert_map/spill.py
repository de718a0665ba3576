"""Groups on nodes, but for a few hot experts that have a replica on a second node as well.

Where whole groups stay on nodes, the heaviest pair of groups decides how even a map can be (`hierarchy`). A replica on
another node takes part of the load there, and that is what costs: bytes grow with the load that is served elsewhere
(`front`). So the least bytes are those of the load above what a node may carry, and of nothing else:

    choose      an expert of the fullest node whose part is as large as what is too much there, for a node that then
                still carries no more than at the last level, so that nothing has to be passed on later
    make room   in a slot of an expert that has more replicas on that node: no node's load changes but for the part
    even out    the GPUs of each node by swaps among them, which cross to no node

Levels of max over mean are gone down one after the other, each from the map of the one before; a layer that does not
get more even for its bytes stays as it was.

`respill` is for the map in service: there each slot changed counts as well, and what may cross is decided step by step.
"""

import numpy as np
from numpy.typing import NDArray

from planner.expert_map.compiled import compiled
from planner.expert_map.descend import best_swap, even_out
from planner.expert_map.layer import Layer, hand_over, keep, new_layer, reload, swap, take
from planner.expert_map.moves import relieve_cheaply, undo
from planner.expert_map.weigh import Floats, Ints

__all__ = ["LEVELS", "respill", "spill"]

LEVELS = (1.04, 1.02, 1.01, 1.005)  # of max over mean, one after the other
MAX_SPILLS = 48  # a layer and level
ROUNDS = 3  # of `even_out`
HEAVIEST = 0.9  # of what a GPU may carry: a replica that gets heavier leaves that much room for the other slots; tried
NONE = -1


@compiled
def spill(loads_LE: Floats, start_LGS: Ints, levels_QL: Floats, num_nodes: int) -> Ints:
    """Return maps `[1 + Q, L, G, S]`: the start, and one for each level of the fullest GPU's load; levels fall."""
    num_levels, (num_layers, num_gpus, slots_per_gpu) = levels_QL.shape[0], start_LGS.shape
    slots_QLGS = np.zeros((1 + num_levels, num_layers, num_gpus, slots_per_gpu), np.int64)
    gpus_per_node = num_gpus // num_nodes
    layer = new_layer(loads_LE[0], num_gpus, slots_per_gpu)
    for index in range(num_layers):
        reload(layer, loads_LE[index])
        take(layer, start_LGS[index])
        keep(layer, slots_QLGS[0], index)
        carried = layer.carried.max()
        for level in range(num_levels):
            enough, last = levels_QL[level, index], levels_QL[num_levels - 1, index]
            for _ in range(MAX_SPILLS):
                if not _spill_one(layer, gpus_per_node, enough, last):
                    break
            _even_out_nodes(layer, gpus_per_node, enough)
            if layer.carried.max() < carried:
                carried = layer.carried.max()
            else:
                take(layer, slots_QLGS[level, index])
            keep(layer, slots_QLGS[level + 1], index)
    return slots_QLGS


@compiled
def respill(
    loads_LE: Floats, start_LGS: Ints, homes_LE: Ints, enough_L: Floats, num_nodes: int
) -> tuple[Ints, NDArray[np.bool_]]:
    """Return slots `[L, G, S]` near those of the start, and in which layers they are good enough.

    `homes_LE` is the node of each expert, where its replicas stay if that is enough. Any expert may go anywhere only as
    a last resort.
    """
    slots_LGS = np.zeros_like(start_LGS)
    reached_L = np.zeros(loads_LE.shape[0], np.bool_)
    gpus_per_node = start_LGS.shape[1] // num_nodes
    layer = new_layer(loads_LE[0], start_LGS.shape[1], start_LGS.shape[2])
    for index in range(loads_LE.shape[0]):
        enough = enough_L[index]
        reload(layer, loads_LE[index])
        take(layer, start_LGS[index])
        before, allowed = layer.held.copy(), layer.held.copy()
        for expert in range(loads_LE.shape[1]):
            _allow(allowed, expert, homes_LE[index, expert], gpus_per_node)
        relieve_cheaply(layer, before, allowed, enough)
        for _ in range(MAX_SPILLS):
            if layer.carried.max() <= enough or not _spill_one(layer, gpus_per_node, enough, enough):
                break
            for gpu in range(layer.carried.size):
                for expert in layer.slots[gpu]:
                    if not allowed[expert, gpu]:
                        _allow(allowed, expert, gpu // gpus_per_node, gpus_per_node)
            relieve_cheaply(layer, before, allowed, enough)
        if layer.carried.max() > enough:
            relieve_cheaply(layer, before, np.ones_like(allowed), enough)
        if layer.carried.max() <= enough:
            undo(layer, before, enough)
            reached_L[index] = True
        keep(layer, slots_LGS, index)
    return slots_LGS, reached_L


@compiled
def _allow(allowed: NDArray[np.bool_], expert: int, node: int, gpus_per_node: int) -> None:
    """Allow the expert on all GPUs of the node."""
    for gpu in range(node * gpus_per_node, (node + 1) * gpus_per_node):
        allowed[expert, gpu] = True


@compiled
def _even_out_nodes(layer: Layer, gpus_per_node: int, enough: float) -> None:
    """Swap among the GPUs of each node until none carries more than `enough`, or no swap helps."""
    for first in range(0, layer.carried.size, gpus_per_node):
        end = first + gpus_per_node
        if layer.carried[first:end].max() > enough:
            even_out(layer, first, end, ROUNDS)
        while layer.carried[first:end].max() > enough:
            hot = first + int(layer.carried[first:end].argmax())
            gpu, slot, other_slot, _ = best_swap(layer, hot, first, end)
            if gpu == NONE:
                break
            swap(layer, hot, slot, gpu, other_slot)


@compiled
def _spill_one(layer: Layer, gpus_per_node: int, enough: float, last: float) -> bool:
    """Move load from the fullest node to another, which may then carry `last` a GPU; return whether it succeeded."""
    nodes = np.zeros(layer.carried.size // gpus_per_node)
    for gpu in range(layer.carried.size):
        nodes[gpu // gpus_per_node] += layer.carried[gpu]
    full = int(nodes.argmax())
    excess, rooms = nodes[full] - enough * gpus_per_node, last * gpus_per_node - nodes
    if excess <= 0:
        return False
    expert, node = _best_expert(layer, full, excess, rooms)
    if expert != NONE:
        gpu, slot = _best_giver(layer, expert, node, gpus_per_node, enough * HEAVIEST)
        if gpu != NONE:
            hand_over(layer, expert, gpu, slot)
            return True
    return _exchange(layer, full, excess, rooms)


@compiled
def _price(excess: float, room: float, part: float, elsewhere: float) -> float:
    """Return the cost of a move: the load still to be moved counts twice, the load served elsewhere once.

    So it pays to move as much as is needed.
    """
    return 2 * (max(excess - part, 0.0) + max(part - room, 0.0)) + elsewhere


@compiled
def _best_expert(layer: Layer, full: int, excess: float, rooms: Floats) -> tuple[int, int]:
    """Return an expert with all replicas on the fullest node that should get one elsewhere, and the node."""
    gpus_per_node = layer.carried.size // rooms.size
    best, best_node, least = NONE, NONE, 2 * excess
    for node in range(rooms.size):
        for gpu in range(full * gpus_per_node, (full + 1) * gpus_per_node if rooms[node] > 0 else 0):
            for expert in layer.slots[gpu]:
                part = layer.loads[expert] / (layer.counts[expert] + 1)
                price = _price(excess, rooms[node], part, part)
                if price < least and _is_on(layer, expert, full, gpus_per_node):
                    best, best_node, least = expert, node, price
    return best, best_node


@compiled
def _best_giver(layer: Layer, expert: int, node: int, gpus_per_node: int, heaviest: float) -> tuple[int, int]:
    """Return the GPU and slot where the expert makes the least load.

    The expert there has all replicas on the node, and without that slot they get no heavier than `heaviest`.
    """
    loads, counts, weights, slots, held, homes, carried = layer
    best_gpu, best_slot, least = NONE, NONE, np.inf
    weight = loads[expert] / (counts[expert] + 1)
    for gpu in range(node * gpus_per_node, (node + 1) * gpus_per_node):
        for slot in range(slots.shape[1]):
            giver = slots[gpu, slot]
            if counts[giver] == 1 or held[expert, gpu] or not _is_on(layer, giver, node, gpus_per_node):
                continue
            heavier = loads[giver] / (counts[giver] - 1)
            if heavier > heaviest:
                continue
            fullest = carried[gpu] - weights[giver] + weight
            for home in homes[giver, : counts[giver]]:
                if home != gpu:
                    fullest = max(fullest, carried[home] + heavier - weights[giver])
            if fullest < least:
                best_gpu, best_slot, least = gpu, slot, fullest
    return best_gpu, best_slot


@compiled
def _is_on(layer: Layer, expert: int, node: int, gpus_per_node: int) -> bool:
    """Return whether all replicas of the expert are on the node."""
    is_on = True
    for replica in range(layer.counts[expert]):
        is_on &= layer.homes[expert, replica] // gpus_per_node == node
    return is_on


@compiled
def _exchange(layer: Layer, full: int, excess: float, rooms: Floats) -> bool:
    """Swap a replica of the fullest node for a lighter one of another node; return whether there was such a pair.

    It is for nodes that have no slot to spare.
    """
    _, _, weights, slots, held, _, _ = layer
    slots_per_gpu, gpus_per_node = slots.shape[1], layer.carried.size // rooms.size
    best_gpu, best, best_other_gpu, best_other, least = NONE, NONE, NONE, NONE, 2 * excess
    for gpu in range(full * gpus_per_node, (full + 1) * gpus_per_node):
        for other_gpu in range(layer.carried.size):
            room = rooms[other_gpu // gpus_per_node]
            if room <= 0:
                continue
            for slot in range(slots_per_gpu):
                expert = slots[gpu, slot]
                if weights[expert] >= least or held[expert, other_gpu]:
                    continue
                for other in range(slots_per_gpu):
                    light = slots[other_gpu, other]
                    elsewhere = weights[expert] + weights[light]
                    price = _price(excess, room, weights[expert] - weights[light], elsewhere)
                    if price < least and not held[light, gpu]:
                        best_gpu, best, best_other_gpu, best_other, least = gpu, slot, other_gpu, other, price
    if best_gpu == NONE:
        return False
    swap(layer, best_gpu, best, best_other_gpu, best_other)
    return True
