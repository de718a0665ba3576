"""Count the copies of a token that a normal dispatch sends, before any expert map exists.

All experts are assumed equally likely. A gate that limits a token to K of G expert groups sends the token to fewer of N
nodes, if each group stays on one or several nodes:

    nodes with g whole groups each    P(a token goes there) = 1 - C(G - g, K) / C(G, K)
    several nodes to a group          P = K / G x (1 - (1 - G / N)^(E / K))
    otherwise                         P = 1 - (1 - 1 / N)^E

Source: github.com/deepseek-ai/DeepEP 0297fc80 docs/legacy.md (a token goes once to each node, then by NVLink).
"""

from collections.abc import Sequence
from math import comb
from typing import TYPE_CHECKING

from planner.estimate.throughput.imbalance import replicas_on_nodes
from planner.estimate.throughput.stages import Exchange
from planner.expert_map import ExpertMap
from planner.facts.model import Model
from planner.layout.dispatch import limiting_groups

if TYPE_CHECKING:
    from planner.expert_map.weigh import Floats


def expected_copies(model: Model, num_gpus: int, num_nodes: int, *, groups_on_nodes: bool) -> Exchange:
    """Return the expected number of copies of one token that are sent to other GPUs and to other nodes.

    `groups_on_nodes` says whether each group of experts is on one node.
    """
    experts = model.num_experts_per_token
    to_gpu = 1 - (1 - 1 / num_gpus) ** experts
    to_node = 1 - (1 - 1 / num_nodes) ** experts
    groups, picked = limiting_groups(model), model.num_groups_per_token
    if groups_on_nodes and groups > 1 and groups % num_nodes == 0:
        to_node = 1 - comb(groups - groups // num_nodes, picked) / comb(groups, picked)
    elif groups_on_nodes and groups > 1 and num_nodes % groups == 0:
        to_node = picked / groups * (1 - (1 - groups / num_nodes) ** (experts / picked))
    return Exchange(gpus=(num_gpus - 1) * to_gpu, nodes=(num_nodes - 1) * to_node)


def remote_share(expert_map: ExpertMap, loads: Sequence[Sequence[float]], num_places: int) -> float:
    """Return the share of token-expert pairs that are sent to another place, if a unit has `num_places` nodes or GPUs.

    If replicas are chosen equally, the share is 1 - 1 / num_places. If near replicas come first, pairs whose expert has
    a replica in the token's own place stay there.
    """
    if expert_map.split != "local_first":
        return 1 - 1 / num_places
    import numpy as np  # `validate` must not wait for it

    loads_LE: Floats = np.array(loads, dtype=np.float64)
    has_LE = (replicas_on_nodes(np.array(expert_map.physical_to_logical), num_places) > 0).mean(axis=2)
    return float(1 - ((loads_LE * has_LE).sum(axis=1) / np.maximum(loads_LE.sum(axis=1), 1e-12)).mean())
