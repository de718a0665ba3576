"""Change the map in service for other loads, in few slots.

Every slot that gets another expert costs a copy of its weights, over the network, beside the traffic. So the search
starts from the previous map and stops as soon as no GPU carries more than `enough`. Each step relieves the fullest GPU
by a swap or a hand-over, as `descend` does, but by the one that gains most per slot changed. Gain counts only down to
`enough`. A slot counts as changed only when its GPU did not hold the expert before, so undoing a change, or changing a
slot again, costs nothing. Another way is tried beside it, which chooses one slot each of some GPUs at once
(`seat_cover`); the way with fewer changes is taken. In the end every change that turns out not to be needed is undone.

The order of slots inside a GPU does not count: moving nothing between GPUs moves no weights.
"""

import numpy as np
from numpy.typing import NDArray

from planner.expert_map.compiled import compiled
from planner.expert_map.layer import Layer, copy, fullest, hand_over, keep, new_layer, swap, take
from planner.expert_map.search import SEED, kick
from planner.expert_map.seat_cover import seat_cover
from planner.expert_map.weigh import Floats, Ints

__all__ = ["bring_back", "count_moves", "relieve_cheaply", "relocate", "undo"]

NONE = -1
# How long is searched: assumed, as what the benchmark's goals of balance and of time leave room for.
FREE = 0.2  # slots that a step without cost counts as
CAREFUL_KICKS = 100
KICKS = 200
KICK_CHANGES = 2


