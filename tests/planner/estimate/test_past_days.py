"""What past days lack, or say in two ways, is warned of; what clocks did is neither."""

from datetime import date, timedelta

import pytest

from planner.plan.fit import check_fit
from planner.spec.check import check_spec
from tests.planner.schedule.test_derived import PAIR


@pytest.fixture
def warnings_of(tmp_path):
    """A function: the warnings about a history that ends before a change of clocks in Berlin, or after it."""

    def warned(rows, zone="UTC"):
        (tmp_path / "days.csv").write_text("\n".join(["time,demand", *rows]))
        traffic = "traffic: {input_tokens: 1e9, output_tokens: 1e8, history: days.csv}\n"
        (tmp_path / "spec.yaml").write_text(f"{PAIR}{traffic}schedule: {{timezone: {zone}, windows: auto}}\n")
        return [
            each for each in check_fit(check_spec(tmp_path / "spec.yaml")).warnings if each.path.endswith("history")
        ]

    return warned


def days(first, count=7):
    """Rows of whole days."""
    dates = [(date.fromisoformat(first) + timedelta(days=each)).isoformat() for each in range(count)]
    return [f"{day}T{hour:02}:00,{100 + hour}" for day in dates for hour in range(24)]


def test_whole_days_are_not_warned_of(warnings_of):
    """Nor is a row that stands there twice with one demand."""
    assert warnings_of(days("2026-11-02")) == []
    assert warnings_of([*days("2026-11-02"), "2026-11-03T00:00,100"]) == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [*days("2026-11-02"), *(row.replace(",1", ",9") for row in days("2026-11-02", 1))],
            "W145 has different demands for 24 times, such as 2026-11-02T00:00",
        ),
        (
            [row for row in days("2026-11-02") if not row.startswith("2026-11-04T1")],
            "W146 lacks 10 times, the first 2026-11-04T10:00",
        ),
        (
            [*days("2026-11-02"), "2026-11-09T00:00,1"],
            "W146 has 1 of the 24 times of its last day, 2026-11-09",
        ),
        (
            [*days("2025-11-15", 1), *days("2026-11-16")],
            "W146 has no rows for 365 days between 2025-11-15 and 2026-11-16",
        ),
    ],
)
def test_what_is_hardly_meant_is_said_once(warnings_of, rows, said):
    """Each with its number and the first place."""
    assert [each.rule for each in warnings_of(rows)] == [said]


def test_hours_that_clocks_skip_or_show_twice_are_right(warnings_of):
    """In Berlin, and in UTC neither is."""
    autumn = [*days("2026-10-20"), "2026-10-25T02:00,999"]
    spring = [row for row in days("2026-03-24") if not row.startswith("2026-03-29T02")]
    for rows in (autumn, spring):
        assert warnings_of([*rows, *days("2026-10-27" if rows is autumn else "2026-03-31")], "Europe/Berlin") == []
        assert len(warnings_of(rows)) == 1
