"""Past days of traffic: files that can be read, and the day that is forecast from them."""

import re
import tracemalloc
from datetime import date, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.compiler import run_passes
from planner.facts.digest import pretty_json
from planner.facts.forecast import forecast
from planner.facts.history import History, PastDay, read_history
from planner.plan.load import load_plan
from planner.problems.finding import Finding
from planner.report.text import plan_text
from planner.rules.check import check_spec
from tests.planner.schedule.test_derived import PAIR

MONDAY = date(2026, 11, 2)


def history_of(demand, first=MONDAY):
    """Days one after another, as they stand in `demand`."""
    dates = [(first + timedelta(days=each)).isoformat() for each in range(len(demand) + 1)]
    past = tuple(PastDay(dates[each], len(demand) - each, tuple(row)) for each, row in enumerate(demand))
    return History(past, dates[-1])


def test_days_that_repeat_by_the_week_come_again():
    """Without noise or growth, the next Monday is as every Monday was, at any quantile."""
    weeks = [[(1.0 + day) * (5 + hour % 12) for hour in range(24)] for _ in range(3) for day in range(7)]
    found = forecast(history_of(weeks), 0.9)

    assert found.date == "2026-11-23"
    assert found.median == pytest.approx(weeks[0])
    assert found.quantile == pytest.approx(weeks[0])


def test_growth_goes_on():
    """A tenth more every week is a tenth more in the next one too."""
    found = forecast(history_of([[5 * 1.1 ** (day / 7)] * 24 for day in range(28)]), 0.5)

    assert found.median[0] == pytest.approx(5 * 1.1**4, rel=1e-3)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30), st.floats(0.5, 0.98))
def test_a_higher_quantile_is_never_below(seed, days, quantile):
    """The median is at most any higher quantile, in every hour, and all are numbers."""
    demand = np.random.default_rng(seed).lognormal(0, 0.5, (days, 24)).tolist()
    low, high = (forecast(history_of(demand), each) for each in (quantile, min(quantile + 0.02, 1)))

    assert all(0 < a <= b < 1e9 for a, b in zip(low.quantile, high.quantile, strict=True))
    assert all(a <= b for a, b in zip(low.median, low.quantile, strict=True))


def test_the_quantile_is_what_it_says():
    """Over fifty forecasts from four noisy weeks, about nine tenths of what comes is below the quantile 0.9."""
    rng, below = np.random.default_rng(5), []
    shape = np.array([0.3] * 8 + [1.0] * 16)
    for _ in range(50):
        demand = shape * np.exp(rng.normal(0, 0.1, (29, 24)))
        found = forecast(history_of(demand[:28].tolist()), 0.9)
        below += (demand[28] <= np.array(found.quantile)).tolist()

    assert np.mean(below) == pytest.approx(0.9, abs=0.03)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dead", [0, 7, 13])
@pytest.mark.parametrize("hours", [range(24), range(9, 12)])
def test_an_outage_is_left_out(dead, hours):
    """A day without demand, or some hours of it, changes no forecast: two weeks of 1,000 stay 1,000."""
    demand = [[1000.0] * 24 for _ in range(14)]
    for hour in hours:
        demand[dead][hour] = 0.0
    found = forecast(history_of(demand), 0.9)

    assert found.num_outages == len(hours)
    assert found.num_days == 14
    assert found.quantile == pytest.approx([1000] * 24, rel=0.01)


def test_what_no_day_of_a_weekday_has_is_no_outage():
    """Who closes on Sundays is forecast to be closed on the next one."""
    demand = [[0.0 if day % 7 == 6 else 1000.0] * 24 for day in range(20)]
    found = forecast(history_of(demand), 0.5)

    assert found.num_outages == 0
    assert max(found.median) < 10


@pytest.mark.filterwarnings("error")
def test_gaps_are_filled_from_other_days_and_nothing_stays_nothing():
    """An hour that one day lacks is known from the others, and a service without demand has none tomorrow."""
    gap = [[None if (day, hour) == (3, 2) else 2.0 for hour in range(24)] for day in range(7)]

    assert forecast(history_of(gap), 0.75).quantile == (2.0,) * 24
    assert forecast(history_of([[0.0] * 24] * 2), 0.75).quantile == (0.0,) * 24


def rows(days=1, step=60):
    """Lines of a right file."""
    return "time,demand\n" + "".join(
        f"{MONDAY + timedelta(days=day)}T{minute // 60:02}:{minute % 60:02},{minute}\n"
        for day in range(days)
        for minute in range(0, 1440, step)
    )


@pytest.mark.parametrize(("step", "size"), [(60, 24), (30, 48), (10, 144)])
def test_steps_are_found(step, size, tmp_path):
    """Entries are as long as the steps between times; more columns and a byte order mark do no harm."""
    (tmp_path / "days.csv").write_text(
        "\ufeff" + rows(2, step).replace("\n", ",x\n").replace("demand,x", "demand,note")
    )
    found = read_history(tmp_path / "days.csv", "days.csv")

    assert [len(day.demand) for day in found.history.days] == [size, size]
    assert (found.history.next_date, found.history.days[0].days_before_next) == ("2026-11-04", 2)


