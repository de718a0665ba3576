"""A day of a plan on real dates: over midnight, over both clock changes, and from another place than its own."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.facts.calendar import instants_of, wall_time
from planner.facts.day import DAY_MINUTES, DAY_S, MINUTE_S, minute_of
from planner.schedule.schedule import OtherDays, Step, Timetable
from stacks.day import clock
from stacks.day.clock import changes_between, units_at


def day_of(zone, **windows):
    """A day of one phase: `at_0230=1` has one unit from half past two."""
    times = {f"{name[3:5]}:{name[5:]}": number for name, number in windows.items()}
    steps = tuple(
        Step(at, 0, {"mixed": number}, tuple(f"u{index}" for index in range(number)), number, None)
        for at, number in times.items()
    )
    return Timetable(zone, steps, 0.0, 0.0)


def utc(written):
    return round(datetime.fromisoformat(written).replace(tzinfo=UTC).timestamp())


def with_others(day, **others):
    """The same day, but for some: `sunday={"at_0300": 2}` has two units on Sundays, from three on."""
    found = tuple(
        OtherDays((name.strip("_").replace("_", "-"),), day_of(day.timezone, **windows).steps)
        for name, windows in others.items()
    )
    return replace(day, other_days=found)


def changes(day, begin, end):
    """When the number of units changes, in UTC."""
    found = changes_between(day, utc(begin), utc(end))
    return [(datetime.fromtimestamp(each.instant, UTC).strftime("%d %H:%M"), len(each.units)) for each in found]


def test_a_schedule_of_shanghai_is_followed_from_utc():
    """Half past eight in the morning at UTC+8 is half past midnight, and a night across midnight is one of theirs."""
    day = day_of("Asia/Shanghai", at_0830=9, at_2330=2)

    assert changes(day, "2026-11-23 00:00", "2026-11-24 00:00") == [("23 00:30", 9), ("23 15:30", 2)]
    assert [len(units_at(day, utc(f"2026-11-23 {at}"))) for at in ("00:29", "00:30", "15:29", "16:01")] == [2, 9, 9, 2]


def test_windows_in_the_hour_that_clocks_skip_begin_when_it_would_have():
    """Berlin goes from two to three on 29 March 2026, at 01:00 UTC: half past two begins then, once."""
    day = day_of("Europe/Berlin", at_0230=1, at_0800=3)

    assert changes(day, "2026-03-29 00:00", "2026-03-30 00:00") == [("29 01:00", 1), ("29 06:00", 3)]


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ({"at_0230": 1, "at_0800": 3}, [("25 02:00", 1), ("25 07:00", 3)]),
        ({"at_0230": 3, "at_2200": 1}, [("25 00:00", 3), ("25 21:00", 1)]),
        ({"at_0210": 1, "at_0240": 2, "at_0800": 3}, [("25 02:00", 2), ("25 07:00", 3)]),
    ],
)
def test_in_the_hour_that_clocks_show_twice_the_busiest_state_holds(windows, expected):
    """Berlin shows two to three twice on 25 October 2026, from 00:00 UTC to 02:00: nothing stops to start again."""
    assert changes(day_of("Europe/Berlin", **windows), "2026-10-24 23:00", "2026-10-25 23:00") == expected


def test_a_weekday_has_windows_of_its_own_from_midnight_to_midnight():
    """In Shanghai, seen from UTC: a Saturday begins at four in the afternoon of Friday, in the state that ends it."""
    day = with_others(day_of("Asia/Shanghai", at_0830=3, at_2200=2), saturday={"at_1000": 2, "at_2000": 1})

    assert changes(day, "2026-11-27 00:00", "2026-11-29 00:00") == [
        ("27 00:30", 3),
        ("27 14:00", 2),
        ("27 16:00", 1),
        ("28 02:00", 2),
        ("28 12:00", 1),
        ("28 16:00", 2),
    ]


def test_a_date_says_more_than_its_weekday():
    """The 26th of December 2026 is a Saturday; the 19th has what Saturdays have."""
    day = with_others(day_of("UTC", at_0800=3), saturday={"at_0800": 2}, _2026_12_26={"at_0800": 1})

    assert [len(units_at(day, utc(f"2026-12-{date} 12:00"))) for date in (18, 19, 26)] == [3, 2, 1]


@pytest.mark.parametrize(
    ("sunday", "expected"),
    [
        ({"at_0230": 1, "at_0800": 3}, [("25 02:00", 1), ("25 07:00", 3)]),
        ({"at_0210": 1, "at_0240": 2, "at_0800": 3}, [("25 02:00", 2), ("25 07:00", 3)]),
    ],
)
def test_clocks_go_back_on_a_day_of_its_own_windows_too(sunday, expected):
    """Both changes are on Sundays: the hour that is shown twice has the busiest state of that Sunday's windows."""
    day = with_others(day_of("Europe/Berlin", at_0000=3), sunday=sunday)

    assert changes(day, "2026-10-24 23:00", "2026-10-25 22:00") == expected


