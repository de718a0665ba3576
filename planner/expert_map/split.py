"""What GPUs carry when tokens choose among replicas by a rule: equally often, or near ones first.

Tokens split equally, or by two rules that look at places. Tokens come from all GPUs alike, and a token's replica is
    local_first      one on its own GPU if there is one, else one on its own node, else any; of several of those, each
                     equally often
    first_on_node    one on its own GPU if there is one; else, if its node has replicas and others have some too, the
                     first on its node; else any, each equally often

Of an expert with load w, R replicas and k of them on a node of p of the G GPUs, a replica on that node carries under
`local_first`

    w / G x (p / k + p x nodes without a replica / R)

which is w / R wherever nodes with a replica have equally many, and more on nodes with fewer than others. A GPU that
holds the expert keeps its own tokens and takes fewer of its neighbours', so that own GPU first changes no sum. Under
`first_on_node` it does: unless all R are on the node, where each carries w / R, the others there carry

    w / G x (1 + p x nodes without a replica / R)        and the first p - k more parts of w / G

The search counts by the same formulas (`part` in `native/layer.h`). Of the bounds for equal shares these hold here: the
mean, the largest replica, which carries at least w / R, and those of groups and of coverage.

Source of `first_on_node`: github.com/sgl-project/sglang, release 0.5.23, python/sglang/srt/eplb/expert_location.py,
_find_nearest_expert.
"""

import numpy as np

from planner.expert_map.types import SplitRule
from planner.expert_map.weigh import Floats, Ints, max_over_mean

__all__ = ["carried_first_on_node", "carried_local_first", "carried_under", "max_over_mean_under"]


def max_over_mean_under(split: SplitRule, loads_LE: Floats, slots_LGS: Ints, num_nodes: int) -> Floats:
    """Return the load of the fullest GPU / mean of all, `[L]`, under the rule; 1.0 without load."""
    if split == "equal":
        return max_over_mean(loads_LE, slots_LGS)
    pairs = zip(loads_LE, slots_LGS, strict=True)
    fullest_L = np.array([carried_under(split, *each, num_nodes).max() for each in pairs])
    mean_L = loads_LE.sum(axis=1) / slots_LGS.shape[1]
    ratios_L: Floats = np.divide(fullest_L, mean_L, out=np.ones_like(mean_L), where=mean_L > 0)
    return ratios_L


def carried_under(split: SplitRule, loads_E: Floats, slots_GS: Ints, num_nodes: int) -> Floats:
    """Return the load of each GPU under one of the two rules, `[G]`."""
    carry = carried_first_on_node if split == "first_on_node" else carried_local_first
    return carry(loads_E, slots_GS, num_nodes)


def carried_local_first(loads_E: Floats, slots_GS: Ints, num_nodes: int) -> Floats:
    """Return the load of each GPU under `local_first`, `[G]`."""
    num_gpus, gpus_per_node = len(slots_GS), len(slots_GS) // num_nodes
    near_EM = np.zeros((len(loads_E), num_nodes))
    for gpu, experts in enumerate(slots_GS):
        np.add.at(near_EM[:, gpu // gpus_per_node], experts, 1)
    without_E = (near_EM == 0).sum(axis=1)
    share_EM = gpus_per_node / num_gpus * (1 / np.maximum(near_EM, 1) + (without_E / near_EM.sum(axis=1))[:, None])
    nodes_G = np.arange(num_gpus) // gpus_per_node
    carried: Floats = (loads_E[slots_GS] * share_EM[slots_GS, nodes_G[:, None]]).sum(axis=1)
    return carried


def carried_first_on_node(loads_E: Floats, slots_GS: Ints, num_nodes: int) -> Floats:
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
    carried: Floats = (parts_MPE.reshape(num_gpus, -1) * (loads_E / num_gpus)).sum(axis=1)
    return carried
