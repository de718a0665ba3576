"""Weigh the dispatch bytes that an expert map sends across nodes against the map's balance.

A token goes once to each other node that serves one of its experts (`facts/gate.py`), and it starts on each of the M
nodes with probability 1 / M. With P = G / M whole groups on each node, and K groups of a token, it crosses to

    (M - 1) (1 - C(G - P, K) / C(G, K))

nodes: 2.36 for 4 of 8 groups on 4 nodes. If any expert may be anywhere, or the gate has no groups, it crosses to 2.70.
Between these two, bytes grow with the load that is served away from its group's node, at first in proportion.

The front is a series of maps: the first keeps groups whole on nodes, the next have more and more replicas on other
nodes (`spill`), and the last ignores groups. The knee is the map with the least max over mean x bytes: beyond it, one
percent of balance costs more than one percent of bytes.
"""

from collections.abc import Sequence
from math import comb, prod

import numpy as np

from planner.expert_map import native
from planner.expert_map.types import FrontPoint, Policy, Sizes
from planner.expert_map.weigh import Floats, Ints, count_replicas
from planner.facts.gate import reach_probability

SOME_LOAD = 1e-9  # load of experts without load, so that every group has a share on some node


def find_home_nodes(loads_LE: Floats, slots_LGS: Ints, sizes: Sizes) -> Ints:
    """Return the home node of each expert, `[L, E]`: the node with the most slots of the expert's group."""
    num_layers, num_experts = loads_LE.shape
    group_of_expert = np.arange(num_experts) // (num_experts // sizes.num_groups)
    groups_LMN = group_of_expert[slots_LGS.reshape(num_layers, sizes.num_nodes, -1)]
    held_LMG = (groups_LMN[..., None] == np.arange(sizes.num_groups)).sum(axis=2)
    homes_LE: Ints = np.ascontiguousarray(held_LMG.argmax(axis=1)[:, group_of_expert])  # indexing left Fortran's order
    return homes_LE


def make_front(loads_LE: Floats, slots_QLGS: Ints, sizes: Sizes, policies: Sequence[Policy]) -> tuple[FrontPoint, ...]:
    """Return a point for each map: its max over mean and its cross-node dispatch bytes, as means over layers."""
    ratios_QL, crossings_QL = [], []
    for slots_LGS in slots_QLGS:
        gpu_loads_LG = native.gpu_loads(loads_LE, slots_LGS)
        mean_L = gpu_loads_LG.mean(axis=1)
        ratios_QL.append(np.divide(gpu_loads_LG.max(axis=1), mean_L, out=np.ones_like(mean_L), where=mean_L > 0))
        crossings_QL.append(num_crossings(loads_LE, slots_LGS, sizes))
    whole = _whole_group_crossings(sizes)
    return tuple(
        FrontPoint(
            policy=policy,
            max_over_mean=round(float(ratios_L.mean()), 6),
            extra_bytes_per_token=round(float(crossings_L.mean() - whole) * sizes.gate.copy_bytes, 3) + 0.0,  # no -0.0
            bytes_per_token=round(whole * sizes.gate.copy_bytes, 3),
        )
        for policy, ratios_L, crossings_L in zip(policies, ratios_QL, crossings_QL, strict=True)
    )


def num_crossings(loads_LE: Floats, slots_LGS: Ints, sizes: Sizes) -> Floats:
    """Return the mean number of other nodes that a token is sent to, in each layer, `[L]`."""
    num_layers, num_experts = loads_LE.shape
    weights_LE = np.maximum(loads_LE, SOME_LOAD) / count_replicas(slots_LGS, num_experts)
    slots_LMN = slots_LGS.reshape(num_layers, sizes.num_nodes, -1)
    layers, nodes = np.ogrid[:num_layers, : sizes.num_nodes]
    groups_LMN = slots_LMN // (num_experts // sizes.num_groups)
    shape = num_layers, sizes.num_groups, sizes.num_nodes
    places_LMN = np.ravel_multi_index((layers[..., None], groups_LMN, nodes[..., None]), shape)
    weights_LMN = weights_LE[layers[..., None], slots_LMN]
    served = np.bincount(places_LMN.ravel(), weights_LMN.ravel(), minlength=prod(shape))
    served_LPM = served.astype(np.float64, copy=False).reshape(shape)  # for mypy: numpy annotates it as integers
    crossings_L: Floats = reach_probability(served_LPM, sizes.gate).sum(axis=1) * (1 - 1 / sizes.num_nodes)
    return crossings_L


def _whole_group_crossings(sizes: Sizes) -> float:
    num_picked, on_node = sizes.gate.groups_of_a_token(sizes.num_groups), sizes.num_groups // sizes.num_nodes
    missed = comb(sizes.num_groups - on_node, num_picked) / comb(sizes.num_groups, num_picked)
    return (sizes.num_nodes - 1) * (1 - missed)


def drop_dominated(front: Sequence[FrontPoint]) -> tuple[FrontPoint, ...]:
    """Return the points for which no other point is better in both balance and bytes, sorted by bytes, ascending."""
    values = [(point.extra_bytes_per_token, point.max_over_mean) for point in front]
    kept = [
        point
        for point, (cost, ratio) in zip(front, values, strict=True)
        if not any(c <= cost and r <= ratio and (c, r) != (cost, ratio) for c, r in values)
    ]
    return tuple(sorted(kept, key=lambda point: point.extra_bytes_per_token))


def find_knee(front: Sequence[FrontPoint]) -> int:
    """Return the index of the point with the least product of max over mean and bytes, the first of equal ones."""
    return min(range(len(front)), key=lambda each: front[each].max_over_mean * front[each].bytes_ratio)