def test_clocks_go_forward_on_a_day_of_its_own_windows_too():
    """Half past two of that Sunday is when it would have been; Monday begins as all days do."""
    day = with_others(day_of("Europe/Berlin", at_0000=2), sunday={"at_0000": 2, "at_0230": 1, "at_0800": 3})

    assert changes(day, "2026-03-29 00:00", "2026-03-29 22:00") == [("29 01:00", 1), ("29 06:00", 3), ("29 22:00", 2)]


@pytest.mark.parametrize(("day", "times"), [("2026-03-29", 0), ("2026-10-25", 2), ("2026-11-23", 1)])
def test_a_minute_is_shown_once_twice_or_never(day, times):
    """Half past two in Berlin, on the days of both changes and on another."""
    found = instants_of(day, 150, "Europe/Berlin")

    assert len(found) == times
    assert all(wall_time(each, "Europe/Berlin").minute == 150 for each in found)


zones = st.sampled_from(
    ["UTC", "Asia/Shanghai", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]
)
windows = st.dictionaries(
    st.integers(0, 47).map(lambda half: f"at_{half // 2:02}{half % 2 * 30:02}"), st.integers(1, 3), min_size=1
)


@settings(max_examples=12, deadline=None)
@given(zones, windows, windows, st.integers(0, 364))
def test_changes_are_all_that_changes(zone, windows, sunday, days):
    """Whoever follows the changes has the units that are on at any time, and never fewer than the window has."""
    day = with_others(day_of(zone, **windows), sunday=sunday)
    begin = utc("2026-01-01 00:00") + days * 86_400
    on, found = units_at(day, begin), {each.instant: each for each in changes_between(day, begin, begin + 86_400)}
    for instant in range(begin, begin + 86_400, 300):
        on = found[instant].units if instant in found else on
        shown = wall_time(instant, zone)
        minute, steps = shown.minute, day.steps_on(shown.date)
        ordered = sorted((step.at, len(step.units)) for step in steps)
        at = f"{minute // 60:02}:{minute % 60:02}"
        least = ([number for start, number in ordered if start <= at] or [ordered[-1][1]])[-1]

        assert on == units_at(day, instant)
        assert len(on) >= least


def slow_units(day, instant):
    """The same as `units_at`, by sorting at each instant and by asking of each minute of the date how often it is."""
    wall, zone = wall_time(instant, day.timezone), day.timezone
    steps = sorted(day.steps_on(wall.date), key=lambda step: step.at)

    def units_of(minute):
        return ([step for step in steps if minute_of(step.at) <= minute] or steps)[-1].units

    if len(instants_of(wall.date, wall.minute, zone)) == 1:
        return units_of(wall.minute)
    twice = [minute for minute in range(DAY_MINUTES) if len(instants_of(wall.date, minute, zone)) == 2]
    return max(map(units_of, twice), key=len)  # of one phase, so that a larger state has all of a smaller one


by_the_minute = st.dictionaries(
    st.integers(0, DAY_MINUTES - 1).map(lambda minute: f"at_{minute // 60:02}{minute % 60:02}"),
    st.integers(0, 3),
    min_size=1,
    max_size=40,
)
spring_and_autumn = st.sampled_from(
    ["2026-03-08", "2026-03-29", "2026-04-05", "2026-10-04", "2026-10-25", "2026-11-01"]
)


@settings(max_examples=8, deadline=None)
@given(zones, by_the_minute, by_the_minute, spring_and_autumn, st.integers(-DAY_S, DAY_S))
def test_changes_equal_those_computed_at_each_instant(zone, windows, sunday, date, shift):
    """Minute by minute, on a day on which clocks change and on parts of its neighbours."""
    day = with_others(day_of(zone, **windows), sunday=sunday)
    begin = (utc(f"{date} 00:00") + shift) // MINUTE_S * MINUTE_S
    end = begin + 30 * 3600
    expected, before = [], slow_units(day, begin)
    for instant in range(begin + MINUTE_S, end + 1, MINUTE_S):
        units = slow_units(day, instant)
        assert units_at(day, instant) == units
        if units != before:
            expected.append((instant, units))
        before = units

    assert [(each.instant, each.units) for each in changes_between(day, begin, end)] == expected


def test_work_grows_with_the_windows_and_not_with_their_square(monkeypatch):
    """A controller looks days ahead every few seconds, and a day may have a window for each minute."""

    def num_read(num_windows):
        read.clear()
        minutes = range(0, DAY_MINUTES, DAY_MINUTES // num_windows)
        day = day_of("UTC", **{f"at_{each // 60:02}{each % 60:02}": 1 + each % 2 for each in minutes})
        changes_between(day, utc("2026-11-23 00:00"), utc("2026-11-25 00:00"))
        return len(read)

    read = []
    monkeypatch.setattr(clock, "minute_of", lambda at: read.append(at) or minute_of(at))

    assert num_read(1440) <= 11 * num_read(144)