@compiled
def relocate(loads_LE: Floats, previous_LGS: Ints, enough_L: Floats, num_nodes: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Return slots `[L, G, S]` near the previous ones, and in which layers they are good enough.

    With more than one node an expert goes only to nodes that held it before.
    """
    slots_LGS = np.zeros_like(previous_LGS)
    reached_L = np.zeros(loads_LE.shape[0], np.bool_)
    for index in range(loads_LE.shape[0]):
        layer = new_layer(loads_LE[index], previous_LGS.shape[1], previous_LGS.shape[2])
        take(layer, previous_LGS[index])
        before = layer.held.copy()
        nodes = _held_by_nodes(before, num_nodes)
        relieve_cheaply(layer, before, nodes, enough_L[index])
        if num_nodes == 1 and not _reseat_if_fewer(layer, before, previous_LGS[index], enough_L[index]):
            _kick_on(layer, before, nodes, enough_L[index])
        if layer.carried.max() <= enough_L[index]:
            undo(layer, before, enough_L[index])
            reached_L[index] = True
        keep(layer, slots_LGS, index)
    return slots_LGS, reached_L


@compiled
def _held_by_nodes(held: NDArray[np.bool_], num_nodes: int) -> NDArray[np.bool_]:
    """Return whether any GPU on the same node holds the expert, `[E, G]`."""
    gpus_per_node = held.shape[1] // num_nodes
    nodes = np.zeros_like(held)
    for expert in range(held.shape[0]):
        for first in range(0, held.shape[1], gpus_per_node):
            nodes[expert, first : first + gpus_per_node] = held[expert, first : first + gpus_per_node].any()
    return nodes if num_nodes > 1 else np.ones_like(held)


@compiled
def _reseat_if_fewer(layer: Layer, before: NDArray[np.bool_], previous: Ints, enough: float) -> bool:
    """Try the other way from the previous map, and keep it if it is shorter; return whether either way succeeded."""
    other = new_layer(layer.loads, previous.shape[0], previous.shape[1])
    take(other, previous)
    is_enough = bool(layer.carried.max() <= enough)
    if not seat_cover(other, enough):
        return is_enough
    if not is_enough or _num_moves(other, before) < _num_moves(layer, before):
        copy(layer, other)
    return True


@compiled
def _kick_on(layer: Layer, before: NDArray[np.bool_], nodes: NDArray[np.bool_], enough: float) -> None:
    """Kick the best map so far and relieve it, until it is enough.

    The first kicks are careful: a map that is only as good as the best replaces it only if it needs no more moves.
    """
    state = np.array([SEED], np.uint64)
    trial = new_layer(layer.loads, layer.slots.shape[0], layer.slots.shape[1])
    copy(trial, layer)
    for turn in range(CAREFUL_KICKS + KICKS):
        if layer.carried.max() <= enough:
            return
        kick(trial, state, KICK_CHANGES, turn % 2 == 0)
        relieve_cheaply(trial, before, nodes, enough)
        least, reached = layer.carried.max(), trial.carried.max()
        as_cheap = turn >= CAREFUL_KICKS or _num_moves(trial, before) <= _num_moves(layer, before)
        if reached < least or (reached == least and as_cheap):
            copy(layer, trial)
        else:
            copy(trial, layer)


@compiled
def _num_moves(layer: Layer, before: NDArray[np.bool_]) -> int:
    """Return how many slots hold an expert that their GPU did not hold before."""
    return int((layer.held & ~before).sum())


@compiled
def relieve_cheaply(layer: Layer, before: NDArray[np.bool_], nodes: NDArray[np.bool_], enough: float) -> None:
    """Relieve the fullest GPU step by step, until none carries more than `enough` or no step helps."""
    while layer.carried.max() > enough and _step(layer, before, nodes, enough):
        pass


@compiled
def count_moves(slots_LGS: Ints, previous_LGS: Ints, num_experts: int) -> int:
    """Return how many slots hold an expert that their GPU did not hold before, or not as often."""
    moves = 0
    for index in range(slots_LGS.shape[0]):
        for gpu in range(slots_LGS.shape[1]):
            more = np.zeros(num_experts, np.int64)
            for slot in range(slots_LGS.shape[2]):
                more[slots_LGS[index, gpu, slot]] += 1
                more[previous_LGS[index, gpu, slot]] -= 1
            moves += np.maximum(more, 0).sum()
    return int(moves)


@compiled
def _step(layer: Layer, before: NDArray[np.bool_], nodes: NDArray[np.bool_], enough: float) -> bool:
    """Make the step that gains most per slot changed; return whether there was one."""
    hot = fullest(layer)
    gain, gpu, slot, other_slot = _best_swap(layer, before, nodes, hot, enough)
    handed_gain, expert, handed_gpu, handed_slot = _best_hand_over(layer, before, nodes, hot, enough)
    if handed_gain > gain:
        hand_over(layer, expert, handed_gpu, handed_slot)
    elif gain > 0:
        swap(layer, hot, slot, gpu, other_slot)
    return max(gain, handed_gain) > 0


@compiled
def _best_swap(
    layer: Layer, before: NDArray[np.bool_], nodes: NDArray[np.bool_], hot: int, enough: float
) -> tuple[float, int, int, int]:
    """Return the gain per slot changed, the other GPU, and the two slots."""
    _, _, weights, slots, held, _, carried = layer
    best, best_gpu, best_slot, best_other = 0.0, NONE, NONE, NONE
    for gpu in range(slots.shape[0]):
        if carried[gpu] >= carried[hot]:
            continue
        for slot in range(slots.shape[1]):
            leaving = slots[hot, slot]
            if held[leaving, gpu] or not nodes[leaving, gpu]:
                continue
            for other_slot in range(slots.shape[1]):
                coming = slots[gpu, other_slot]
                moved = weights[leaving] - weights[coming]
                fuller = max(carried[hot] - moved, carried[gpu] + moved)
                if fuller >= carried[hot] or held[coming, hot] or not nodes[coming, hot]:
                    continue
                back = int(before[leaving, gpu]) + int(before[coming, hot])
                forth = int(before[leaving, hot]) + int(before[coming, gpu])
                gain = (carried[hot] - max(fuller, enough)) / max(float(forth - back), FREE)
                if gain > best:
                    best, best_gpu, best_slot, best_other = gain, gpu, slot, other_slot
    return best, best_gpu, best_slot, best_other


@compiled
def _best_hand_over(
    layer: Layer, before: NDArray[np.bool_], nodes: NDArray[np.bool_], hot: int, enough: float
) -> tuple[float, int, int, int]:
    """Return the gain per slot changed, the expert that takes a slot, the GPU, and the slot."""
    loads, counts, weights, slots, held, homes, carried = layer
    best, best_expert, best_gpu, best_slot = 0.0, NONE, NONE, NONE
    for gpu in range(slots.shape[0]):
        for slot in range(slots.shape[1]):
            giver = slots[gpu, slot]
            if counts[giver] == 1:
                continue
            heavier = np.floor(loads[giver] / (counts[giver] - 1)) - weights[giver]
            elsewhere = 0.0
            for home in homes[giver, : counts[giver]]:
                if home != gpu:
                    elsewhere = max(elsewhere, carried[home] + heavier)
            for number in range(loads.size if gpu == hot else slots.shape[1]):
                expert = number if gpu == hot else slots[hot, number]
                if held[expert, gpu] or not nodes[expert, gpu]:
                    continue
                weight = np.floor(loads[expert] / (counts[expert] + 1))
                fuller = max(elsewhere, carried[gpu] - weights[giver] + weight)
                if gpu != hot:
                    lighter = weights[expert] - weight
                    fuller = max(fuller, carried[hot] - lighter + held[giver, hot] * heavier)
                if fuller >= carried[hot]:
                    continue
                cost = int(before[giver, gpu]) - int(before[expert, gpu])
                gain = (carried[hot] - max(fuller, enough)) / max(float(cost), FREE)
                if gain > best:
                    best, best_expert, best_gpu, best_slot = gain, expert, gpu, slot
    return best, best_expert, best_gpu, best_slot


@compiled
def undo(layer: Layer, before: NDArray[np.bool_], enough: float) -> None:
    """Undo changes, single ones and exchanged pairs, while no GPU comes to carry more than `enough`."""
    trial = new_layer(layer.loads, layer.slots.shape[0], layer.slots.shape[1])
    copy(trial, layer)
    undone = True
    while undone:
        undone = False
        for gpu in range(layer.slots.shape[0]):
            for slot in range(layer.slots.shape[1]):
                if before[layer.slots[gpu, slot], gpu]:
                    continue
                for expert in range(layer.loads.size):
                    if (
                        before[expert, gpu]
                        and not layer.held[expert, gpu]
                        and bring_back(trial, before, expert, gpu, slot)
                    ):
                        if trial.carried.max() <= enough:
                            copy(layer, trial)
                            undone = True
                            break
                        copy(trial, layer)


@compiled
def bring_back(layer: Layer, before: NDArray[np.bool_], expert: int, gpu: int, slot: int) -> bool:
    """Put the expert back where it was, if the one there has other replicas or may go where it came from.

    Return whether that was possible.
    """
    newcomer = layer.slots[gpu, slot]
    if layer.counts[newcomer] > 1:
        hand_over(layer, expert, gpu, slot)
        return True
    for home in layer.homes[expert, : layer.counts[expert]]:
        if not before[expert, home] and not layer.held[newcomer, home]:
            for other_slot in range(layer.slots.shape[1]):
                if layer.slots[home, other_slot] == expert:
                    swap(layer, gpu, slot, home, other_slot)
                    return True
    return False
