"""Units that come and go by a timetable: what has to be done about them, and when."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.facts.day import DAY_S, hh_mm
from planner.schedule.schedule import OtherDays, Step, Timetable
from stacks.day.clock import units_at
from stacks.day.runs import KINDS, list_acts, runs_between

MINUTE_S = 60


def timetable(windows, warm_up_min=10, drain_min=5, zone="UTC"):
    """A day of one phase, from the number of units at each time."""
    steps = tuple(
        Step(at, 0, {"mixed": number}, tuple(f"u{index}" for index in range(number)), number, None)
        for at, number in windows.items()
    )
    return Timetable(zone, steps, warm_up_min * MINUTE_S, drain_min * MINUTE_S)


def acts(day, begin=0, end=DAY_S):
    """What is done in a day of 1970, by the clock."""
    done = list_acts(runs_between(day, begin, end))
    return [f"{hh_mm(round(act.instant) // MINUTE_S)} {act.kind} {act.unit}" for act in done]


def test_a_day_is_a_list_of_what_is_done():
    """Nodes are taken a warm-up before a unit is needed, and free a drain after it."""
    assert acts(timetable({"08:00": 2, "20:00": 1})) == [
        "07:50 start u1",
        "08:00 serve u1",
        "20:00 drain u1",
        "20:05 stop u1",
    ]


def test_units_serve_before_others_drain():
    """At one instant, and in the opposite order of their numbers when they stop: capacity never falls below either."""
    pairs = (
        Step("08:00", 0, {"prefill": 1, "decode": 2}, ("p0", "d0", "d1"), 3, None),
        Step("20:00", 0, {"prefill": 3, "decode": 1}, ("p0", "p1", "p2", "d0"), 4, None),
    )
    found = acts(Timetable("UTC", pairs, 600.0, 300.0), begin=12 * 3600, end=21 * 3600)

    assert found[2:6] == ["20:00 serve p1", "20:00 serve p2", "20:00 drain d1", "20:05 stop d1"]


@pytest.mark.parametrize(("until", "is_one_run"), [("12:14", True), ("12:15", False)])
def test_a_unit_that_would_come_back_too_soon_goes_on(until, is_one_run):
    """Its nodes would not become free: ten minutes of warm-up and five of drain."""
    day = timetable({"08:00": 2, "12:00": 1, until: 2, "20:00": 1})
    kinds = [act.split()[1] for act in acts(day)]

    assert kinds == list(KINDS) * (1 if is_one_run else 2)


def test_runs_across_midnight_are_found_from_both_days():
    """A unit needed at midnight starts on the evening before, and one that stops then drains into the next day."""
    late, early = timetable({"00:00": 2, "12:00": 1}), timetable({"00:00": 1, "12:00": 2})

    middle = ["12:00 drain u1", "12:05 stop u1"]

    assert acts(late) == ["23:50 start u1", "00:00 serve u1", *middle, "23:50 start u1", "00:00 serve u1"]
    assert acts(early)[:2] == ["00:00 drain u1", "00:05 stop u1"]


def test_a_day_of_its_own_is_prepared_on_the_evening_before():
    """Fridays of 1970 begin with the second: two units from midnight, where other days have one."""
    steps = timetable({"00:00": 2}).steps
    day = replace(timetable({"00:00": 1}), other_days=(OtherDays(("friday",), steps),))

    assert acts(day, 0, 3 * DAY_S) == [
        "23:50 start u1",
        "00:00 serve u1",
        "00:00 drain u1",
        "00:05 stop u1",
    ]


def test_the_instants_are_those_of_the_plans_clocks():
    """Eight in the morning of Shanghai is midnight of UTC."""
    assert acts(timetable({"08:00": 2, "20:00": 1}, zone="Asia/Shanghai"))[:2] == ["23:50 start u1", "00:00 serve u1"]


@given(
    windows=st.dictionaries(st.integers(0, 95), st.integers(1, 4), min_size=1, max_size=6),
    warm_up=st.integers(1, 90),
    drain=st.integers(1, 90),
    minute=st.integers(0, 24 * 60 - 1),
)
def test_all_units_of_the_day_are_in_a_run_at_every_instant(windows, warm_up, drain, minute):
    """No run is longer than its warm-up, service and drain unless it goes on, and runs of a unit do not overlap."""
    day = timetable({hh_mm(15 * quarter): number for quarter, number in windows.items()}, warm_up, drain)
    instant = minute * MINUTE_S
    runs = runs_between(day, 0, DAY_S)
    serving = [
        run.unit
        for run in runs
        if (run.serves is None or run.serves <= instant) and (run.drains is None or instant < run.drains)
    ]
    running = [
        run.unit
        for run in runs
        if (run.starts is None or run.starts <= instant) and (run.stops is None or instant < run.stops)
    ]

    assert set(units_at(day, instant)) <= set(serving) <= set(running)
    assert len(set(running)) == len(running)
