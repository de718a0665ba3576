"""The pass that makes an expert map from loads.

The pass numbers the experts by load (`numbering`) and lets `maps` search. Both modules need numpy. They are imported on
call, because `validate` must not wait for that import.
"""

from collections.abc import Sequence
from dataclasses import replace

from planner.expert_map.types import Domains, Effort, ExpertMap, Policy, Sizes
from planner.facts.gate import AS_DEEPSEEK_V3, Gate
from planner.facts.loads import Loads
from planner.facts.terms import SplitRule


def balance(
    loads: Loads,
    num_slots: int,
    num_gpus: int,
    effort: Effort = "refined",
    *,
    num_nodes: int = 1,
    num_groups: int = 1,
    gate: Gate = AS_DEEPSEEK_V3,
    policy: Policy = "auto",
    previous: Sequence[Sequence[int]] | None = None,
    keep_within: float = 0.0,
    domains: Domains = (),
    split: SplitRule = "equal",
    as_a_whole: bool = False,
) -> ExpertMap:
    """Return an expert map of `num_slots` slots per layer on `num_gpus` GPUs that spreads `loads` evenly.

    GPUs must divide slots, nodes must divide GPUs, and groups must divide experts; nodes must divide groups too if
    groups must stay on a node. From `gate` follows how many bytes between nodes a split group costs.

    The search descends to a map that no step improves. Effort `refined` then changes that map at random (a kick) and
    descends again, many times; `fast` does so only for layers worse than EPLB's.

    With a `previous` map, `[num_moe_layers][num_slots]`, few of its slots change. A layer does not change at all if its
    fullest GPU carries at most `1 + keep_within` times the load that counts as even (`renew`). With
    `as_a_whole` all layers are kept or none (`keep_or_replace`).

    With `domains`, every expert gets replicas in at least two failure domains, provided that there are enough slots
    (`fewest_slots_per_gpu`). Groups then do not stay on nodes.
    """
    import numpy as np

    from planner.expert_map.hierarchy import choose_policy
    from planner.expert_map.maps import make_map
    from planner.expert_map.numbering import number_experts, order_by_load, restore_experts
    from planner.expert_map.problem import Problem
    from planner.expert_map.weigh import scale

    sizes = Sizes(num_slots, num_gpus, num_nodes, num_groups, gate)
    stay_together = not domains and choose_policy(sizes, policy)[0] == "hierarchical"
    order_LE = order_by_load(np.array(loads, dtype=np.float64), num_groups if stay_together else 1, previous)
    ordered_LE = np.take_along_axis(scale(loads), order_LE, axis=1)
    problem = Problem(ordered_LE, sizes, effort, policy, domains, split)
    kept = None if previous is None else number_experts(previous, order_LE, sizes)
    found = make_map(problem, kept, keep_within, as_a_whole=as_a_whole)
    rows = restore_experts(found.physical_to_logical, order_LE, sizes, is_fresh=previous is None)
    return replace(found, physical_to_logical=rows)
