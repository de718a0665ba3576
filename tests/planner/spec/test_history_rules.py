"""Past days that lack times, or say them in two ways, are refused; what clocks did is neither."""

from datetime import date, timedelta

import pytest

from planner.problems.errors import SpecError
from planner.rules.check import check_spec
from tests.planner.schedule.test_derived import PAIR


@pytest.fixture
def rules_of(tmp_path):
    """A function: what is wrong with a history that ends before a change of clocks in Berlin, or after it."""

    def rules(rows, zone="UTC"):
        (tmp_path / "days.csv").write_text("\n".join(["time,demand", *rows]))
        traffic = "traffic: {input_tokens: 1e9, output_tokens: 1e8, history: days.csv}\n"
        (tmp_path / "spec.yaml").write_text(f"{PAIR}{traffic}schedule: {{timezone: {zone}, windows: auto}}\n")
        try:
            check_spec(tmp_path / "spec.yaml")
        except SpecError as error:
            return [each.rule for each in error.findings]
        return []

    return rules


def days(first, count=7):
    """Rows of whole days."""
    dates = [(date.fromisoformat(first) + timedelta(days=each)).isoformat() for each in range(count)]
    return [f"{day}T{hour:02}:00,{100 + hour}" for day in dates for hour in range(24)]


def test_whole_days_are_right(rules_of):
    """Nor is a row that stands there twice with one demand."""
    assert rules_of(days("2026-11-02")) == []
    assert rules_of([*days("2026-11-02"), "2026-11-03T00:00,100"]) == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [*days("2026-11-02"), *(row.replace(",1", ",9") for row in days("2026-11-02", 1))],
            "it has several for 24 times, such as 2026-11-02T00:00",
        ),
        (
            [row for row in days("2026-11-02") if not row.startswith("2026-11-04T1")],
            "it lacks 10 times, the first 2026-11-04T10:00",
        ),
        (
            [*days("2026-11-02"), "2026-11-09T00:00,1"],
            "it has 1 of the 24 of its last day, 2026-11-09",
        ),
        (
            [*days("2025-11-15", 1), *days("2026-11-16")],
            "it has no rows for 365 days between 2025-11-15 and 2026-11-16",
        ),
    ],
)
def test_what_is_not_whole_is_refused_once(rules_of, rows, said):
    """Each with its number and the first place."""
    assert rules_of(rows) == [f"S624 must have one demand for each time of its days, {said}"]


def test_hours_that_clocks_skip_or_show_twice_are_right(rules_of):
    """In Berlin, and in UTC neither is."""
    autumn = [*days("2026-10-20"), "2026-10-25T02:00,999"]
    spring = [row for row in days("2026-03-24") if not row.startswith("2026-03-29T02")]
    for rows in (autumn, spring):
        assert rules_of([*rows, *days("2026-10-27" if rows is autumn else "2026-03-31")], "Europe/Berlin") == []
        assert len(rules_of(rows)) == 1
