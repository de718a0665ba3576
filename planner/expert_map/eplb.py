"""What DeepSeek's EPLB reaches for the same loads: the level that our maps are never to be worse than.

Only what its fullest GPU carries, without its map. It packs longest first, to the lightest GPU that has room, without a
look at what a GPU holds already; so replicas of one expert may meet on a GPU.

Source: github.com/deepseek-ai/EPLB; `tests/planner/expert_map/eplb_reference.py` is the whole of it, slow and plain.
"""

import numpy as np

from planner.expert_map.balance import Sizes
from planner.expert_map.compiled import compiled
from planner.expert_map.order import rising
from planner.expert_map.replicate import replicate
from planner.expert_map.weigh import Floats, Ints

__all__ = ["eplb_fullest", "eplb_fullest_of_layers"]


@compiled
def eplb_fullest(loads: Floats, counts: Ints, num_gpus: int, slots_per_gpu: int) -> float:
    """What the fullest GPU carries when EPLB packs these counts."""
    weights = loads / counts
    carried = np.zeros(num_gpus)
    filled = np.zeros(num_gpus, np.int64)
    for expert in rising(-weights):
        for _ in range(counts[expert]):
            lightest = -1
            for gpu in range(num_gpus):
                if filled[gpu] < slots_per_gpu and (lightest < 0 or carried[gpu] < carried[lightest]):
                    lightest = gpu
            carried[lightest] += weights[expert]
            filled[lightest] += 1
    return float(carried.max())


def eplb_fullest_of_layers(loads_LE: Floats, sizes: Sizes, *, within_nodes: bool) -> Floats:
    """What the fullest GPU carries in each layer of the map that EPLB makes, `[L]`."""
    num_nodes, num_groups = (sizes.num_nodes, sizes.num_groups) if within_nodes else (1, 1)
    return _eplb_fullest_of_layers(loads_LE, sizes.num_gpus, sizes.slots_per_gpu, num_nodes, num_groups)


@compiled
def _eplb_fullest_of_layers(
    loads_LE: Floats, num_gpus: int, slots_per_gpu: int, num_nodes: int, num_groups: int
) -> Floats:
    """Groups are packed on nodes as slots on GPUs are; then each node is a problem of its own."""
    experts_per_group = loads_LE.shape[1] // num_groups
    groups_per_node, gpus_per_node = num_groups // num_nodes, num_gpus // num_nodes
    fullest_L = np.zeros(loads_LE.shape[0])
    for index in range(loads_LE.shape[0]):
        loads_GE = loads_LE[index].copy().reshape(num_groups, experts_per_group)
        nodes = _eplb_nodes(loads_GE.sum(axis=1), num_nodes, groups_per_node)
        for node in range(num_nodes):
            loads = np.zeros(groups_per_node * experts_per_group)
            for rank in range(groups_per_node):
                loads[rank * experts_per_group : (rank + 1) * experts_per_group] = loads_GE[nodes[node, rank]]
            counts = replicate(loads, gpus_per_node * slots_per_gpu, gpus_per_node, 0.0)
            fullest_L[index] = max(fullest_L[index], eplb_fullest(loads, counts, gpus_per_node, slots_per_gpu))
    return fullest_L


@compiled
def _eplb_nodes(loads: Floats, num_nodes: int, groups_per_node: int) -> Ints:
    """The groups on each node, `[M, P]`: heaviest first, to the lightest node that has room."""
    nodes = np.zeros((num_nodes, groups_per_node), np.int64)
    carried, filled = np.zeros(num_nodes), np.zeros(num_nodes, np.int64)
    for group in rising(-loads):
        lightest = -1
        for node in range(num_nodes):
            if filled[node] < groups_per_node and (lightest < 0 or carried[node] < carried[lightest]):
                lightest = node
        nodes[lightest, filled[lightest]] = group
        carried[lightest] += loads[group]
        filled[lightest] += 1
    return nodes
