"""Maps that keep each group of experts on one node, for models that route a token to few groups.

DeepSeek-V3 sends a token to experts of at most 4 of 8 groups. If each group is on one node, a token goes to at most 4
nodes. Groups are packed onto nodes by load, equally many on each. Then every node is a balancing problem of its own,
with its experts, its share of the slots and its GPUs.

The groups limit how even a map can be. With 2 groups per node it is best to pair the heaviest with the lightest, and
the fullest GPU carries at least the heaviest pair's load / the node's GPUs.

Source: github.com/deepseek-ai/EPLB (`rebalance_experts_hierarchical`).
"""

import numpy as np

from planner.expert_map import native
from planner.expert_map.types import Policy, Sizes
from planner.expert_map.weigh import Floats, Ints


def choose_policy(sizes: Sizes, policy: Policy) -> tuple[Policy, str]:
    """Return (policy, reason). `global` lets experts be on any node; `hierarchical` keeps each group on one node."""
    if policy != "auto":
        return policy, "as asked for"
    if sizes.num_nodes == 1:
        return "global", "one node: nothing crosses nodes"
    if sizes.num_groups == 1:
        return "global", "no groups to keep on nodes: tokens go to any node whatever the map"
    if not sizes.groups_spread_over_nodes:
        return "global", f"{sizes.num_groups} groups cannot spread evenly over {sizes.num_nodes} nodes"
    return (
        "hierarchical",
        f"{sizes.num_groups} groups stay whole on {sizes.num_nodes} nodes: fewer dispatch bytes cross nodes",
    )


def split_by_node(loads_LE: Floats, sizes: Sizes, groups_LMP: Ints) -> tuple[Ints, Floats, Sizes]:
    """Return each node's experts and their loads, `[L, M, E / M]` each, and the sizes of one node's own problem.

    `groups_LMP` has the groups on each node, `[L, M, P]`.
    """
    experts_per_group = loads_LE.shape[1] // sizes.num_groups
    experts_LMPF = groups_LMP[..., None] * experts_per_group + np.arange(experts_per_group)
    experts_LMF = experts_LMPF.reshape(*groups_LMP.shape[:2], -1)
    node_sizes = Sizes(sizes.num_slots // sizes.num_nodes, sizes.num_gpus // sizes.num_nodes)
    return experts_LMF, np.take_along_axis(loads_LE[:, None], experts_LMF, axis=2), node_sizes


def sum_groups(loads_LE: Floats, sizes: Sizes) -> tuple[Floats, Sizes]:
    """Return the load of each group, `[L, groups]`, and the sizes of the problem of packing groups onto nodes."""
    groups_LP: Floats = loads_LE.reshape(len(loads_LE), sizes.num_groups, -1).sum(axis=2)
    return groups_LP, Sizes(sizes.num_groups, sizes.num_nodes)


def compute_eplb_peaks(loads_LE: Floats, sizes: Sizes, *, within_nodes: bool) -> Floats:
    """Return the load of the fullest GPU in each layer, `[L]`, with the map of the published EPLB."""
    if not within_nodes:
        return native.pack(loads_LE, sizes, as_eplb=True)[1]
    groups_LMP = native.pack(*sum_groups(loads_LE, sizes), as_eplb=True)[0]
    _, loads_LMF, node_sizes = split_by_node(loads_LE, sizes, groups_LMP)
    fullest_K = native.pack(loads_LMF.reshape(-1, loads_LMF.shape[2]), node_sizes, as_eplb=True)[1]
    fullest_L: Floats = fullest_K.reshape(len(loads_LE), -1).max(axis=1)
    return fullest_L


def fullest_node_bound(loads_LE: Floats, sizes: Sizes) -> Floats:
    """Return a lower bound on the fullest node's load / the mean of nodes, `[L]`, if nodes hold whole groups.

    The node with the heaviest group holds P - 1 more groups, at least as heavy as the P - 1 lightest. With P = 2 the
    bound is exact: pair the ith heaviest group with the ith lightest; the heaviest such pair cannot be avoided. The
    reason is that among the i heaviest groups either two share a node, or one has a partner at least as heavy as the
    ith lightest.
    """
    groups_LG = np.sort(sum_groups(loads_LE, sizes)[0], axis=1)[:, ::-1]
    per_node = sizes.num_groups // sizes.num_nodes
    mean_L = loads_LE.sum(axis=1) / sizes.num_nodes
    if per_node == 2:
        min_L = (groups_LG[:, : sizes.num_nodes] + groups_LG[:, : sizes.num_nodes - 1 : -1]).max(axis=1)
    else:
        min_L = groups_LG[:, 0] + groups_LG[:, sizes.num_groups - per_node + 1 :].sum(axis=1)
    ratios: Floats = np.divide(min_L, mean_L, out=np.ones_like(mean_L), where=mean_L > 0)
    return ratios
