"""Maps that are even in several windows of load, not only on average: robust to drift. `problem` says what that means.

With a previous map few slots change: the search starts from that one, and stops at the balance of a fresh map.
"""

from collections.abc import Sequence

from planner.expert_map.balance import numbered
from planner.expert_map.bound import bind
from planner.expert_map.problem import Problem, alike
from planner.expert_map.types import Effort, ExpertMap, Policy, Sizes, WindowsOutcome
from planner.expert_map.weigh import as_bounds, as_ratios, as_slots, max_over_mean, scale
from planner.facts.loads import Loads

__all__ = ["balance_windows", "mean_loads", "outcome_of_windows"]


def mean_loads(windows: Sequence[Loads]) -> Loads:
    """Return the sum of all windows, `[layers][experts]`, each scaled to the same total."""
    return tuple(map(tuple, alike(windows).sum(axis=0).tolist()))


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
    loads_WLE = alike(windows)
    return numbered(Problem(loads_WLE, sizes, effort, policy, quantile), loads_WLE, previous, keep_within)


def outcome_of_windows(expert_map: ExpertMap, windows: Sequence[Loads], sizes: Sizes) -> WindowsOutcome:
    """Return what a map that was made for the mean reaches in each window, and what any map could."""
    is_whole = expert_map.policy == "hierarchical" and not expert_map.front
    bounds = [as_bounds(bind(scale(each), sizes, within_nodes=is_whole)[0]) for each in windows]
    slots_LGS = as_slots(expert_map.physical_to_logical, sizes)
    return WindowsOutcome(
        None, tuple(as_ratios(max_over_mean(scale(each), slots_LGS)) for each in windows), tuple(bounds)
    )
