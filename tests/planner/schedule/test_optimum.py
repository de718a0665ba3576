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
switchings = st.builds(Switching, quarters, quarters, st.integers(1, 4))


def stays(on, slots):
    """Whether each number lasts so many slots at least, around the day."""
    changes = [index for index in range(len(on)) if on[index] != on[index - 1]]
    gaps = [
        (after - before) % len(on) or len(on)
        for before, after in zip(changes, [*changes[1:], *changes[:1]], strict=True)
    ]
    return all(gap >= slots for gap in gaps)


def keeps(on, switching):
    """Whether a day stays where it must."""
    return stays(on, min(switching.stay, len(on)))


@given(needs, switchings)
def test_no_other_day_is_cheaper(needed, switching):
    """Every day of small numbers that carries the demand and keeps stays costs as much at least."""
    found = solve_day(needed, switching)
    days = product(*(range(need, 4) for need in needed))
    cheapest = min(count_unit_slots(day, switching) for day in days if keeps(day, switching))

    assert all(on >= need for on, need in zip(found, needed, strict=True))
    assert keeps(found, switching)
    assert count_unit_slots(found, switching) == pytest.approx(cheapest)


@given(needs, switchings, st.data())
def test_more_demand_never_costs_less(needed, switching, data):
    """Whatever slot it is in."""
    slot = data.draw(st.integers(0, len(needed) - 1))
    more = [need + (index == slot) for index, need in enumerate(needed)]

    before, after = (count_unit_slots(solve_day(each, switching), switching) for each in (needed, more))
    assert after >= before - 1e-9


def begins(day, first, switching):
    """Whether a day that comes after itself keeps all rules, with so many units in its first stay."""
    return keeps(day, switching) and set(day[: switching.stay]) == {first}


@given(st.lists(st.lists(st.integers(0, 2), min_size=5, max_size=5), min_size=1, max_size=2), switchings, st.data())
def test_unlike_days_follow_each_other_in_any_order(needed, switching, data):
    """Stays hold over midnight, no day of that beginning is cheaper, and none can begin with fewer units."""
    found = solve_days(needed, switching)
    first = found[0][0]
    row = data.draw(st.lists(st.sampled_from(found), min_size=2, max_size=4))

    assert all(
        on >= need for day, needs in zip(found, needed, strict=True) for on, need in zip(day, needs, strict=True)
    )
    assert keeps([number for day in row for number in day], switching)
    for day, needs in zip(found, needed, strict=True):
        others = [each for each in product(*(range(need, 3) for need in needs)) if begins(each, first, switching)]
        assert count_unit_slots(day, switching) == pytest.approx(
            min(count_unit_slots(each, switching) for each in others)
        )
    for fewer in range(first):
        for needs in needed:
            days = product(*(range(need, 3) for need in needs))
            if not any(begins(each, fewer, switching) for each in days):
                break
        else:
            pytest.fail(f"all days can begin with {fewer}")


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
