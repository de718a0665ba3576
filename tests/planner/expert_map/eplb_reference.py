"""DeepSeek's EPLB as published, slow and plain: what our balancer is compared with, in balance and in time.

Written from the description in its README and the behaviour of its code; float32 and one Python step a decision, as
published. It does not keep replicas of one expert off each other's GPU, and that is left as it is.

Source: github.com/deepseek-ai/EPLB, `eplb.py`.
"""

import numpy as np

number = np.float32  # the published code has torch scalars here; the benchmark puts them in, for their times


def rebalance_experts(loads, num_slots, num_groups, num_nodes, num_gpus):
    """The expert in each slot, `[layers, num_slots]`, for loads `[layers, experts]`.

    Hierarchical where whole groups spread evenly over nodes, else global, which is the same with one group on one node.
    """
    loads = np.asarray(loads, dtype=np.float32)
    if num_groups % num_nodes != 0:
        num_groups = num_nodes = 1
    return np.array([_rebalance_layer(row, num_slots, num_groups, num_nodes, num_gpus) for row in loads])


def _rebalance_layer(loads, num_slots, num_groups, num_nodes, num_gpus):
    """The expert in each slot of one layer, `[num_slots]`, node by node, GPU by GPU."""
    experts_of_group = np.arange(len(loads)).reshape(num_groups, -1)
    slots = []
    for groups in _pack(loads[experts_of_group].sum(axis=1), num_nodes):
        experts = np.concatenate([experts_of_group[group] for group in groups])
        slots += _balance_node(loads[experts], experts, num_slots // num_nodes, num_gpus // num_nodes)
    return slots


def _balance_node(loads, experts, num_slots, num_gpus):
    """The expert in each slot of one node that serves `experts`."""
    replicas, counts = _replicate(loads, num_slots)
    packs = _pack(loads[replicas] / counts[replicas], num_gpus)
    return [experts[replicas[replica]] for pack in packs for replica in pack]


def _replicate(loads, num_slots):
    """The expert of each replica, and the replicas of each expert: one more to the largest load / replicas, always."""
    replicas = list(range(len(loads)))
    counts = np.ones(len(loads), dtype=np.float32)  # as an integer it would make float64 of the quotients
    while len(replicas) < num_slots:
        hottest = int(np.argmax(loads / counts))
        replicas.append(hottest)
        counts[hottest] += 1
    return np.array(replicas), counts


def _pack(weights, num_packs):
    """The items of each pack, equally many each: heaviest first, to the lightest pack that has room."""
    room = len(weights) // num_packs
    packs = [[] for _ in range(num_packs)]
    if room == 1:
        return [[item] for item in range(num_packs)]
    pack_weights = [number(0)] * num_packs
    for item in np.argsort(-weights, kind="stable"):
        with_room = (pack for pack in range(num_packs) if len(packs[pack]) < room)
        lightest = min(with_room, key=pack_weights.__getitem__)
        packs[lightest].append(item)
        pack_weights[lightest] = pack_weights[lightest] + number(weights[item])
    return packs
