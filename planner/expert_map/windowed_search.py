"""The search for a map that is even in several windows at once.

It is that of `descend`, with a load for each window: of all GPUs and windows that count, the fullest is relieved by a
swap or a hand-over after which no GPU that it touches carries as much in any of them. Kicks as in `search` follow,
where experts may go anywhere. For a quantile only some windows count: at first those where the start is most even,
then those most like the one or the other window. They are chosen anew while the map gets more even in others. The worst
of them only ever falls, and with it the quantile; the best of these searches is kept, or the first that is enough.

From a map in service whatever can be undone without need is undone in the end, as in `moves`.

Shapes: W windows; `carried` [W, G] is summed up anew for each GPU that a step touches, from whole numbers.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.expert_map.compiled import compiled
from planner.expert_map.layer import Layer, copy, hand_over, keep, new_layer, swap, take
from planner.expert_map.moves import bring_back
from planner.expert_map.order import rising
from planner.expert_map.search import KICK_CHANGES, SEED, kick
from planner.expert_map.weigh import Floats, Ints

__all__ = ["windowed_search"]

NONE = -1
ROUNDS = 4  # of choosing the windows that count; assumed


class Windows(NamedTuple):
    """One layer's loads in all windows, beside a `Layer` with their sum."""

    loads: Floats  # [W, E]
    weights: Floats  # [W, E] what each replica carries
    carried: Floats  # [W, G]
    counted: Ints  # the numbers of the windows that count


@compiled
def windowed_search(
    loads_LWE: Floats,
    start_LGS: Ints,
    num_counted: int,
    enough_L: Floats,
    gpus_per_node: int,
    num_kicks: int,
    in_service: bool,
) -> Ints:
    """Return slots `[L, G, S]` where no GPU should carry more than `enough_L` in the `num_counted` best windows.

    With more than one node, experts stay on their nodes and nothing is kicked. `in_service`: few slots of the start are
    to change.
    """
    slots_LGS = start_LGS.copy()
    num_gpus, slots_per_gpu = start_LGS.shape[1], start_LGS.shape[2]
    for index in range(loads_LWE.shape[0]):
        loads = loads_LWE[index]
        layer = new_layer(loads.sum(axis=0), num_gpus, slots_per_gpu)
        counted = np.arange(num_counted)
        windows = Windows(loads, np.zeros_like(loads), np.zeros((loads.shape[0], num_gpus)), counted)
        take(layer, start_LGS[index])
        before, allowed = layer.held.copy(), _on_their_nodes(layer, gpus_per_node)
        least = np.inf
        for centre in range(NONE, loads.shape[0] if num_counted < loads.shape[0] else 0):
            take(layer, start_LGS[index])
            _sum_up(layer, windows)
            _choose(counted, _fullest_of_windows(windows) if centre == NONE else _unlike(loads, centre))
            for _ in range(ROUNDS):
                _descend(layer, windows, allowed, enough_L[index])
                _kick_on(layer, windows, allowed, enough_L[index], num_kicks if gpus_per_node == num_gpus else 0)
                if not _choose(counted, _fullest_of_windows(windows)):
                    break
            _, _, most = _fullest(windows)
            if in_service and most <= enough_L[index]:
                _undo(layer, windows, before, allowed, enough_L[index])
            if most < least:
                least = most
                keep(layer, slots_LGS, index)
            if most <= enough_L[index]:
                break
    return slots_LGS


@compiled
def _on_their_nodes(layer: Layer, gpus_per_node: int) -> NDArray[np.bool_]:
    """Return where each expert may be, `[E, G]`."""
    allowed = np.zeros_like(layer.held)
    for expert in range(allowed.shape[0]):
        for home in layer.homes[expert, : layer.counts[expert]]:
            first = home // gpus_per_node * gpus_per_node
            for gpu in range(first, first + gpus_per_node):
                allowed[expert, gpu] = True
    return allowed


@compiled
def _sum_up(layer: Layer, windows: Windows) -> None:
    for expert in range(layer.loads.size):
        _weigh(layer, windows, expert)
    for gpu in range(layer.carried.size):
        _carry(layer, windows, gpu)


@compiled
def _weigh(layer: Layer, windows: Windows, expert: int) -> None:
    for window in range(windows.loads.shape[0]):
        windows.weights[window, expert] = np.floor(windows.loads[window, expert] / layer.counts[expert])


