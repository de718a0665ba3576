"""Maps that are even in several windows of load, not only on average: robust to drift.

What is made small, layer by layer, is max over mean in the worst window, or a quantile of it over windows: of W
windows the k-th lowest, k = ceil(quantile x W); the worst is quantile 1. A window's tokens count as much as any
other's, however many they are.

The search (`windowed_search`) starts from the map for the mean of all windows and only improves, so that it is never
worse.
With a previous map few slots change: the search starts from that one, and stops at the balance of a fresh map.

The bound: max over mean in a window is at least that window's own bound, so that the k-th lowest of it is at least the
k-th lowest of these. With all windows counted it is at least the bound for the mean loads, too: the fullest GPU of the
mean carries as much as it does on average over windows, which is at most the worst.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from planner.expert_map.balance import balance
from planner.expert_map.bound import bind
from planner.expert_map.front import front_of
from planner.expert_map.hierarchy import choose_policy
from planner.expert_map.moves import count_moves
from planner.expert_map.numbering import as_experts, as_numbers, in_order, order_by_load
from planner.expert_map.outcome import as_bounds, as_ratios, as_rows, as_slots, holds_everything
from planner.expert_map.policy import GOOD_ENOUGH
from planner.expert_map.renew import align, keeps_groups_whole, match, part_repeats
from planner.expert_map.types import BoundKind, Effort, ExpertMap, Policy, Sizes, WindowsOutcome
from planner.expert_map.weigh import Floats, Ints, fullest_in_whole_numbers, max_over_mean, scale
from planner.expert_map.windowed_search import windowed_search
from planner.facts.loads import Loads

__all__ = ["balance_windows", "mean_loads", "outcome_of_windows"]

KICKS = {"fast": 0, "refined": 30}  # assumed
BITS = 40  # of a window's total: sums over windows stay exact
ROUNDING = 1e-9


def mean_loads(windows: Sequence[Loads] | Sequence[Floats]) -> Loads:
    """Return the sum of all windows, `[layers][experts]`, each scaled to the same total."""
    return tuple(map(tuple, _alike(windows).sum(axis=0).tolist()))


def balance_windows(
    windows: Sequence[Loads],
    sizes: Sizes,
    effort: Effort,
    policy: Policy,
    quantile: float,
    previous: Sequence[Sequence[int]] | None = None,
    keep_within: float = 0.0,
) -> ExpertMap:
    """Return a map whose `max_over_mean` is that quantile over windows. Tokens share replicas equally.

    Where the map for the mean loads keeps groups on nodes, experts stay on the nodes that it puts them on; or on those
    of the `previous` map. No slot of a previous layer changes while it is worse than a fresh map by at most the share
    `keep_within`.
    """
    stay_together = choose_policy(sizes, policy)[0] == "hierarchical"
    order_LE = order_by_load(_alike(windows), sizes.num_groups if stay_together else 1, previous)
    previous_LGS = None if previous is None else as_numbers(previous, order_LE, sizes)
    ordered = [in_order(np.array(each, dtype=np.float64), order_LE) for each in windows]
    found = _balance_windows(ordered, sizes, effort, policy, quantile, previous_LGS, keep_within)
    rows = as_experts(found.physical_to_logical, order_LE, sizes, is_fresh=previous is None)
    return replace(found, physical_to_logical=rows)


def outcome_of_windows(
    expert_map: ExpertMap, windows: Sequence[Loads] | Sequence[Floats], sizes: Sizes, quantile: float | None
) -> WindowsOutcome:
    """Return what the map reaches in each window, and what any map could.

    `quantile` is None for a map made for the mean.
    """
    is_whole = _keeps_groups(expert_map)
    bounds = [as_bounds(bind(scale(each), sizes, within_nodes=is_whole)[0]) for each in windows]
    return WindowsOutcome(quantile, _ratios(expert_map, windows, sizes), tuple(bounds))


def _balance_windows(
    windows: Sequence[Floats],
    sizes: Sizes,
    effort: Effort,
    policy: Policy,
    quantile: float,
    previous_LGS: Ints | None,
    keep_within: float,
) -> ExpertMap:
    """Return the map, for experts that are already named by their numbers."""
    mean = mean_loads(windows)
    options: dict[str, Any] = {"num_nodes": sizes.num_nodes, "num_groups": sizes.num_groups, "gate": sizes.gate}
    of_mean = balance(mean, sizes.num_slots, sizes.num_gpus, effort, policy=policy, **options)
    loads_WLE = _alike(windows)
    search = _Search(
        num_counted=ceil(quantile * len(windows) - ROUNDING),
        num_nodes=sizes.num_nodes if of_mean.policy == "hierarchical" else 1,
        num_kicks=KICKS[effort],
    )
    slots_LGS = as_slots(of_mean.physical_to_logical, sizes)
    bound_L, binding = _bind(loads_WLE, mean, sizes, search.num_counted, of_mean)
    if not holds_everything(sizes, loads_WLE.shape[2]):
        enough_L = bound_L * GOOD_ENOUGH * loads_WLE.sum(axis=2).max(axis=0) / sizes.num_gpus
        slots_LGS = search.relieve(loads_WLE, slots_LGS, enough_L, in_service=False)
    moved_slots = None
    if previous_LGS is not None:
        must_be_whole = _keeps_groups(of_mean)
        slots_LGS = _renew(loads_WLE, previous_LGS, slots_LGS, sizes, search, keep_within, must_be_whole=must_be_whole)
        moved_slots = count_moves(slots_LGS, previous_LGS, loads_WLE.shape[2])
    found = replace(of_mean, physical_to_logical=as_rows(slots_LGS), bound=as_bounds(bound_L))
    windows_outcome = outcome_of_windows(found, windows, sizes, quantile)
    dispatch = of_mean.dispatch
    if dispatch is not None:
        (dispatch,) = front_of(scale(mean), slots_LGS[None], sizes, (of_mean.policy,))
    of_mean_map = _quantiles(_ratios(of_mean, windows, sizes), search.num_counted)
    return replace(
        found,
        max_over_mean=_quantiles(windows_outcome.max_over_mean, search.num_counted),
        binding=binding,
        dispatch=dispatch,
        moved_slots=moved_slots,
        windows=replace(windows_outcome, of_mean_map=of_mean_map),
    )


@dataclass(frozen=True)
class _Search:
    """The goal of a search, its limits, and how long it goes on."""

    num_counted: int  # windows, the best ones
    num_nodes: int  # an expert stays on those that it is on; 1: it may go anywhere
    num_kicks: int

    def relieve(self, loads_WLE: Floats, start_LGS: Ints, enough_L: Floats, *, in_service: bool) -> Ints:
        """Run `windowed_search`."""
        loads_LWE = np.ascontiguousarray(loads_WLE.swapaxes(0, 1))
        gpus_per_node = start_LGS.shape[1] // self.num_nodes
        return windowed_search(
            loads_LWE, start_LGS, self.num_counted, enough_L, gpus_per_node, self.num_kicks, in_service
        )


def _keeps_groups(expert_map: ExpertMap) -> bool:
    """Return whether the map keeps each group of experts on one node; a map that has a front does not always."""
    return expert_map.policy == "hierarchical" and not expert_map.front


def _renew(
    loads_WLE: Floats,
    previous_LGS: Ints,
    fresh_LGS: Ints,
    sizes: Sizes,
    search: _Search,
    keep_within: float,
    *,
    must_be_whole: bool,
) -> Ints:
    """Return the previous map with few changes if it is then as even as the fresh one, or nearly; else the fresh one.

    `must_be_whole`: a previous layer that splits a group is no start.
    """
    num_experts = loads_WLE.shape[2]
    if holds_everything(sizes, num_experts):
        return align(fresh_LGS, previous_LGS)
    enough_L = _fullest(loads_WLE, fresh_LGS, search.num_counted) * (1 + keep_within)
    start_LGS = part_repeats(loads_WLE.sum(axis=0), previous_LGS, search.num_nodes)
    near_LGS = search.relieve(loads_WLE, start_LGS, enough_L, in_service=True)
    is_near_L = _fullest(loads_WLE, near_LGS, search.num_counted) <= enough_L
    is_kept_L = _fullest(loads_WLE, previous_LGS, search.num_counted) <= enough_L
    if must_be_whole:
        is_near_L &= keeps_groups_whole(near_LGS, sizes, num_experts)
        is_kept_L &= keeps_groups_whole(previous_LGS, sizes, num_experts)
    matched_LGS = np.stack([match(*each, search.num_nodes) for each in zip(fresh_LGS, previous_LGS, strict=True)])
    slots_LGS = np.where(is_near_L[:, None, None], near_LGS, matched_LGS)
    return align(np.where(is_kept_L[:, None, None], previous_LGS, slots_LGS), previous_LGS)


def _fullest(loads_WLE: Floats, slots_LGS: Ints, num_counted: int) -> Floats:
    """Return the fullest GPU's load in the worst of the `num_counted` best windows, `[L]`, as the search counts."""
    fullest_WL = [fullest_in_whole_numbers(loads_LE, slots_LGS) for loads_LE in loads_WLE]
    fullest_L: Floats = np.sort(fullest_WL, axis=0)[num_counted - 1]
    return fullest_L


