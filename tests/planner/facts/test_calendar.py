"""Days that are named: which entry a date belongs to, and which days lie around one."""

import pytest

from planner.facts.calendar import entry_of, is_day, week_around

ENTRIES = [["saturday", "sunday"], ["2026-12-26", "monday"]]


@pytest.mark.parametrize(
    ("day", "entry"),
    [("2026-12-26", 1), ("2026-12-19", 0), ("saturday", 0), ("2026-12-21", 1), ("2026-12-25", None), ("friday", None)],
)
def test_a_date_says_more_than_its_weekday(day, entry):
    """The 26th of December 2026 is a Saturday, and has an entry of its own."""
    assert entry_of(day, ENTRIES) == entry


@pytest.mark.parametrize(
    ("written", "is_one"),
    [("friday", True), ("2028-02-29", True), ("2026-02-29", False), ("0001-01-01", False), ("9999-12-31", False)],
)
def test_a_day_is_a_weekday_or_an_existing_date(written, is_one):
    """The year 2026 has no 29th of February; the first and the last year lack a week on one side."""
    assert is_day(written) is is_one
    assert not is_day(written.title() + " ")


def test_a_week_begins_on_the_day_before():
    """Over the turn of the week, and over the turn of a year."""
    assert week_around("monday")[:2] == ("sunday", "monday")
    assert week_around("2027-01-01")[::6] == ("2026-12-31", "2027-01-06")
