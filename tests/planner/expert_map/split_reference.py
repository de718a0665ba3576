"""What GPUs carry under the split rules that look at places, in numpy and floats: the slow reference of `layer.h`."""

import numpy as np

__all__ = ["carried_under"]


def carried_under(split, loads_E, slots_GS, num_nodes):
    """Return the load of each GPU under one of the two rules, `[G]`."""
    carry = carried_first_on_node if split == "first_on_node" else carried_local_first
    return carry(loads_E, slots_GS, num_nodes)


def carried_local_first(loads_E, slots_GS, num_nodes):
    """Return the load of each GPU under `local_first`, `[G]`."""
    num_gpus, gpus_per_node = len(slots_GS), len(slots_GS) // num_nodes
    near_EM = np.zeros((len(loads_E), num_nodes))
    for gpu, experts in enumerate(slots_GS):
        np.add.at(near_EM[:, gpu // gpus_per_node], experts, 1)
    without_E = (near_EM == 0).sum(axis=1)
    share_EM = gpus_per_node / num_gpus * (1 / np.maximum(near_EM, 1) + (without_E / near_EM.sum(axis=1))[:, None])
    nodes_G = np.arange(num_gpus) // gpus_per_node
    return (loads_E[slots_GS] * share_EM[slots_GS, nodes_G[:, None]]).sum(axis=1)


def carried_first_on_node(loads_E, slots_GS, num_nodes):
    """Return the load of each GPU under `first_on_node`, `[G]`, from parts of w / G: each is the tokens of one GPU."""
    num_gpus = len(slots_GS)
    copies_MPE = np.zeros((num_nodes, num_gpus // num_nodes, len(loads_E)))
    for gpu, experts in enumerate(slots_GS):
        np.add.at(copies_MPE[gpu // copies_MPE.shape[1], gpu % copies_MPE.shape[1]], experts, 1)
    holds_MPE = copies_MPE > 0
    near_ME, num_E = copies_MPE.sum(axis=1), copies_MPE.sum(axis=(0, 1))
    without_ME = (~holds_MPE).sum(axis=1)  # GPUs of each node that do not hold the expert
    to_first_ME = np.where((near_ME > 0) & (near_ME < num_E), without_ME, 0)
    to_any_E = (without_ME - to_first_ME).sum(axis=0)
    is_first_MPE = holds_MPE & (holds_MPE.cumsum(axis=1) == 1)
    parts_MPE = holds_MPE + is_first_MPE * to_first_ME[:, None] + copies_MPE * (to_any_E / num_E)
    return (parts_MPE.reshape(num_gpus, -1) * (loads_E / num_gpus)).sum(axis=1)