@compiled
def _carry(layer: Layer, windows: Windows, gpu: int) -> None:
    for window in range(windows.loads.shape[0]):
        total = 0.0
        for expert in layer.slots[gpu]:
            total += windows.weights[window, expert]
        windows.carried[window, gpu] = total


@compiled
def _fullest_of_windows(windows: Windows) -> Floats:
    """Return the load of the fullest GPU in each window, `[W]`."""
    fullest_W = np.zeros(windows.loads.shape[0])
    for window in range(fullest_W.size):
        fullest_W[window] = windows.carried[window].max()
    return fullest_W


@compiled
def _unlike(loads: Floats, centre: int) -> Floats:
    """Return how far the loads of each window are from those of window `centre`, `[W]`."""
    unlike_W = np.zeros(loads.shape[0])
    for window in range(loads.shape[0]):
        unlike_W[window] = np.abs(loads[window] - loads[centre]).sum()
    return unlike_W


@compiled
def _choose(counted: Ints, distances: Floats) -> bool:
    """Count the nearest windows, in order of their numbers; return whether they changed."""
    is_chosen = np.zeros(distances.size, np.bool_)
    for window in rising(distances)[: counted.size]:
        is_chosen[window] = True
    are_others, place = False, 0
    for window in range(distances.size):
        if is_chosen[window]:
            are_others |= counted[place] != window
            counted[place] = window
            place += 1
    return are_others


@compiled
def _fullest(windows: Windows) -> tuple[int, int, float]:
    """Return the worst window that counts, its fullest GPU, and the load of that GPU."""
    worst, hot, most = NONE, NONE, -1.0
    for window in windows.counted:
        for gpu in range(windows.carried.shape[1]):
            if windows.carried[window, gpu] > most:
                worst, hot, most = window, gpu, windows.carried[window, gpu]
    return worst, hot, most


@compiled
def _descend(layer: Layer, windows: Windows, allowed: NDArray[np.bool_], enough: float) -> float:
    """Relieve the fullest GPU until it carries `enough` or no step helps; return its load."""
    while True:
        worst, hot, most = _fullest(windows)
        if most <= enough:
            return float(most)
        gpu, slot, other_slot, least = _best_swap(layer, windows, allowed, worst, hot, most)
        expert, handed_gpu, handed_slot, handed_least = _best_hand_over(layer, windows, allowed, hot, least)
        if handed_least < least:
            giver = layer.slots[handed_gpu, handed_slot]
            hand_over(layer, expert, handed_gpu, handed_slot)
            _weigh(layer, windows, giver)
            _weigh(layer, windows, expert)
            for home in layer.homes[giver, : layer.counts[giver]]:
                _carry(layer, windows, home)
            for home in layer.homes[expert, : layer.counts[expert]]:
                _carry(layer, windows, home)
        elif gpu != NONE:
            swap(layer, hot, slot, gpu, other_slot)
            _carry(layer, windows, hot)
            _carry(layer, windows, gpu)
        else:
            return float(most)


@compiled
def _best_swap(
    layer: Layer, windows: Windows, allowed: NDArray[np.bool_], worst: int, hot: int, most: float
) -> tuple[int, int, int, float]:
    """Return the other GPU, the two slots, and the most that either GPU then carries in any window."""
    slots, held, weights, carried = layer.slots, layer.held, windows.weights, windows.carried
    best_gpu, best_slot, best_other, least = NONE, NONE, NONE, most
    for gpu in range(slots.shape[0]):
        if carried[worst, gpu] >= least:
            continue
        for slot in range(slots.shape[1]):
            leaving = slots[hot, slot]
            if held[leaving, gpu] or not allowed[leaving, gpu]:
                continue
            for other_slot in range(slots.shape[1]):
                coming = slots[gpu, other_slot]
                moved = weights[worst, leaving] - weights[worst, coming]
                fuller = max(carried[worst, hot] - moved, carried[worst, gpu] + moved)
                if fuller >= least or held[coming, hot] or not allowed[coming, hot]:
                    continue
                for window in windows.counted:
                    moved = weights[window, leaving] - weights[window, coming]
                    fuller = max(fuller, carried[window, hot] - moved, carried[window, gpu] + moved)
                    if fuller >= least:
                        break
                if fuller < least:
                    best_gpu, best_slot, best_other, least = gpu, slot, other_slot, fuller
    return best_gpu, best_slot, best_other, least


