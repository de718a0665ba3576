"""Groups on nodes, but for a few hot experts that have a replica on a second node as well.

Where whole groups stay on nodes, the heaviest pair of groups decides how even a map can be (`hierarchy`). A replica on
another node takes part of the load there, and that is what costs: a token routed to it crosses to that node, unless
another of its experts is there anyway.

What it costs: of G groups a token's experts are in K (`GROUPS_OF_A_TOKEN` of them; DeepSeek-V3: 4 of 8), and
P = G / M are on each of M nodes. One of the K is the expert's own, and with the others equally likely to be any K - 1
of the rest,

    p = C(G - 1 - P, K - 1) / C(G - 1, K - 1)

is the probability that none of them is on the second node; the token starts there with probability 1 / M, and then
crosses nothing. So a routed token-expert pair that is served away from its group's node crosses once more, with
`BYTES_PER_CROSSING`, with probability p (1 - 1 / M). Whole groups alone let a token cross to

    (M - 1) (1 - C(G - P, K) / C(G, K))

nodes. The bytes grow with the load that is served elsewhere, whichever experts it is of; so the least bytes are those
of the fewest tokens above what a node may carry, and it is experts whose part fits that are spilled.

Levels are gone down one after the other, each from the map of the one before: that is the front of balance against
bytes. Its knee is where max over mean x bytes is least: beyond it a percent of balance costs more than one of bytes.
"""

from math import comb

import numpy as np
from numpy.typing import NDArray

from planner.expert_map.compiled import compiled
from planner.expert_map.layer import Layer, hand_over, keep, new_layer, reload, swap, take
from planner.expert_map.moves import relieve_cheaply, undo
from planner.expert_map.types import FrontPoint, Sizes
from planner.expert_map.weigh import Floats, Ints, count_replicas, max_over_mean

__all__ = ["LEVELS", "front_of", "homes_of_groups", "knee", "spill"]

LEVELS = (1.04, 1.02, 1.01, 1.005)  # of max over mean, one after the other
GROUPS_OF_A_TOKEN = 0.5  # of all groups: DeepSeek-V3 routes to 4 of 8
EXPERTS_OF_A_TOKEN = 8  # DeepSeek-V3
BYTES_PER_CROSSING = 7392  # DeepEP, normal mode: one token in FP8 with its scales, of 7,168 hidden values
MOST_SPILLS = 48  # a layer
NONE = -1


@compiled
def spill(
    loads_LE: Floats, start_LGS: Ints, homes_LE: Ints, levels_QL: Floats, num_nodes: int, is_dear: bool
) -> tuple[Ints, Floats]:
    """Maps `[Q, L, G, S]`, whose fullest GPU is to carry one level after the other, and what it then carries, `[Q, L]`.

    `homes_LE`: the node of each expert, where its replicas stay when that is enough. `is_dear`: every slot changed
    counts (`moves`); then, as the last resort, any expert may go anywhere, rather than most of them.
    """
    num_levels, (num_layers, num_gpus, slots_per_gpu) = levels_QL.shape[0], start_LGS.shape
    slots_QLGS = np.zeros((num_levels, num_layers, num_gpus, slots_per_gpu), np.int64)
    carried_QL = np.zeros((num_levels, num_layers))
    gpus_per_node = num_gpus // num_nodes
    layer = new_layer(loads_LE[0], num_gpus, slots_per_gpu)
    for index in range(num_layers):
        reload(layer, loads_LE[index])
        take(layer, start_LGS[index])
        before, allowed = np.zeros_like(layer.held), layer.held.copy()
        for expert in range(loads_LE.shape[1]):
            for gpu in range(num_gpus):
                before[expert, gpu] = is_dear and layer.held[expert, gpu]
                node_of_gpu = gpu // gpus_per_node
                allowed[expert, gpu] |= homes_LE[index, expert] == node_of_gpu
        for level in range(num_levels):
            enough = levels_QL[level, index]
            relieve_cheaply(layer, before, allowed, enough)
            for _ in range(MOST_SPILLS):
                if layer.carried.max() <= enough or not _spill_one(layer, allowed, gpus_per_node, enough):
                    break
                relieve_cheaply(layer, before, allowed, enough)
            if is_dear and layer.carried.max() > enough:
                for expert in range(layer.loads.size):
                    for gpu in range(num_gpus):
                        allowed[expert, gpu] = True
                relieve_cheaply(layer, before, allowed, enough)
            if is_dear and layer.carried.max() <= enough:
                undo(layer, before, enough)
            carried_QL[level, index] = layer.carried.max()
            keep(layer, slots_QLGS[level], index)
    return slots_QLGS, carried_QL


