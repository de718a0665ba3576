"""Maps for tokens that stay near: what GPUs carry under a split rule that looks at places, and maps that are even so.

Two rules. Tokens come from all GPUs alike, and a token's replica is
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

The map is one for equal shares, in which the fullest GPU is then relieved by swaps while any helps.

Of the bounds for equal shares these hold here: the mean, the largest replica, which carries at least w / R, and those
of groups and of coverage.

Source of `first_on_node`: github.com/sgl-project/sglang, release 0.5.23, python/sglang/srt/eplb/expert_location.py,
_find_nearest_expert.
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
from planner.expert_map.types import BoundKind, Domains, ExpertMap, Sizes, SplitRule
from planner.expert_map.weigh import Floats, Ints, scale

__all__ = ["carried_first_on_node", "carried_local_first", "carried_under", "keep_good", "settle"]

NONE = -1


class Places(NamedTuple):
    """The GPUs a node has, and whether its tokens go to the first replica there only."""

    gpus_per_node: int
    first_only: bool  # `first_on_node`, else `local_first`


class Nodes(NamedTuple):
    """The replicas of one layer, counted on M nodes."""

    near: Ints  # [E, M] how many on each node
    num_with: Ints  # [E] nodes with one at least


def settle(expert_map: ExpertMap, loads_LE: Floats, sizes: Sizes, split: SplitRule, *, within_nodes: bool) -> ExpertMap:
    """Return `expert_map` made even under `split`. `within_nodes`: experts stay on their nodes."""
    loads_LE = scale(loads_LE)
    slots_LGS = as_slots(expert_map.physical_to_logical, sizes)
    if not holds_everything(sizes, loads_LE.shape[1]):
        places = Places(sizes.num_gpus // sizes.num_nodes, split == "first_on_node")
        slots_LGS = _settle(loads_LE, slots_LGS, places, within_nodes)
    bound_L, binding = _bind(expert_map, loads_LE, sizes)
    return replace(
        expert_map,
        physical_to_logical=as_rows(slots_LGS),
        max_over_mean=as_ratios(_max_over_mean(loads_LE, slots_LGS, sizes, split)),
        bound=as_bounds(bound_L),
        binding=binding,
        split=split,
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
    """Return `settled`, but keep the layers of the `previous` map that are as even as a fresh map's, or nearly.

    `settled` came from the previous map with few changes. Where groups stay on nodes, no layer is kept that splits one.
    """
    loads_LE = scale(loads_LE)
    slots_LGS = as_slots(settled.physical_to_logical, sizes)
    ratio_L = _max_over_mean(loads_LE, previous_LGS, sizes, settled.split)
    enough_L = np.array(fresh.max_over_mean) * (1 + keep_within) + PRINTED
    is_covered_L = np.array([not domains or count_uncovered([row], domains) == 0 for row in as_rows(previous_LGS)])
    kept_L = (ratio_L <= enough_L) & is_covered_L
    if settled.policy == "hierarchical":
        kept_L &= keeps_groups_whole(previous_LGS, sizes, loads_LE.shape[1])
    slots_LGS = align(np.where(kept_L[:, None, None], previous_LGS, slots_LGS), previous_LGS)
    return replace(
        settled,
        physical_to_logical=as_rows(slots_LGS),
        max_over_mean=as_ratios(_max_over_mean(loads_LE, slots_LGS, sizes, settled.split)),
        moved_slots=count_moves(slots_LGS, previous_LGS, loads_LE.shape[1]),
    )


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


def _max_over_mean(loads_LE: Floats, slots_LGS: Ints, sizes: Sizes, split: SplitRule) -> Floats:
    fullest_L = np.array(
        [carried_under(split, *each, sizes.num_nodes).max() for each in zip(loads_LE, slots_LGS, strict=True)]
    )
    mean_L = loads_LE.sum(axis=1) / sizes.num_gpus
    ratios_L: Floats = np.divide(fullest_L, mean_L, out=np.ones_like(mean_L), where=mean_L > 0)
    return ratios_L


def _bind(expert_map: ExpertMap, loads_LE: Floats, sizes: Sizes) -> tuple[Floats, tuple[BoundKind, ...]]:
    """Return the bounds that hold under this rule: those of groups and coverage unchanged, else those of replicas."""
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
def _settle(loads_LE: Floats, slots_LGS: Ints, places: Places, within_nodes: bool) -> Ints:
    settled_LGS = slots_LGS.copy()
    for index in range(loads_LE.shape[0]):
        layer = new_layer(loads_LE[index], slots_LGS.shape[1], slots_LGS.shape[2])
        take(layer, slots_LGS[index])
        nodes = _nodes(layer, places.gpus_per_node)
        for gpu in range(layer.carried.size):  # not equal shares, as `take` has it
            layer.carried[gpu] = 0.0
            for expert in layer.slots[gpu]:
                layer.carried[gpu] += _part(layer, nodes, places, expert, gpu, NONE, NONE)
        while _relieve(layer, nodes, places, within_nodes):
            pass
        keep(layer, settled_LGS, index)
    return settled_LGS


@compiled
def _nodes(layer: Layer, gpus_per_node: int) -> Nodes:
    """Count the layer's replicas on each node."""
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
    """Add `number` replicas of the expert to the node; -1 takes one away."""
    nodes.num_with[expert] -= nodes.near[expert, node] > 0
    nodes.near[expert, node] += number
    nodes.num_with[expert] += nodes.near[expert, node] > 0


