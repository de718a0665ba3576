"""Loads in, expert map out: the pass that makes one.

Experts are numbered by their load first (`numbering`). Then `policy` does the work, or `coverage` where experts must
survive the loss of a domain. Both are imported when they are called, because they need numpy and numba: `validate` must
not wait for those imports.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.expert_map.types import Domains, Effort, ExpertMap, Gate, Policy, Sizes, SplitRule
from planner.facts.loads import Loads

if TYPE_CHECKING:
    from planner.expert_map.weigh import Floats, Ints

__all__ = ["balance", "max_over_mean_sampled"]

AS_DEEPSEEK_V3 = Gate()


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

    With `domains`, every expert gets replicas in at least two of them (`covered`), provided that there are enough slots
    (`fewest_slots_per_gpu`). Groups then do not stay on nodes, and moving stops at the balance of a fresh covered map.
    """
    import numpy as np

    from planner.expert_map.hierarchy import choose_policy
    from planner.expert_map.numbering import as_experts, as_numbers, in_order, order_by_load

    sizes = Sizes(num_slots, num_gpus, num_nodes, num_groups, gate)
    loads_LE = np.asarray(loads, dtype=np.float64)
    stay_together = not domains and choose_policy(sizes, policy)[0] == "hierarchical"
    order_LE = order_by_load(loads_LE[None], num_groups if stay_together else 1, previous)
    previous_LGS = None if previous is None else as_numbers(previous, order_LE, sizes)
    found = _balance(in_order(loads_LE, order_LE), sizes, effort, policy, previous_LGS, keep_within, domains, split)
    rows = as_experts(found.physical_to_logical, order_LE, sizes, is_fresh=previous is None)
    return replace(found, physical_to_logical=rows)


def max_over_mean_sampled(expert_map: ExpertMap, loads: Loads, sizes: Sizes, num_pairs: int) -> tuple[float, ...]:
    """Return the expected max over mean within a single step of `num_pairs` token-expert pairs, `[num_moe_layers]`."""
    from planner.expert_map import sampled  # numba, as in `balance`

    return sampled.max_over_mean_sampled(expert_map, loads, sizes, num_pairs)


def _balance(
    loads_LE: "Floats",
    sizes: Sizes,
    effort: Effort,
    policy: Policy,
    previous_LGS: "Ints | None",
    keep_within: float,
    domains: Domains,
    split: SplitRule,
) -> ExpertMap:
    """Return the map, for experts that are already named by their numbers."""
    from planner.expert_map.coverage import make_covered_map
    from planner.expert_map.local_first import keep_good, settle
    from planner.expert_map.policy import make_map

    if domains:
        expert_map = make_covered_map(loads_LE, sizes, domains, effort, previous_LGS, keep_within)
    else:
        expert_map = make_map(loads_LE, sizes, effort, policy, previous_LGS, keep_within, may_spill=split == "equal")
    if split == "equal":
        return expert_map
    within_nodes = bool(domains) or expert_map.policy == "hierarchical"
    settled = settle(expert_map, loads_LE, sizes, split, within_nodes=within_nodes)
    if previous_LGS is None:
        return settled
    fresh = _balance(loads_LE, sizes, effort, policy, None, 0.0, domains, split)
    return keep_good(settled, fresh, loads_LE, sizes, previous_LGS, keep_within, domains)
