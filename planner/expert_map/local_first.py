"""Maps for tokens that stay near: the split rule `local_first`, and what GPUs carry under it.

A token's replica is one on its own GPU if there is one, else one on its own node, else any; of several of those, each
equally often. Tokens come from all GPUs alike. Of an expert with load w, R replicas and k of them on a node of p of the
G GPUs, a replica on that node carries

    w / G x (p / k + p x nodes without a replica / R)

which is w / R wherever nodes with a replica have equally many, and more on nodes with fewer than others. A GPU that
holds the expert keeps its own tokens and takes fewer of its neighbours', so that own GPU first changes no sum.

The map is one for equal shares, in which the fullest GPU is then relieved by swaps while any helps.

Of the bounds for equal shares these hold here: the mean, the largest replica, which carries at least w / R, and those
of groups and of coverage.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.expert_map.compiled import compiled
from planner.expert_map.covered import bound_of_replicas
from planner.expert_map.domains import count_uncovered
from planner.expert_map.layer import Layer, fullest, keep, new_layer, swap, take
from planner.expert_map.moves import count_moves
from planner.expert_map.outcome import PRINTED, as_bounds, as_ratios, as_rows, as_slots, holds_everything
from planner.expert_map.renew import align, keeps_groups_whole
from planner.expert_map.types import BoundKind, Domains, ExpertMap, Sizes
from planner.expert_map.weigh import Floats, Ints, scale

__all__ = ["carried_local_first", "keep_good", "settle"]

NONE = -1


class Nodes(NamedTuple):
    """Where one layer's replicas are, on M nodes."""

    near: Ints  # [E, M] how many on each node
    num_with: Ints  # [E] nodes with one at least


