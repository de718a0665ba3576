"""Loads in, expert map out: the pass that makes one.

`policy` does the work, or `coverage` where experts are to survive the loss of a domain. They are imported when they are
called, for they need numpy and numba: who only validates specs should not wait.
"""

from collections.abc import Sequence

from planner.expert_map.loads import Loads
from planner.expert_map.types import Domains, Effort, ExpertMap, Policy, Sizes, Split

__all__ = ["balance", "max_over_mean_sampled"]


def balance(
    loads: Loads,
    num_slots: int,
    num_gpus: int,
    effort: Effort = "refined",
    *,
    num_nodes: int = 1,
    num_groups: int = 1,
    policy: Policy = "auto",
    previous: Sequence[Sequence[int]] | None = None,
    keep_within: float = 0.0,
    domains: Domains = (),
    split: Split = "equal",
) -> ExpertMap:
    """A map of `num_slots` slots a layer on `num_gpus` GPUs that spreads `loads` evenly.

    Sizes must divide: slots by GPUs, GPUs by nodes, experts by groups; groups by nodes where they are to stay on one.

    With a `previous` map, `[num_moe_layers][num_slots]`, few of its slots change; none in a layer whose fullest GPU
    carries at most `1 + keep_within` times what the published EPLB would reach anew.

    Effort `refined` kicks what a first descent found, again and again; `fast` only where that is worse than EPLB's.

    With `domains`, every expert gets replicas in two of them at least (`covered`), where slots suffice
    (`fewest_slots_per_gpu`). Groups then do not stay on nodes, and moving stops at the balance of a fresh covered map.
    """
    from planner.expert_map.coverage import make_covered_map
    from planner.expert_map.local_first import keep_good, settle
    from planner.expert_map.policy import make_map

    sizes = Sizes(num_slots, num_gpus, num_nodes, num_groups)
    if domains:
        expert_map = make_covered_map(loads, sizes, domains, effort, previous, keep_within)
    else:
        expert_map = make_map(loads, sizes, effort, policy, previous, keep_within, may_spill=split == "equal")
    if split == "equal":
        return expert_map
    within_nodes = bool(domains) or expert_map.policy == "hierarchical"
    settled = settle(expert_map, loads, sizes, within_nodes=within_nodes)
    if previous is None:
        return settled
    fresh = balance(
        loads,
        num_slots,
        num_gpus,
        effort,
        num_nodes=num_nodes,
        num_groups=num_groups,
        policy=policy,
        domains=domains,
        split=split,
    )
    return keep_good(settled, fresh, loads, sizes, previous, keep_within, domains)


def max_over_mean_sampled(expert_map: ExpertMap, loads: Loads, sizes: Sizes, num_pairs: int) -> tuple[float, ...]:
    """What a single step of so many token-expert pairs adds to `max_over_mean`, on average."""
    from planner.expert_map import sampled  # numba, as in `balance`

    return sampled.max_over_mean_sampled(expert_map, loads, sizes, num_pairs)
