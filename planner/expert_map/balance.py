"""Loads in, expert map out: the pass that makes one.

Experts are numbered by their load first (`numbering`). Then `maps` does the work. It is imported when it is called,
because it needs numpy: `validate` must not wait for that import.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.expert_map.types import Domains, Effort, ExpertMap, Policy, Sizes, SplitRule
from planner.facts.gate import AS_DEEPSEEK_V3, Gate
from planner.facts.loads import Loads

if TYPE_CHECKING:
    from planner.expert_map.problem import Problem
    from planner.expert_map.weigh import Floats

__all__ = ["balance", "numbered"]


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
) -> ExpertMap:
    """Return a map of `num_slots` slots a layer on `num_gpus` GPUs that spreads `loads` evenly.

    Sizes must divide: slots by GPUs, GPUs by nodes, experts by groups; and groups by nodes, if groups are to stay on
    one.
    The `gate` says how many bytes between nodes it costs when groups do not stay on one.

    With a `previous` map, `[num_moe_layers][num_slots]`, few of its slots change. A layer does not change at all while
    its fullest GPU carries at most `1 + keep_within` times what a new map by the published EPLB would reach.

    Effort `refined` kicks the result of the first descent, again and again; `fast` does so only where that result is
    worse than EPLB's.

    With `domains`, every expert gets replicas in at least two of them, provided that there are enough slots
    (`fewest_slots_per_gpu`). Groups then do not stay on nodes.
    """
    import numpy as np

    from planner.expert_map.problem import Problem, alike

    sizes = Sizes(num_slots, num_gpus, num_nodes, num_groups, gate)
    problem = Problem(alike([loads]), sizes, effort, policy, domains=domains, split=split)
    return numbered(problem, np.array([loads], dtype=np.float64), previous, keep_within)


def numbered(
    problem: "Problem", keys_WLE: "Floats", previous: Sequence[Sequence[int]] | None, keep_within: float
) -> ExpertMap:
    """Return the map for `problem`. It is searched for with experts numbered by the keys, their loads (`numbering`)."""
    from planner.expert_map.hierarchy import choose_policy
    from planner.expert_map.maps import make_map
    from planner.expert_map.numbering import as_experts, as_numbers, in_order, order_by_load

    sizes = problem.sizes
    stay_together = not problem.domains and choose_policy(sizes, problem.policy)[0] == "hierarchical"
    order_LE = order_by_load(keys_WLE, sizes.num_groups if stay_together else 1, previous)
    previous_LGS = None if previous is None else as_numbers(previous, order_LE, sizes)
    ordered = replace(problem, loads_WLE=in_order(problem.loads_WLE, order_LE[None]))
    found = make_map(ordered, previous_LGS, keep_within)
    rows = as_experts(found.physical_to_logical, order_LE, sizes, is_fresh=previous is None)
    return replace(found, physical_to_logical=rows)
