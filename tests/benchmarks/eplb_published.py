"""DeepSeek's EPLB with torch where the published code has torch: what times are compared with.

`tests/planner/expert_map/eplb_reference.py` is the same algorithm in plain Python and makes the same maps, several
times faster; a ratio against that would measure somebody else's program. So this one keeps what costs the time in the
published code: all layers of a replica at once, as one torch expression; one Python step for each item packed, whose
pack weights become torch scalars as items are added, and are compared as such; results written into tensors one by one.

Source: github.com/deepseek-ai/EPLB 57919718be1f, `eplb.py`, told in our own words.
"""

import torch

__all__ = ["rebalance_experts"]


def rebalance_experts(loads, num_slots, num_groups, num_nodes, num_gpus):
    """The expert in each slot `[layers, num_slots]`, the slots of each expert (-1 beyond), the replicas of each."""
    loads = torch.as_tensor(loads).float().cpu()
    if num_groups % num_nodes != 0:
        num_groups = num_nodes = 1
    experts, ranks, counts = _rebalance_hierarchically(loads, num_slots, num_groups, num_nodes, num_gpus)
    most = counts.max().item()
    slots = torch.full((len(loads), loads.shape[1] * most), -1, dtype=torch.int64)
    slots.scatter_(1, experts * most + ranks, torch.arange(num_slots).expand(len(loads), -1))
    return experts, slots.view(*loads.shape, most), counts


def _rebalance_hierarchically(loads, num_slots, num_groups, num_nodes, num_gpus):
    """Groups to nodes, replicas within nodes, replicas to GPUs: experts and ranks of slots, counts of experts."""
    num_layers, num_experts = loads.shape
    group_size, per_node = num_experts // num_groups, num_experts // num_nodes
    node, place = _pack(loads.view(num_layers, num_groups, group_size).sum(-1), num_nodes)
    place_of_group = (node * (num_groups // num_nodes) + place) * group_size
    to_node_order = (place_of_group[:, :, None] + torch.arange(group_size)).flatten(1)
    from_node_order = _inverse(to_node_order)
    node_loads = loads.gather(1, from_node_order).view(-1, per_node)

    experts, ranks, counts = _replicate(node_loads, num_slots // num_nodes)
    gpu, place = _pack((node_loads / counts).gather(1, experts), num_gpus // num_nodes)
    order = _inverse(gpu * (num_slots // num_gpus) + place)

    first_of_node = torch.arange(0, num_experts, per_node)[None, :, None]
    in_node_order = (experts.gather(1, order).view(num_layers, num_nodes, -1) + first_of_node).flatten(1)
    return (
        from_node_order.gather(1, in_node_order),
        ranks.gather(1, order).view(num_layers, -1),
        counts.view(num_layers, -1).gather(1, to_node_order),
    )


def _pack(weights, num_packs):
    """Pack and place in it of each item: heaviest first, to the lightest pack that has room."""
    room = weights.shape[1] // num_packs
    if room == 1:
        return torch.arange(weights.shape[1]).expand(weights.shape), torch.zeros_like(weights, dtype=torch.int64)
    heaviest_first = weights.sort(-1, descending=True).indices
    pack_of = torch.full_like(weights, -1, dtype=torch.int64)
    place_of = torch.full_like(pack_of, -1)
    for layer in range(len(weights)):
        carried, filled = [0] * num_packs, [0] * num_packs
        for item in heaviest_first[layer]:
            pack = min((each for each in range(num_packs) if filled[each] < room), key=carried.__getitem__)
            pack_of[layer, item] = pack
            place_of[layer, item] = filled[pack]
            carried[pack] += weights[layer, item]
            filled[pack] += 1
    return pack_of, place_of


def _replicate(loads, num_slots):
    """Expert and rank of each replica, replicas of each expert: one more to the largest load / replicas, always."""
    num_rows, num_experts = loads.shape
    rows = torch.arange(num_rows)
    experts = torch.arange(num_slots).repeat(num_rows, 1)
    ranks = torch.zeros(num_rows, num_slots, dtype=torch.int64)
    counts = torch.ones(num_rows, num_experts, dtype=torch.int64)
    for replica in range(num_experts, num_slots):
        hottest = (loads / counts).max(dim=-1).indices
        experts[:, replica] = hottest
        ranks[:, replica] = counts[rows, hottest]
        counts[rows, hottest] += 1
    return experts, ranks, counts


def _inverse(permutations):
    inverse = torch.empty_like(permutations)
    return inverse.scatter_(1, permutations, torch.arange(permutations.shape[1]).expand(permutations.shape))
