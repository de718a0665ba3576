"""Prepare the search before anything is timed, by solving small maps of every kind that will be asked for.

Compiled code is kept (`compiled`), so later processes only load it; that takes a while as well.
"""

from typing import Any

from planner.expert_map.balance import balance, max_over_mean_sampled
from planner.expert_map.types import Sizes, SplitRule

__all__ = ["prepare"]


def prepare(
    *,
    with_previous: bool = False,
    with_domains: bool = False,
    with_groups: bool = False,
    with_windows: bool = False,
    split: SplitRule = "equal",
) -> None:
    """Get the search ready to run. On first use after an installation it is compiled, which takes a while.

    Afterwards no call with these options compiles anything, whatever else it asks for.
    """
    loads, num_gpus = ((9, 5, 4, 3, 1, 1, 1, 1), (1, 1, 1, 1, 3, 4, 5, 9)), 4
    num_slots, domains = (16, ((0, 0, 1, 1),)) if with_domains else (12, ())
    options: dict[str, Any] = {"num_nodes": 2, "domains": domains, "split": split}
    for num_groups in (1, 2) if with_groups else (1,):
        fresh = balance(loads, num_slots, num_gpus, num_groups=num_groups, **options)
        rows = fresh.physical_to_logical if with_previous else None
        if rows is not None:
            balance(loads[::-1], num_slots, num_gpus, num_groups=num_groups, **options, previous=rows)
    max_over_mean_sampled(fresh, loads, Sizes(num_slots, num_gpus, 2), 100)
    if with_windows:
        from planner.expert_map.windows import balance_windows  # numba, as in `balance`

        balance_windows((loads, loads[::-1]), Sizes(num_slots, num_gpus), "refined", "global", 1.0, rows)