@compiled
def _spill_one(layer: Layer, allowed: NDArray[np.bool_], gpus_per_node: int, enough: float) -> bool:
    """Give an expert of the fullest node a replica on the emptiest, of the size that one has too much or the other
    lacks; whether there was one.
    """
    num_nodes = layer.carried.size // gpus_per_node
    nodes = np.zeros(num_nodes)
    for gpu in range(layer.carried.size):
        nodes[gpu // gpus_per_node] += layer.carried[gpu]
    full, empty = int(nodes.argmax()), int(nodes.argmin())
    fitting = min(nodes[full] - enough * gpus_per_node, enough * gpus_per_node - nodes[empty])
    if fitting <= 0:
        return False
    best, least = NONE, np.inf
    for gpu in range(full * gpus_per_node, (full + 1) * gpus_per_node):
        for expert in layer.slots[gpu]:
            part = layer.loads[expert] / (layer.counts[expert] + 1)
            off = abs(part - fitting)
            if off < least and nodes[empty] + part < nodes[full] and not allowed[expert, empty * gpus_per_node]:
                best, least = expert, off
    if best != NONE and _put_on_node(layer, allowed, best, empty * gpus_per_node, gpus_per_node):
        return True
    return _exchange(layer, allowed, full * gpus_per_node, empty * gpus_per_node, gpus_per_node, fitting)


@compiled
def _exchange(
    layer: Layer, allowed: NDArray[np.bool_], full: int, empty: int, gpus_per_node: int, fitting: float
) -> bool:
    """Without a redundant slot left: a replica for a light one that goes the other way; whether there were such."""
    _, _, weights, slots, held, _, _ = layer
    slots_per_gpu = slots.shape[1]
    best, other, least = NONE, NONE, fitting
    for place in range(full * slots_per_gpu, (full + gpus_per_node) * slots_per_gpu):
        gpu, expert = place // slots_per_gpu, slots[place // slots_per_gpu, place % slots_per_gpu]
        for other_place in range(empty * slots_per_gpu, (empty + gpus_per_node) * slots_per_gpu):
            other_gpu, light = (
                other_place // slots_per_gpu,
                slots[other_place // slots_per_gpu, other_place % slots_per_gpu],
            )
            off = abs(weights[expert] - weights[light] - fitting) + 2 * weights[light]
            if off < least and not held[expert, other_gpu] and not held[light, gpu]:
                best, other, least = place, other_place, off
    if best == NONE:
        return False
    gpu, other_gpu = best // slots_per_gpu, other // slots_per_gpu
    expert, light = slots[gpu, best % slots_per_gpu], slots[other_gpu, other % slots_per_gpu]
    swap(layer, gpu, best % slots_per_gpu, other_gpu, other % slots_per_gpu)
    for number in range(gpus_per_node):
        allowed[expert, empty + number] = True
        allowed[light, full + number] = True
    return True


@compiled
def _put_on_node(layer: Layer, allowed: NDArray[np.bool_], expert: int, first: int, gpus_per_node: int) -> bool:
    """Where it makes the least load, in the slot of an expert with other replicas; whether there was one."""
    loads, counts, weights, slots, held, homes, carried = layer
    best_gpu, best_slot, least = NONE, NONE, np.inf
    weight = loads[expert] / (counts[expert] + 1)
    for gpu in range(first, first + gpus_per_node):
        for slot in range(slots.shape[1]):
            giver = slots[gpu, slot]
            if counts[giver] == 1 or held[expert, gpu]:
                continue
            fullest = carried[gpu] - weights[giver] + weight
            heavier = loads[giver] / (counts[giver] - 1) - weights[giver]
            for home in homes[giver, : counts[giver]]:
                if home != gpu:
                    fullest = max(fullest, carried[home] + heavier)
            if fullest < least:
                best_gpu, best_slot, least = gpu, slot, fullest
    if best_gpu == NONE:
        return False
    hand_over(layer, expert, best_gpu, best_slot)
    for gpu in range(first, first + gpus_per_node):
        allowed[expert, gpu] = True
    return True


def homes_of_groups(loads_LE: Floats, slots_LGS: Ints, sizes: Sizes) -> Ints:
    """The node of each expert, `[L, E]`: that on which most slots of its group are."""
    num_layers, num_experts = loads_LE.shape
    group_of_expert = np.arange(num_experts) // (num_experts // sizes.num_groups)
    groups_LMN = group_of_expert[slots_LGS.reshape(num_layers, sizes.num_nodes, -1)]
    held_LMG = (groups_LMN[..., None] == np.arange(sizes.num_groups)).sum(axis=2)
    homes_LE: Ints = held_LMG.argmax(axis=1)[:, group_of_expert]
    return homes_LE


def front_of(loads_LE: Floats, slots_QLGS: Ints, homes_LE: Ints, sizes: Sizes) -> tuple[FrontPoint, ...]:
    """Max over mean and cross-node dispatch bytes of each of these maps, means of all layers."""
    groups, nodes = sizes.num_groups, sizes.num_nodes
    of_token, on_node = max(round(groups * GROUPS_OF_A_TOKEN), 1), groups // nodes
    alone = comb(groups - 1 - on_node, of_token - 1) / comb(groups - 1, of_token - 1) * (1 - 1 / nodes)
    crossings = (nodes - 1) * (1 - comb(groups - on_node, of_token) / comb(groups, of_token))
    points = []
    for slots_LGS in slots_QLGS:
        elsewhere = _share_elsewhere(loads_LE, slots_LGS, homes_LE, nodes)
        points.append(
            FrontPoint(
                max_over_mean=round(float(max_over_mean(loads_LE, slots_LGS).mean()), 6),
                extra_bytes_per_token=round(elsewhere * EXPERTS_OF_A_TOKEN * alone * BYTES_PER_CROSSING, 3),
                bytes_per_token=round(crossings * BYTES_PER_CROSSING, 3),
            )
        )
    return tuple(points)


def _share_elsewhere(loads_LE: Floats, slots_LGS: Ints, homes_LE: Ints, num_nodes: int) -> float:
    """Of the token-expert pairs of all layers, those served away from the node of the expert's group."""
    num_layers = len(slots_LGS)
    slots_LN = slots_LGS.reshape(num_layers, -1)
    node_of_slot = np.arange(slots_LN.shape[1]) // (slots_LN.shape[1] // num_nodes)
    is_away = np.take_along_axis(homes_LE, slots_LN, axis=1) != node_of_slot
    parts_LN = np.take_along_axis(loads_LE / count_replicas(slots_LGS, loads_LE.shape[1]), slots_LN, axis=1)
    total = float(loads_LE.sum())
    return float(parts_LN[is_away].sum()) / total if total > 0 else 0.0


def knee(front: tuple[FrontPoint, ...]) -> int:
    """The point where max over mean x bytes is least, the first of equals."""
    return min(range(len(front)), key=lambda each: front[each].max_over_mean * front[each].bytes_ratio)