def _alike(windows: Sequence[Loads] | Sequence[Floats]) -> Floats:
    """Return `[W, L, E]` whole numbers; every window of a layer adds up to 2^40, less what rounding down takes."""
    scaled_WLE = np.stack([scale(each) for each in windows])
    totals_WL = scaled_WLE.sum(axis=2, keepdims=True)
    alike: Floats = np.floor(scaled_WLE / np.where(totals_WL > 0, totals_WL, 1.0) * 2.0**BITS)
    return alike


def _bind(
    loads_WLE: Floats, mean: Loads, sizes: Sizes, num_counted: int, of_mean: ExpertMap
) -> tuple[Floats, tuple[BoundKind, ...]]:
    """Return the bound of each layer, `[L]`, and its kind: that of the window that sets it, or of the mean."""
    is_whole = _keeps_groups(of_mean)
    candidates = [bind(each, sizes, within_nodes=is_whole) for each in loads_WLE]
    order_WL = np.argsort([bound_L for bound_L, _ in candidates], axis=0, kind="stable")
    of_mean_L, mean_binding = bind(scale(mean), sizes, within_nodes=is_whole)
    bounds, kinds = [], []
    for layer, window in enumerate(order_WL[num_counted - 1]):
        bound, kind = candidates[window][0][layer], candidates[window][1][layer]
        if num_counted == len(candidates) and of_mean_L[layer] > bound:
            bound, kind = of_mean_L[layer], mean_binding[layer]
        bounds.append(max(bound * (1 - ROUNDING), 1.0))
        kinds.append(kind)
    return np.array(bounds), tuple(kinds)


def _ratios(
    expert_map: ExpertMap, windows: Sequence[Loads] | Sequence[Floats], sizes: Sizes
) -> tuple[tuple[float, ...], ...]:
    """Return max over mean, `[windows][layers]`."""
    slots_LGS = as_slots(expert_map.physical_to_logical, sizes)
    return tuple(as_ratios(max_over_mean(scale(each), slots_LGS)) for each in windows)


def _quantiles(ratios: Sequence[Sequence[float]], num_counted: int) -> tuple[float, ...]:
    """Return the `num_counted`-th lowest value of each layer over its windows."""
    return tuple(sorted(of_layer)[num_counted - 1] for of_layer in zip(*ratios, strict=True))
