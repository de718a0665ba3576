"""The map of DeepSeek's EPLB for the same loads: our search starts there, and no map of ours may be worse.

It packs longest first, to the lightest GPU that has room, without a look at what a GPU holds already; so replicas of
one expert may meet on a GPU. Like the published code it decides in float32: where two loads are as good as equal,
another rounding would make another map.

Source: github.com/deepseek-ai/EPLB; `tests/planner/expert_map/eplb_reference.py` is the whole of it, slow and plain.
"""

import numpy as np

from planner.expert_map.compiled import compiled
from planner.expert_map.heap import sink
from planner.expert_map.order import rising
from planner.expert_map.types import Sizes
from planner.expert_map.weigh import Floats, Ints

__all__ = ["eplb_counts", "eplb_fullest_of_layers", "eplb_slots"]


@compiled
def eplb_counts(loads: Floats, num_slots: int) -> Ints:
    """Return the replicas of each expert, `[E]`: the next one always goes to the largest load / replicas."""
    counts = np.ones(loads.size, np.int64)
    priorities = loads.astype(np.float32)
    for _ in range(num_slots - loads.size):
        first = np.argmax(priorities)
        counts[first] += 1
        priorities[first] = np.float32(loads[first]) / np.float32(counts[first])
    return counts


@compiled
def eplb_slots(loads: Floats, counts: Ints, num_gpus: int, slots_per_gpu: int) -> tuple[Ints, float]:
    """Return EPLB's packing of these replicas, `[G, S]`, and the load of its fullest GPU."""
    weights = np.zeros(loads.size, np.float32)
    for expert in range(loads.size):
        weights[expert] = np.float32(loads[expert]) / np.float32(counts[expert])
    slots = np.zeros((num_gpus, slots_per_gpu), np.int64)
    carried, filled = np.zeros(num_gpus, np.float32), np.zeros(num_gpus, np.int64)
    heap, size = np.arange(num_gpus), num_gpus  # of the GPUs with room
    for expert in rising(-weights.astype(np.float64)):
        for _ in range(counts[expert]):
            gpu = heap[0]
            slots[gpu, filled[gpu]] = expert
            filled[gpu] += 1
            carried[gpu] += weights[expert]
            if filled[gpu] == slots_per_gpu:
                size -= 1
                heap[0] = heap[size]
            sink(heap, size, carried)
    fullest = 0.0
    for gpu in range(num_gpus):
        total = 0.0
        for expert in slots[gpu]:
            total += loads[expert] / counts[expert]
        fullest = max(fullest, total)
    return slots, fullest


def eplb_fullest_of_layers(loads_LE: Floats, sizes: Sizes, *, within_nodes: bool) -> Floats:
    """Return the load of the fullest GPU in each layer of EPLB's map, `[L]`."""
    num_nodes, num_groups = (sizes.num_nodes, sizes.num_groups) if within_nodes else (1, 1)
    return _eplb_fullest_of_layers(loads_LE, sizes.num_gpus, sizes.slots_per_gpu, num_nodes, num_groups)


@compiled
def _eplb_fullest_of_layers(
    loads_LE: Floats, num_gpus: int, slots_per_gpu: int, num_nodes: int, num_groups: int
) -> Floats:
    """Pack groups on nodes as slots on GPUs; then each node is a problem of its own."""
    experts_per_group = loads_LE.shape[1] // num_groups
    groups_per_node, gpus_per_node = num_groups // num_nodes, num_gpus // num_nodes
    fullest_L = np.zeros(loads_LE.shape[0])
    for index in range(loads_LE.shape[0]):
        loads_GE = loads_LE[index].copy().reshape(num_groups, experts_per_group)
        nodes, _ = eplb_slots(loads_GE.sum(axis=1), np.ones(num_groups, np.int64), num_nodes, groups_per_node)
        for node in range(num_nodes):
            loads = np.zeros(groups_per_node * experts_per_group)
            for rank in range(groups_per_node):
                loads[rank * experts_per_group : (rank + 1) * experts_per_group] = loads_GE[nodes[node, rank]]
            counts = eplb_counts(loads, gpus_per_node * slots_per_gpu)
            _, fullest = eplb_slots(loads, counts, gpus_per_node, slots_per_gpu)
            fullest_L[index] = max(fullest_L[index], fullest)
    return fullest_L