@compiled
def _best_hand_over(
    layer: Layer, windows: Windows, allowed: NDArray[np.bool_], hot: int, least: float
) -> tuple[int, int, int, float]:
    """Return the expert that takes a slot, the GPU, the slot, and the highest load on the GPUs touched.

    Either an expert of the hot GPU takes a slot elsewhere, or any expert takes a slot of the hot GPU. The expert that
    gives up the slot has another replica.
    """
    slots, held, counts = layer.slots, layer.held, layer.counts
    best, best_gpu, best_slot = NONE, NONE, NONE
    for gpu in range(slots.shape[0]):
        for slot in range(slots.shape[1]):
            giver = slots[gpu, slot]
            if counts[giver] == 1:
                continue
            for number in range(layer.loads.size if gpu == hot else slots.shape[1]):
                expert = number if gpu == hot else slots[hot, number]
                if held[expert, gpu] or not allowed[expert, gpu]:
                    continue
                fuller = _after(layer, windows, expert, gpu, giver, hot, least)
                if fuller < least:
                    best, best_gpu, best_slot, least = expert, gpu, slot, fuller
    return best, best_gpu, best_slot, least


@compiled
def _after(layer: Layer, windows: Windows, expert: int, gpu: int, giver: int, hot: int, least: float) -> float:
    """Return the most that any GPU touched then carries in any window; `least` or more means: too much."""
    counts, held, most = layer.counts, layer.held, 0.0
    for window in windows.counted:
        weights, carried = windows.weights[window], windows.carried[window]
        weight = np.floor(windows.loads[window, expert] / (counts[expert] + 1))
        lighter = weights[expert] - weight
        heavier = np.floor(windows.loads[window, giver] / (counts[giver] - 1)) - weights[giver]
        most = max(most, carried[gpu] - weights[giver] + weight)
        if gpu != hot:
            most = max(most, carried[hot] - lighter + held[giver, hot] * heavier)
        if most >= least:
            return float(most)
        for home in layer.homes[giver, : counts[giver]]:
            if home != gpu:
                most = max(most, carried[home] + heavier - held[expert, home] * lighter)
        if most >= least:
            return float(most)
    return float(most)


@compiled
def _kick_on(layer: Layer, windows: Windows, allowed: NDArray[np.bool_], enough: float, num_kicks: int) -> None:
    """Kick and descend again. A better map is kept; otherwise the search goes back."""
    state = np.array([SEED], np.uint64)
    trial = new_layer(layer.loads, layer.slots.shape[0], layer.slots.shape[1])
    copy(trial, layer)
    _, _, reached = _fullest(windows)
    for _ in range(num_kicks):
        if reached <= enough:
            break
        kick(trial, state, KICK_CHANGES)
        _sum_up(trial, windows)
        most = _descend(trial, windows, allowed, enough)
        if most <= reached:
            reached = most
            copy(layer, trial)
        else:
            copy(trial, layer)
    _sum_up(layer, windows)


@compiled
def _undo(layer: Layer, windows: Windows, before: NDArray[np.bool_], allowed: NDArray[np.bool_], enough: float) -> None:
    """Undo changes while no GPU comes to carry more than `enough` in a window that counts."""
    trial = new_layer(layer.loads, layer.slots.shape[0], layer.slots.shape[1])
    copy(trial, layer)
    undone = True
    while undone:
        undone = False
        for gpu in range(layer.slots.shape[0]):
            for slot in range(layer.slots.shape[1]):
                newcomer = layer.slots[gpu, slot]
                for expert in range(0 if before[newcomer, gpu] else layer.loads.size):
                    if (
                        before[expert, gpu]
                        and not layer.held[expert, gpu]
                        and bring_back(trial, before, expert, gpu, slot)
                    ):
                        _sum_up(trial, windows)
                        if _fullest(windows)[2] <= enough and not (trial.held[newcomer] & ~allowed[newcomer]).any():
                            copy(layer, trial)
                            undone = True
                            break
                        copy(trial, layer)
    _sum_up(layer, windows)
