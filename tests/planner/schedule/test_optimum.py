"""The fewest unit-hours of a day: beside brute force on small days, by laws, and on DeepSeek's day."""

from itertools import product
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.schedule.optimum import Switching, count_unit_slots, solve_day, solve_days

# facts.md, section 1: DeepSeek's demand of each hour from noon, relative to its maximum.
DEEPSEEK = (
    *(0.87, 0.92, 0.98, 1.0, 0.98, 0.90, 0.86, 0.95, 0.99, 0.99, 1.0, 0.96),
    *(0.70, 0.58, 0.42, 0.26, 0.20, 0.20, 0.26, 0.44, 0.74, 0.95, 0.98, 0.96),
)
needs = st.lists(st.integers(0, 3), min_size=1, max_size=6)
quarters = st.integers(0, 12).map(lambda number: number / 4)
switchings = st.builds(Switching, quarters, quarters)


@given(needs, switchings)
def test_no_other_day_is_cheaper(needed, switching):
    """Every day of small numbers that carries the demand costs as much at least."""
    found = solve_day(needed, switching)
    days = product(*(range(need, 4) for need in needed))
    cheapest = min(count_unit_slots(day, switching) for day in days)

    assert all(on >= need for on, need in zip(found, needed, strict=True))
    assert count_unit_slots(found, switching) == pytest.approx(cheapest)


@given(needs, switchings, st.data())
def test_more_demand_never_costs_less(needed, switching, data):
    """Whatever slot it is in."""
    slot = data.draw(st.integers(0, len(needed) - 1))
    more = [need + (index == slot) for index, need in enumerate(needed)]

    before, after = (count_unit_slots(solve_day(each, switching), switching) for each in (needed, more))
    assert after >= before - 1e-9


@given(st.lists(st.lists(st.integers(0, 2), min_size=5, max_size=5), min_size=1, max_size=2), switchings)
def test_unlike_days_follow_each_other_in_any_order(needed, switching):
    """They begin with equal units, as few as all can begin with, and no day of that beginning is cheaper."""
    found = solve_days(needed, switching)
    first = max(needs[0] for needs in needed)

    assert {day[0] for day in found} == {first}
    for day, needs in zip(found, needed, strict=True):
        others = ((first, *rest) for rest in product(*(range(need, 3) for need in needs[1:])))
        assert all(on >= need for on, need in zip(day, needs, strict=True))
        assert count_unit_slots(day, switching) == pytest.approx(
            min(count_unit_slots(each, switching) for each in others)
        )


@pytest.mark.parametrize(
    ("warm_up", "drain", "mean_nodes"), [(0, 0, 217.25), (5, 0, 218.23), (10, 5, 220.19), (1440, 0, 278)]
)
def test_deepseeks_day_takes_fewer_nodes_than_it_had(warm_up, drain, mean_nodes):
    """Its units of 4 and 18 nodes just carry the busiest hour; it had 226.75 nodes on, on average."""
    slot, total = 15, 0.0
    for units, nodes in ((29, 4), (9, 18)):
        needed = [ceil(units * demand - 1e-9) for demand in DEEPSEEK for _ in range(60 // slot)]
        switching = Switching(warm_up / slot, drain / slot)
        on = solve_day(needed, switching)
        total += nodes * count_unit_slots(on, switching) / len(on)

    assert total == pytest.approx(mean_nodes, abs=0.005)