@compiled
def _part(layer: Layer, nodes: Nodes, places: Places, expert: int, gpu: int, leaves: int, enters: int) -> float:
    """Return a replica's load on the GPU, after one moved from GPU `leaves` to GPU `enters`; NONE when none moves."""
    per_node = places.gpus_per_node
    node, left, entered = gpu // per_node, leaves // per_node, enters // per_node
    near, num_with, num_replicas = nodes.near[expert], nodes.num_with[expert], layer.counts[expert]
    num_near = near[node]
    if left != entered:
        num_near += int(node == entered) - int(node == left)
        num_with += int(near[entered] == 0) - int(near[left] == 1)
    num_without = near.size - num_with
    if not places.first_only:
        share = (1 / num_near + num_without / num_replicas) / near.size
    elif num_near == num_replicas:
        share = 1 / num_replicas
    else:
        parts = 1 + num_without * per_node / num_replicas
        if _is_first(layer, expert, gpu, leaves, enters, per_node):
            parts += per_node - num_near
        share = parts / (near.size * per_node)
    return float(np.floor(layer.loads[expert] * share))


@compiled
def _is_first(layer: Layer, expert: int, gpu: int, leaves: int, enters: int, gpus_per_node: int) -> bool:
    """Return whether the GPU is the first on its node to hold the expert, after a replica moved."""
    start = gpu - gpu % gpus_per_node
    num_before = int(start <= enters < gpu)
    for other in range(start, gpu):
        num_before += int(other != leaves and layer.held[expert, other])
    return num_before == 0


@compiled
def _relieve(layer: Layer, nodes: Nodes, places: Places, within_nodes: bool) -> bool:
    """Make the swap with the fullest GPU that leaves least on GPUs of both experts; return whether there was one."""
    slots, held, carried, per_node = layer.slots, layer.held, layer.carried, places.gpus_per_node
    hot = fullest(layer)
    best_gpu, best_slot, best_other, least = NONE, NONE, NONE, carried[hot]
    for gpu in range(carried.size):
        if carried[gpu] >= carried[hot] or (within_nodes and gpu // per_node != hot // per_node):
            continue
        for slot in range(slots.shape[1]):
            if held[slots[hot, slot], gpu]:
                continue
            for other_slot in range(slots.shape[1]):
                if held[slots[gpu, other_slot], hot]:
                    continue
                fuller = _after(layer, nodes, places, hot, slot, gpu, other_slot, least)
                if fuller < least:
                    best_gpu, best_slot, best_other, least = gpu, slot, other_slot, fuller
    if best_gpu == NONE:
        return False
    _swap(layer, nodes, places, hot, best_slot, best_gpu, best_other)
    return True


@compiled
def _after(
    layer: Layer, nodes: Nodes, places: Places, hot: int, slot: int, gpu: int, other_slot: int, least: float
) -> float:
    """Return the highest load, after the swap, of a GPU with either expert. `least` or more means: too much."""
    leaving, coming = layer.slots[hot, slot], layer.slots[gpu, other_slot]
    most = max(
        layer.carried[hot]
        - _part(layer, nodes, places, leaving, hot, NONE, NONE)
        + _part(layer, nodes, places, coming, hot, gpu, hot),
        layer.carried[gpu]
        - _part(layer, nodes, places, coming, gpu, NONE, NONE)
        + _part(layer, nodes, places, leaving, gpu, hot, gpu),
    )
    for number in range(layer.counts[leaving] + layer.counts[coming]):
        if most >= least:
            break
        is_leaving = number < layer.counts[leaving]
        home = layer.homes[leaving, number] if is_leaving else layer.homes[coming, number - layer.counts[leaving]]
        if home != hot and home != gpu and (is_leaving or not layer.held[leaving, home]):
            carried = layer.carried[home]
            if layer.held[leaving, home]:
                carried -= _part(layer, nodes, places, leaving, home, NONE, NONE)
                carried += _part(layer, nodes, places, leaving, home, hot, gpu)
            if layer.held[coming, home]:
                carried -= _part(layer, nodes, places, coming, home, NONE, NONE)
                carried += _part(layer, nodes, places, coming, home, gpu, hot)
            most = max(most, carried)
    return float(most)


@compiled
def _swap(layer: Layer, nodes: Nodes, places: Places, hot: int, slot: int, gpu: int, other_slot: int) -> None:
    """Exchange the experts of the two slots, and update the load of every GPU with either."""
    leaving, coming = layer.slots[hot, slot], layer.slots[gpu, other_slot]
    here, there = hot // places.gpus_per_node, gpu // places.gpus_per_node
    _carry(layer, nodes, places, leaving, -1.0)
    _carry(layer, nodes, places, coming, -1.0)
    on_hot, on_other = layer.carried[hot], layer.carried[gpu]
    swap(layer, hot, slot, gpu, other_slot)
    layer.carried[hot], layer.carried[gpu] = on_hot, on_other  # `swap` counts equal shares
    _come(nodes, leaving, here, -1)
    _come(nodes, leaving, there, 1)
    _come(nodes, coming, there, -1)
    _come(nodes, coming, here, 1)
    _carry(layer, nodes, places, leaving, 1.0)
    _carry(layer, nodes, places, coming, 1.0)


@compiled
def _carry(layer: Layer, nodes: Nodes, places: Places, expert: int, sign: float) -> None:
    """Add the load of the expert's replicas to their GPUs; `sign` -1 takes it away."""
    for home in layer.homes[expert, : layer.counts[expert]]:
        layer.carried[home] += sign * _part(layer, nodes, places, expert, home, NONE, NONE)