def test_only_the_last_year_of_days_is_kept(tmp_path):
    """A long file costs no more than a year: older days are left out, and have to fill no gap of the others."""
    (tmp_path / "days.csv").write_text(rows(370))
    kept = read_history(tmp_path / "days.csv", "days.csv").history
    once = "".join(f"{MONDAY + timedelta(days=1 + day)}T00:00,1\n" for day in range(366))
    (tmp_path / "days.csv").write_text(rows() + once)
    found = read_history(tmp_path / "days.csv", "days.csv")

    assert (len(kept.days), kept.days[0].date) == (366, (MONDAY + timedelta(days=4)).isoformat())
    assert kept.next_date == (MONDAY + timedelta(days=370)).isoformat()
    assert isinstance(found, Finding)
    assert found.reason == "no day of the last 366 has a demand at 01:00"


def test_a_forecast_takes_little_more_memory_than_its_days():
    """Neighbours of an hour on each side do not multiply the days: at one a minute there would be 121 times as many."""
    history = history_of([[1.0 + minute % 7 for minute in range(1440)] for _ in range(7)])
    forecast(history, 0.9)  # imports and caches
    tracemalloc.start()
    forecast(history, 0.9)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most < 20 * 7 * 1440 * 8


def test_of_an_hour_that_clocks_show_twice_the_larger_demand_counts(tmp_path):
    """Two rows of the same time are one entry."""
    (tmp_path / "days.csv").write_text(rows() + "2026-11-02T02:00,999\n2026-11-02 03:00,1\n")
    (day,) = read_history(tmp_path / "days.csv", "days.csv").history.days

    assert day.demand[2:4] == (999.0, 180.0)


@pytest.mark.parametrize("form", ["{}Z", "{}:00", "{}:00Z"])
def test_times_may_have_seconds_and_be_of_utc(form, tmp_path):
    """Exporters write either; whole minutes are the same times."""
    text = re.sub(r"(T\d\d:\d\d)", lambda time: form.format(time[1]), rows(2))
    (tmp_path / "days.csv").write_text(text)
    (tmp_path / "plain.csv").write_text(rows(2))
    found, plain = (read_history(tmp_path / name, name).history for name in ("days.csv", "plain.csv"))

    assert found == plain


def test_times_of_utc_are_no_times_of_another_zone(tmp_path):
    """Clocks there show something else, which the reason names."""
    (tmp_path / "days.csv").write_text(rows().replace(",", "Z,").replace("timeZ", "time"))
    found = read_history(tmp_path / "days.csv", "days.csv", "Asia/Shanghai")

    assert found.rule[:4] == "S619"
    assert "'2026-11-02T00:00Z' of UTC, and clocks show that of schedule.timezone (Asia/Shanghai)" in found.reason


