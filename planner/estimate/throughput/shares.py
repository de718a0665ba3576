"""Compute each GPU's share of each expert's load, under each rule by which tokens choose among replicas.

`expert_map/native/layer.h` has the rules and their formulas for GPUs' total loads. Popularity drifts expert by expert,
so here shares are kept for each expert.
"""

import numpy as np

from planner.expert_map.weigh import Floats, Ints
from planner.facts.terms import SplitRule


def replica_shares(split: SplitRule, num_experts: int, slots_GS: Ints, num_nodes: int) -> Floats:
    """Return the share of each expert's load that each GPU carries under a split rule, `[G, E]`; columns sum to 1."""
    num_gpus = len(slots_GS)
    places_GS = slots_GS + num_experts * np.arange(num_gpus)[:, None]  # in `[G, E]`, row after row
    copies_GE = np.bincount(places_GS.ravel(), minlength=num_gpus * num_experts).reshape(num_gpus, -1).astype(float)
    if split == "equal":
        equal_GE: Floats = copies_GE / np.maximum(copies_GE.sum(axis=0), 1)
        return equal_GE
    copies_MPE = copies_GE.reshape(num_nodes, -1, num_experts)
    shares_MPE = _first_on_node(copies_MPE) if split == "first_on_node" else _local_first(copies_MPE)
    return shares_MPE.reshape(copies_GE.shape)


def _local_first(copies_MPE: Floats) -> Floats:
    """Return each GPU's share of each expert's load under `local_first`, `[M, P, E]`; `copies_MPE` counts replicas."""
    near_ME = copies_MPE.sum(axis=1)
    without_E = (near_ME == 0).sum(axis=0)
    of_a_node = 1 / len(copies_MPE)
    share_ME = of_a_node * (1 / np.maximum(near_ME, 1) + without_E / np.maximum(near_ME.sum(axis=0), 1))
    shares_MPE: Floats = copies_MPE * share_ME[:, None]
    return shares_MPE


def _first_on_node(copies_MPE: Floats) -> Floats:
    """Return each GPU's share of each expert's load under `first_on_node`, `[M, P, E]`.

    `copies_MPE` counts replicas. Each GPU is assumed to have 1 / G of all tokens.
    """
    holds_MPE = copies_MPE > 0
    near_ME, num_E = copies_MPE.sum(axis=1), copies_MPE.sum(axis=(0, 1))
    without_ME = (~holds_MPE).sum(axis=1)  # GPUs of each node that do not hold the expert
    to_first_ME = np.where((near_ME > 0) & (near_ME < num_E), without_ME, 0)
    to_any_E = (without_ME - to_first_ME).sum(axis=0)
    is_first_MPE = holds_MPE & (holds_MPE.cumsum(axis=1) == 1)
    parts_MPE = holds_MPE + is_first_MPE * to_first_ME[:, None] + copies_MPE * (to_any_E / np.maximum(num_E, 1))
    shares_MPE: Floats = parts_MPE / (copies_MPE.shape[0] * copies_MPE.shape[1])
    return shares_MPE
