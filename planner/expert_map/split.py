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

__all__ = ["carried_under", "max_over_mean_under", "shares_under"]


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
    """Return the load of each GPU under a rule, `[G]`."""
    carried: Floats = (shares_under(split, len(loads_E), slots_GS, num_nodes) * loads_E).sum(axis=1)
    return carried


def shares_under(split: SplitRule, num_experts: int, slots_GS: Ints, num_nodes: int) -> Floats:
    """Return which share of each expert's load each GPU carries under a rule, `[G, E]`; each expert's add up to 1."""
    copies_GE = np.zeros((len(slots_GS), num_experts))
    for gpu, experts in enumerate(slots_GS):
        np.add.at(copies_GE[gpu], experts, 1)
    if split == "equal":
        equal_GE: Floats = copies_GE / np.maximum(copies_GE.sum(axis=0), 1)
        return equal_GE
    copies_MPE = copies_GE.reshape(num_nodes, -1, num_experts)
    shares_MPE = _first_on_node(copies_MPE) if split == "first_on_node" else _local_first(copies_MPE)
    return shares_MPE.reshape(copies_GE.shape)


def _local_first(copies_MPE: Floats) -> Floats:
    """Return what each GPU carries of each expert under `local_first`, `[M, P, E]`, from its copies there."""
    near_ME = copies_MPE.sum(axis=1)
    without_E = (near_ME == 0).sum(axis=0)
    of_a_node = 1 / len(copies_MPE)
    share_ME = of_a_node * (1 / np.maximum(near_ME, 1) + without_E / np.maximum(near_ME.sum(axis=0), 1))
    shares_MPE: Floats = copies_MPE * share_ME[:, None]
    return shares_MPE


def _first_on_node(copies_MPE: Floats) -> Floats:
    """Return the same under `first_on_node`, from parts of 1 / G: each is the tokens of one GPU."""
    holds_MPE = copies_MPE > 0
    near_ME, num_E = copies_MPE.sum(axis=1), copies_MPE.sum(axis=(0, 1))
    without_ME = (~holds_MPE).sum(axis=1)  # GPUs of each node that do not hold the expert
    to_first_ME = np.where((near_ME > 0) & (near_ME < num_E), without_ME, 0)
    to_any_E = (without_ME - to_first_ME).sum(axis=0)
    is_first_MPE = holds_MPE & (holds_MPE.cumsum(axis=1) == 1)
    parts_MPE = holds_MPE + is_first_MPE * to_first_ME[:, None] + copies_MPE * (to_any_E / np.maximum(num_E, 1))
    shares_MPE: Floats = parts_MPE / (copies_MPE.shape[0] * copies_MPE.shape[1])
    return shares_MPE