@pytest.mark.parametrize(
    ("text", "rule", "reason"),
    [
        (None, "S617", "No such file or directory"),
        ("a,b\n1,2\n", "S618", "its first line is not time,demand"),
        ("", "S618", "its first line is not time,demand"),
        ("root:x:0:0:root:/root:/bin/bash\n", "S618", "its first line is not time,demand"),
        ("PATH=/usr/bin\0TOKEN=abc\n", "S618", "its first line is not time,demand"),
        ("time,demand,demand\n", "S618", "its first line is not time,demand"),
        ("time,demand\n", "S619", "it has no rows"),
        (rows() + "2026-11-31T00:00,1\n", "S619", "the time in line 26 is not written so"),
        (rows() + "9999-01-01T00:00,1\n", "S619", "the time in line 26 is not written so"),
        (rows() + "2026-11-03T24:00,1\n", "S619", "the time in line 26 is not written so"),
        (rows() + "2026-11-03T00:00:30,1\n", "S619", "the time in line 26 is not written so"),
        (rows() + "2026-11-03T00:00+01:00,1\n", "S619", "the time in line 26 is not written so"),
        (rows() + "2026-11-03T00:00,-1\n", "S619", "the demand in line 26 is no such number"),
        (rows() + "2026-11-03T00:00,nan\n", "S619", "the demand in line 26 is no such number"),
        (rows() + "2026-11-03T00:00,1_000\n", "S619", "the demand in line 26 is no such number"),
        (rows() + "2026-11-03T00:00,١٢\n", "S619", "the demand in line 26 is no such number"),
        (rows() + "2026-11-03T00:00\n", "S619", "the demand in line 26 is no such number"),
        (rows().replace("2026-11-02T05:00,300\n", ""), "S619", "no day has a demand at 05:00"),
        (b"time,demand\n\xff", "S618", "it is not UTF-8"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text, rule, reason, tmp_path):
    """Each mistake has its rule and its line."""
    if text is not None:
        (tmp_path / "days.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    found = read_history(tmp_path / "days.csv", "days.csv")

    assert isinstance(found, Finding)
    assert (found.rule[:4], found.reason) == (rule, reason)


CLOCK = "write what clocks show in Asia/Shanghai, in whole minutes and without an offset: 2026-11-02T08:00"
NUMBER = "write a number from 0 to 1e+18, without separators of thousands"


@pytest.mark.parametrize(
    ("row", "fix"),
    [
        ("2026-11-03T00:00+08:00,1", CLOCK),
        ("2026-11-03T00:00Z,1", "write what clocks show in Asia/Shanghai, without Z"),
        ("1793491200,1", CLOCK),
        ("11/03/2026 00:00,1", CLOCK),
        ("2026-11-03T00:00:30,1", CLOCK),
        ('2026-11-03T00:00,"389,287"', NUMBER),
        ("2026-11-03T00:00,1,389,287.5", NUMBER),
        ("2026-11-03T00:00,389_287", NUMBER),
        ("2026-11-03T00:00,-1", NUMBER),
    ],
)
def test_a_wrong_row_is_told_how_it_is_written(row, fix, tmp_path):
    """What exporters write in another form is refused, and the fix says which form is ours."""
    (tmp_path / "days.csv").write_text(rows() + row + "\n")
    found = read_history(tmp_path / "days.csv", "days.csv", "Asia/Shanghai")

    assert (found.rule[:4], found.fix) == ("S619", fix)


@pytest.mark.parametrize(("minutes", "is_said"), [(7, True), (45, True), (5, False), (20, False)])
def test_steps_are_whole_parts_of_an_hour(minutes, is_said, tmp_path):
    """Rows every seven minutes fall on every minute in the end, and are not taken for minutes with gaps."""
    times = (datetime(2026, 11, 1) + timedelta(minutes=each) for each in range(0, 28 * 24 * 60, minutes))
    (tmp_path / "days.csv").write_text("time,demand\n" + "".join(f"{each:%Y-%m-%dT%H:%M},1\n" for each in times))
    found = read_history(tmp_path / "days.csv", "days.csv")

    assert isinstance(found, Finding) is is_said
    assert not is_said or found.reason.startswith(f"most of its rows are {minutes} minutes apart")


def test_a_higher_quantile_asks_for_more(tmp_path):
    """Tokens are the median day's; a day that is exceeded once in twenty has more of them, and takes more units."""
    draw = np.random.default_rng(7)
    lines = [
        f"{MONDAY + timedelta(days=day)}T{hour:02}:00,{(3 if hour < 8 else 6) * draw.lognormal(0, 0.2):.4f}\n"
        for day in range(28)
        for hour in range(24)
    ]
    (tmp_path / "days.csv").write_text("time,demand\n" + "".join(lines))
    asked = {}
    for quantile in (0.5, 0.75, 0.95):
        tokens = "input_tokens: 6e11, output_tokens: 1.6e11, requests: 4e8"
        traffic = f"traffic: {{{tokens}, history: days.csv, quantile: {quantile}}}\n"
        spec = PAIR.replace("units: 2", "units: auto").replace("nodes: 44", "nodes: auto")
        (tmp_path / "spec.yaml").write_text(f"{spec}{traffic}schedule: auto\n")
        plan = run_passes(check_spec(tmp_path / "spec.yaml"))
        asked[quantile] = (plan.spec.traffic.output_tokens, plan.schedule.mean_nodes)
        assert plan.spec.traffic.output_tokens / plan.spec.traffic.requests == pytest.approx(400)  # as long as before

    assert asked[0.5][0] == pytest.approx(1.6e11)
    assert asked[0.5] < asked[0.75] < asked[0.95]
    assert asked[0.5][1] < asked[0.75][1] < asked[0.95][1]


def test_a_plan_follows_the_forecast(tmp_path):
    """Past days stand for the profile; what units carry is in their unit, and the file's digest is among the inputs."""
    lines = [
        f"{MONDAY + timedelta(days=day)}T{hour:02}:00,{(300 if hour < 8 else 600) + day}\n"
        for day in range(14)
        for hour in range(24)
    ]
    (tmp_path / "days.csv").write_text("time,demand\n" + "".join(lines))
    traffic = "traffic: {input_tokens: 1e9, output_tokens: 1e8, history: days.csv, capacity: 1300}\n"
    (tmp_path / "spec.yaml").write_text(f"{PAIR}{traffic}schedule: auto\n".replace("units: 2", "units: 4"))
    plan = run_passes(check_spec(tmp_path / "spec.yaml"))

    assert [(each.at, each.num_units["decode"]) for each in plan.schedule.steps] == [("00:00", 1), ("08:00", 2)]
    assert list(plan.plan.inputs) == ["days.csv"]
    (decision,) = [each for each in plan.choice.decisions if each.path == "traffic.profile"]
    assert decision.why.startswith("quantile 0.75 of the forecast for 2026-11-16 from 14 past days")
    assert re.search(r"^ *traffic\.profile +24 numbers, 31\d\.\d+ to 61\d\.\d+;", plan_text(plan.plan), re.MULTILINE)
    assert load_plan(pretty_json(plan.plan.as_json()).encode(), tmp_path / "plan.json").digest == plan.plan.digest
