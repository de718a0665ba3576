"""What a map costs where groups stay on nodes but for a few experts (`spill`), and how much of that balance is worth.

A token routed to a replica on another node than that of the expert's group crosses to that node, unless another of its
experts is there anyway. Of G groups a token's experts are in K (`GROUPS_OF_A_TOKEN` of them; DeepSeek-V3: 4 of 8), and
P = G / M are on each of M nodes. One of the K is the expert's own, and with the others equally likely to be any K - 1
of the rest,

    p = C(G - 1 - P, K - 1) / C(G - 1, K - 1)

is the probability that none of them is on the second node; the token starts there with probability 1 / M, and then
crosses nothing. So a routed token-expert pair that is served away from its group's node crosses once more, with
`BYTES_PER_CROSSING`, with probability p (1 - 1 / M). Whole groups alone let a token cross to

    (M - 1) (1 - C(G - P, K) / C(G, K))

nodes. The bytes grow with the load that is served elsewhere, whichever experts it is of.

The front are the maps at one level of balance after the other. Its knee is where max over mean x bytes is least: beyond
it a percent of balance costs more than one of bytes.
"""

from math import comb

import numpy as np

from planner.expert_map.types import FrontPoint, Sizes
from planner.expert_map.weigh import Floats, Ints, count_replicas, max_over_mean

__all__ = ["BYTES_PER_CROSSING", "front_of", "homes_of_groups", "knee"]

GROUPS_OF_A_TOKEN = 0.5  # of all groups: DeepSeek-V3 routes to 4 of 8
EXPERTS_OF_A_TOKEN = 8  # DeepSeek-V3
BYTES_PER_CROSSING = 7392  # DeepEP, normal mode: one token in FP8 with its scales, of 7,168 hidden values


def homes_of_groups(loads_LE: Floats, slots_LGS: Ints, sizes: Sizes) -> Ints:
    """The node of each expert, `[L, E]`: that on which most slots of its group are."""
    num_layers, num_experts = loads_LE.shape
    group_of_expert = np.arange(num_experts) // (num_experts // sizes.num_groups)
    groups_LMN = group_of_expert[slots_LGS.reshape(num_layers, sizes.num_nodes, -1)]
    held_LMG = (groups_LMN[..., None] == np.arange(sizes.num_groups)).sum(axis=2)
    homes_LE: Ints = np.ascontiguousarray(held_LMG.argmax(axis=1)[:, group_of_expert])  # indexing makes it Fortran's
    return homes_LE


def front_of(loads_LE: Floats, slots_QLGS: Ints, homes_LE: Ints, sizes: Sizes) -> tuple[FrontPoint, ...]:
    """Max over mean and cross-node dispatch bytes of each of these maps, means of all layers."""
    groups, nodes = sizes.num_groups, sizes.num_nodes
    of_token, on_node = max(round(groups * GROUPS_OF_A_TOKEN), 1), groups // nodes
    alone = comb(groups - 1 - on_node, of_token - 1) / comb(groups - 1, of_token - 1) * (1 - 1 / nodes)
    crossings = (nodes - 1) * (1 - comb(groups - on_node, of_token) / comb(groups, of_token))
    points = []
    for slots_LGS in slots_QLGS:
        elsewhere = _share_elsewhere(loads_LE, slots_LGS, homes_LE, nodes)
        points.append(
            FrontPoint(
                max_over_mean=round(float(max_over_mean(loads_LE, slots_LGS).mean()), 6),
                extra_bytes_per_token=round(elsewhere * EXPERTS_OF_A_TOKEN * alone * BYTES_PER_CROSSING, 3),
                bytes_per_token=round(crossings * BYTES_PER_CROSSING, 3),
            )
        )
    return tuple(points)


def _share_elsewhere(loads_LE: Floats, slots_LGS: Ints, homes_LE: Ints, num_nodes: int) -> float:
    """Of the token-expert pairs of all layers, those served away from the node of the expert's group."""
    num_layers = len(slots_LGS)
    slots_LN = slots_LGS.reshape(num_layers, -1)
    node_of_slot = np.arange(slots_LN.shape[1]) // (slots_LN.shape[1] // num_nodes)
    is_away = np.take_along_axis(homes_LE, slots_LN, axis=1) != node_of_slot
    parts_LN = np.take_along_axis(loads_LE / count_replicas(slots_LGS, loads_LE.shape[1]), slots_LN, axis=1)
    total = float(loads_LE.sum())
    return float(parts_LN[is_away].sum()) / total if total > 0 else 0.0


def knee(front: tuple[FrontPoint, ...]) -> int:
    """The point where max over mean x bytes is least, the first of equals."""
    return min(range(len(front)), key=lambda each: front[each].max_over_mean * front[each].bytes_ratio)
