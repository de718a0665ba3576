"""One layer's map while it is being made: what is where, and the two changes that everything is made of.

    swap        two slots on two GPUs exchange their experts
    hand over   a slot passes from an expert with several replicas to another: the replicas of the one get heavier,
                those of the other lighter

Numbers are set one by one: numba takes seconds to compile the assignment of a whole array.

The invariants, after every change: no GPU holds an expert twice; `weights` are loads / counts, rounded down to whole
numbers; `carried` is the sum of weights over a GPU's slots, which whole numbers keep exact however long the chain.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.expert_map.compiled import compiled
from planner.expert_map.weigh import Floats, Ints

__all__ = ["Layer", "clear", "copy", "fullest", "hand_over", "keep", "new_layer", "rehome", "reload", "swap", "take"]


class Layer(NamedTuple):
    """E experts in the slots of G GPUs, S each."""

    loads: Floats  # [E]
    counts: Ints  # [E] replicas
    weights: Floats  # [E] what each replica carries
    slots: Ints  # [G, S] the expert there
    held: NDArray[np.bool_]  # [E, G] whether the GPU holds the expert
    homes: NDArray[np.int32]  # [E, G] the GPUs of its replicas: the first `counts` entries
    carried: Floats  # [G]


@compiled
def new_layer(loads: Floats, num_gpus: int, slots_per_gpu: int) -> Layer:
    """Return a layer with nothing placed yet and one replica for each expert."""
    num_experts = loads.size
    return Layer(
        loads.copy(),
        np.ones(num_experts, np.int64),
        loads.copy(),
        np.zeros((num_gpus, slots_per_gpu), np.int64),
        np.zeros((num_experts, num_gpus), np.bool_),
        np.zeros((num_experts, num_gpus), np.int32),
        np.zeros(num_gpus),
    )


@compiled
def reload(layer: Layer, loads: Floats) -> None:
    """Empty the layer and give its experts these loads."""
    clear(layer)
    for expert in range(loads.size):
        layer.loads[expert] = loads[expert]


@compiled
def take(layer: Layer, slots: Ints) -> None:
    """Hold the map `slots`, [G, S]: each expert at least once, and none twice on a GPU."""
    clear(layer)
    for gpu in range(slots.shape[0]):
        for slot in range(slots.shape[1]):
            expert = slots[gpu, slot]
            layer.slots[gpu, slot] = expert
            layer.homes[expert, layer.counts[expert]] = gpu
            layer.counts[expert] += 1
            layer.held[expert, gpu] = True
    for expert in range(layer.loads.size):
        layer.weights[expert] = np.floor(layer.loads[expert] / layer.counts[expert])
    for gpu in range(slots.shape[0]):
        for expert in slots[gpu]:
            layer.carried[gpu] += layer.weights[expert]


@compiled
def keep(layer: Layer, slots_LGS: Ints, index: int) -> None:
    """Write the layer's slots to `slots_LGS[index]`."""
    for gpu in range(slots_LGS.shape[1]):
        for slot in range(slots_LGS.shape[2]):
            slots_LGS[index, gpu, slot] = layer.slots[gpu, slot]


@compiled
def clear(layer: Layer) -> None:
    """Hold nothing. It forgets only what `slots` say is held."""
    for gpu in range(layer.carried.size):
        layer.carried[gpu] = 0.0
        for slot in range(layer.slots.shape[1]):
            layer.held[layer.slots[gpu, slot], gpu] = False
    for expert in range(layer.loads.size):
        layer.counts[expert] = 0


@compiled
def copy(target: Layer, source: Layer) -> None:
    """Make `target`, of the same sizes and loads, hold what `source` holds."""
    clear(target)
    for expert in range(target.loads.size):
        target.counts[expert] = source.counts[expert]
        target.weights[expert] = source.weights[expert]
        for replica in range(source.counts[expert]):
            target.homes[expert, replica] = source.homes[expert, replica]
    for gpu in range(target.carried.size):
        target.carried[gpu] = source.carried[gpu]
        for slot in range(target.slots.shape[1]):
            expert = source.slots[gpu, slot]
            target.slots[gpu, slot] = expert
            target.held[expert, gpu] = True


@compiled
def fullest(layer: Layer) -> int:
    """Return the GPU that carries most, the first among equals."""
    hot = 0
    for gpu in range(1, layer.carried.size):
        if layer.carried[gpu] > layer.carried[hot]:
            hot = gpu
    return hot


@compiled
def swap(layer: Layer, gpu: int, slot: int, other_gpu: int, other_slot: int) -> None:
    """Exchange the experts of two slots; neither GPU holds the other's yet."""
    leaving, coming = layer.slots[gpu, slot], layer.slots[other_gpu, other_slot]
    layer.slots[gpu, slot], layer.slots[other_gpu, other_slot] = coming, leaving
    rehome(layer, leaving, gpu, other_gpu)
    rehome(layer, coming, other_gpu, gpu)
    moved = layer.weights[leaving] - layer.weights[coming]
    layer.carried[gpu] -= moved
    layer.carried[other_gpu] += moved


@compiled
def hand_over(layer: Layer, expert: int, gpu: int, slot: int) -> None:
    """Give `expert`, which the GPU does not hold yet, the slot of an expert that has another replica elsewhere."""
    giver = layer.slots[gpu, slot]
    layer.carried[gpu] -= layer.weights[giver]
    rehome(layer, giver, gpu, layer.homes[giver, layer.counts[giver] - 1])
    layer.held[giver, gpu] = False
    layer.counts[giver] -= 1
    _reweigh(layer, giver, layer.counts[giver])
    layer.slots[gpu, slot] = expert
    layer.homes[expert, layer.counts[expert]] = gpu
    layer.held[expert, gpu] = True
    layer.counts[expert] += 1
    _reweigh(layer, expert, layer.counts[expert] - 1)
    layer.carried[gpu] += layer.weights[expert]


@compiled
def _reweigh(layer: Layer, expert: int, num_carried: int) -> None:
    """Set the weight of an expert whose count changed.

    The loads of GPUs follow for its first `num_carried` replicas, the ones that they count already.
    """
    weight = np.floor(layer.loads[expert] / layer.counts[expert])
    for replica in range(num_carried):
        layer.carried[layer.homes[expert, replica]] += weight - layer.weights[expert]
    layer.weights[expert] = weight


@compiled
def rehome(layer: Layer, expert: int, gpu: int, new_gpu: int) -> None:
    """Note that one replica of the expert moved from `gpu` to `new_gpu`."""
    for replica in range(layer.counts[expert]):
        if layer.homes[expert, replica] == gpu:
            layer.homes[expert, replica] = new_gpu
            break
    layer.held[expert, gpu] = False
    layer.held[expert, new_gpu] = True
