"""Maps that keep each group of experts on one node, for models that route a token to few groups.

DeepSeek-V3 sends a token to experts of at most 4 of 8 groups, so that with a group's replicas all on one node a token
leaves for at most 4 nodes. Groups go to nodes by their load, equally many to each; then every node is a problem of its
own, with its experts, its share of the slots and its GPUs.

How even that can be is decided by the groups: where 2 go to each node, the best is to pair the heaviest with the
lightest, and the heaviest pair is what the fullest GPU cannot be below.

Source: github.com/deepseek-ai/EPLB (`rebalance_experts_hierarchical`).
"""

import numpy as np

from planner.expert_map.types import Policy, Sizes
from planner.expert_map.weigh import Floats, Ints

__all__ = ["choose_policy", "experts_of_nodes", "fullest_node_bound"]


def choose_policy(sizes: Sizes, policy: Policy) -> tuple[Policy, str]:
    """Return the policy to make the map by, and why."""
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


def experts_of_nodes(groups_LMP: Ints, num_experts: int, num_groups: int) -> Ints:
    """Return the experts of each node, `[L, M, E / M]`, from the groups on each node, `[L, M, P]`."""
    experts_per_group = num_experts // num_groups
    experts = groups_LMP[..., None] * experts_per_group + np.arange(experts_per_group)
    return experts.reshape(*groups_LMP.shape[:2], -1)


def fullest_node_bound(loads_LE: Floats, sizes: Sizes) -> Floats:
    """Return a lower bound on the fullest node's load / the mean of nodes, `[L]`, when nodes hold whole groups.

    The node of the heaviest group holds P - 1 more, and no P - 1 are lighter than the lightest ones. With P = 2 some
    map reaches the highest such pair of the folded order: of the i + 1 heaviest groups two share a node, or one of
    them has a partner at least as heavy as the (i + 1)th lightest.
    """
    num_layers = len(loads_LE)
    groups_LG = np.sort(loads_LE.reshape(num_layers, sizes.num_groups, -1).sum(axis=2), axis=1)[:, ::-1]
    per_node = sizes.num_groups // sizes.num_nodes
    mean_L = loads_LE.sum(axis=1) / sizes.num_nodes
    if per_node == 2:
        min_L = (groups_LG[:, : sizes.num_nodes] + groups_LG[:, : sizes.num_nodes - 1 : -1]).max(axis=1)
    else:
        min_L = groups_LG[:, 0] + groups_LG[:, sizes.num_groups - per_node + 1 :].sum(axis=1)
    ratios: Floats = np.divide(min_L, mean_L, out=np.ones_like(mean_L), where=mean_L > 0)
    return ratios