def settle(
    expert_map: ExpertMap,
    loads_LE: Floats,
    sizes: Sizes,
    *,
    within_nodes: bool,
) -> ExpertMap:
    """`expert_map` made even under the rule. `within_nodes`: experts stay on the nodes that they are on."""
    loads_LE = scale(loads_LE)
    slots_LGS = as_slots(expert_map.physical_to_logical, sizes)
    if not holds_everything(sizes, loads_LE.shape[1]):
        slots_LGS = _settle(loads_LE, slots_LGS, sizes.num_gpus // sizes.num_nodes, within_nodes)
    bound_L, binding = _bind(expert_map, loads_LE, sizes)
    return replace(
        expert_map,
        physical_to_logical=as_rows(slots_LGS),
        max_over_mean=as_ratios(_max_over_mean(loads_LE, slots_LGS, sizes)),
        bound=as_bounds(bound_L),
        binding=binding,
        split="local_first",
    )


def keep_good(
    settled: ExpertMap,
    fresh: ExpertMap,
    loads_LE: Floats,
    sizes: Sizes,
    previous_LGS: Ints,
    keep_within: float,
    domains: Domains,
) -> ExpertMap:
    """`settled` with the layers of the `previous` map that are as even as those of a fresh one, or nearly.

    `settled` came from the previous map with few changes. Where groups stay on nodes, no layer is kept that splits one.
    """
    loads_LE = scale(loads_LE)
    slots_LGS = as_slots(settled.physical_to_logical, sizes)
    ratio_L = _max_over_mean(loads_LE, previous_LGS, sizes)
    enough_L = np.array(fresh.max_over_mean) * (1 + keep_within) + PRINTED
    is_covered_L = np.array([not domains or count_uncovered([row], domains) == 0 for row in as_rows(previous_LGS)])
    kept_L = (ratio_L <= enough_L) & is_covered_L
    if settled.policy == "hierarchical":
        kept_L &= keeps_groups_whole(previous_LGS, sizes, loads_LE.shape[1])
    slots_LGS = align(np.where(kept_L[:, None, None], previous_LGS, slots_LGS), previous_LGS)
    return replace(
        settled,
        physical_to_logical=as_rows(slots_LGS),
        max_over_mean=as_ratios(_max_over_mean(loads_LE, slots_LGS, sizes)),
        moved_slots=count_moves(slots_LGS, previous_LGS, loads_LE.shape[1]),
    )


def carried_local_first(loads_E: Floats, slots_GS: Ints, num_nodes: int) -> Floats:
    """What each GPU carries, `[G]`."""
    num_gpus, gpus_per_node = len(slots_GS), len(slots_GS) // num_nodes
    near_EM = np.zeros((len(loads_E), num_nodes))
    for gpu, experts in enumerate(slots_GS):
        np.add.at(near_EM[:, gpu // gpus_per_node], experts, 1)
    without_E = (near_EM == 0).sum(axis=1)
    share_EM = gpus_per_node / num_gpus * (1 / np.maximum(near_EM, 1) + (without_E / near_EM.sum(axis=1))[:, None])
    nodes_G = np.arange(num_gpus) // gpus_per_node
    carried: Floats = (loads_E[slots_GS] * share_EM[slots_GS, nodes_G[:, None]]).sum(axis=1)
    return carried


def _max_over_mean(loads_LE: Floats, slots_LGS: Ints, sizes: Sizes) -> Floats:
    fullest_L = np.array(
        [carried_local_first(*each, sizes.num_nodes).max() for each in zip(loads_LE, slots_LGS, strict=True)]
    )
    mean_L = loads_LE.sum(axis=1) / sizes.num_gpus
    ratios_L: Floats = np.divide(fullest_L, mean_L, out=np.ones_like(mean_L), where=mean_L > 0)
    return ratios_L


def _bind(expert_map: ExpertMap, loads_LE: Floats, sizes: Sizes) -> tuple[Floats, tuple[BoundKind, ...]]:
    """The bounds that hold under this rule: those of groups and coverage as they are, else of replicas."""
    mean_L = loads_LE.sum(axis=1) / sizes.num_gpus
    replicas_L = np.divide(bound_of_replicas(loads_LE, sizes), mean_L, out=np.zeros_like(mean_L), where=mean_L > 0)
    bound_L = np.ones(len(loads_LE))
    kinds: list[BoundKind] = []
    for layer, (bound, kind) in enumerate(zip(expert_map.bound, expert_map.binding, strict=True)):
        if kind in ("groups", "coverage"):
            bound_L[layer] = bound
            kinds.append(kind)
        else:
            bound_L[layer] = max(1.0, replicas_L[layer])
            kinds.append("replicas" if replicas_L[layer] > 1 else "mean")
    return bound_L, tuple(kinds)


@compiled
def _settle(loads_LE: Floats, slots_LGS: Ints, gpus_per_node: int, within_nodes: bool) -> Ints:
    settled_LGS = slots_LGS.copy()
    for index in range(loads_LE.shape[0]):
        layer = new_layer(loads_LE[index], slots_LGS.shape[1], slots_LGS.shape[2])
        take(layer, slots_LGS[index])
        nodes = _nodes(layer, gpus_per_node)
        for gpu in range(layer.carried.size):  # not equal shares, as `take` has it
            layer.carried[gpu] = 0.0
            for expert in layer.slots[gpu]:
                layer.carried[gpu] += _part(layer, nodes, expert, gpu // gpus_per_node, NONE, NONE)
        while _relieve(layer, nodes, gpus_per_node, within_nodes):
            pass
        keep(layer, settled_LGS, index)
    return settled_LGS


@compiled
def _nodes(layer: Layer, gpus_per_node: int) -> Nodes:
    """Where the layer's replicas are."""
    nodes = Nodes(
        np.zeros((layer.loads.size, layer.carried.size // gpus_per_node), np.int64),
        np.zeros(layer.loads.size, np.int64),
    )
    for gpu in range(layer.carried.size):
        for expert in layer.slots[gpu]:
            _come(nodes, expert, gpu // gpus_per_node, 1)
    return nodes


@compiled
def _come(nodes: Nodes, expert: int, node: int, number: int) -> None:
    """So many replicas, or with -1 one fewer, on the node."""
    nodes.num_with[expert] -= nodes.near[expert, node] > 0
    nodes.near[expert, node] += number
    nodes.num_with[expert] += nodes.near[expert, node] > 0


@compiled
def _part(layer: Layer, nodes: Nodes, expert: int, node: int, leaves: int, enters: int) -> float:
    """What a replica on the node carries, had one moved from node `leaves` to node `enters`: NONE if none has."""
    near, num_with = nodes.near[expert], nodes.num_with[expert]
    num_near = near[node]
    if leaves != enters:
        num_near += int(node == enters) - int(node == leaves)
        num_with += int(near[enters] == 0) - int(near[leaves] == 1)
    share = (1 / num_near + (near.size - num_with) / layer.counts[expert]) / near.size
    return float(np.floor(layer.loads[expert] * share))


@compiled
def _relieve(layer: Layer, nodes: Nodes, gpus_per_node: int, within_nodes: bool) -> bool:
    """Make the swap with the fullest GPU that leaves least on the GPUs of both experts; whether there was one."""
    slots, held, carried = layer.slots, layer.held, layer.carried
    hot = fullest(layer)
    best_gpu, best_slot, best_other, least = NONE, NONE, NONE, carried[hot]
    for gpu in range(carried.size):
        if carried[gpu] >= carried[hot] or (within_nodes and gpu // gpus_per_node != hot // gpus_per_node):
            continue
        for slot in range(slots.shape[1]):
            if held[slots[hot, slot], gpu]:
                continue
            for other_slot in range(slots.shape[1]):
                if held[slots[gpu, other_slot], hot]:
                    continue
                fuller = _after(layer, nodes, gpus_per_node, hot, slot, gpu, other_slot, least)
                if fuller < least:
                    best_gpu, best_slot, best_other, least = gpu, slot, other_slot, fuller
    if best_gpu == NONE:
        return False
    _swap(layer, nodes, gpus_per_node, hot, best_slot, best_gpu, best_other)
    return True


@compiled
def _after(
    layer: Layer, nodes: Nodes, gpus_per_node: int, hot: int, slot: int, gpu: int, other_slot: int, least: float
) -> float:
    """The most that a GPU with one of the two experts carries once they are swapped; `least` or more: too much."""
    leaving, coming = layer.slots[hot, slot], layer.slots[gpu, other_slot]
    here, there = hot // gpus_per_node, gpu // gpus_per_node
    most = max(
        layer.carried[hot]
        - _part(layer, nodes, leaving, here, NONE, NONE)
        + _part(layer, nodes, coming, here, there, here),
        layer.carried[gpu]
        - _part(layer, nodes, coming, there, NONE, NONE)
        + _part(layer, nodes, leaving, there, here, there),
    )
    for number in range(layer.counts[leaving] + layer.counts[coming]):
        if most >= least:
            break
        is_leaving = number < layer.counts[leaving]
        home = layer.homes[leaving, number] if is_leaving else layer.homes[coming, number - layer.counts[leaving]]
        if home != hot and home != gpu and (is_leaving or not layer.held[leaving, home]):
            carried, node = layer.carried[home], home // gpus_per_node
            if layer.held[leaving, home]:
                carried -= _part(layer, nodes, leaving, node, NONE, NONE)
                carried += _part(layer, nodes, leaving, node, here, there)
            if layer.held[coming, home]:
                carried -= _part(layer, nodes, coming, node, NONE, NONE)
                carried += _part(layer, nodes, coming, node, there, here)
            most = max(most, carried)
    return float(most)


@compiled
def _swap(layer: Layer, nodes: Nodes, gpus_per_node: int, hot: int, slot: int, gpu: int, other_slot: int) -> None:
    """Exchange the experts of the two slots, and what all GPUs of both carry."""
    leaving, coming = layer.slots[hot, slot], layer.slots[gpu, other_slot]
    here, there = hot // gpus_per_node, gpu // gpus_per_node
    _carry(layer, nodes, gpus_per_node, leaving, -1.0)
    _carry(layer, nodes, gpus_per_node, coming, -1.0)
    on_hot, on_other = layer.carried[hot], layer.carried[gpu]
    swap(layer, hot, slot, gpu, other_slot)
    layer.carried[hot], layer.carried[gpu] = on_hot, on_other  # `swap` counts equal shares
    _come(nodes, leaving, here, -1)
    _come(nodes, leaving, there, 1)
    _come(nodes, coming, there, -1)
    _come(nodes, coming, here, 1)
    _carry(layer, nodes, gpus_per_node, leaving, 1.0)
    _carry(layer, nodes, gpus_per_node, coming, 1.0)


@compiled
def _carry(layer: Layer, nodes: Nodes, gpus_per_node: int, expert: int, sign: float) -> None:
    """Add what its replicas carry to their GPUs, or with `sign` -1 take it off."""
    for home in layer.homes[expert, : layer.counts[expert]]:
        layer.carried[home] += sign * _part(layer, nodes, expert, home // gpus_per_node, NONE, NONE)
