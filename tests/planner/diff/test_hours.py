"""A change is judged by every hour of every kind of day, also where the schedule alone takes units away."""

import pytest

from planner.compiler import compile_plan, run_passes
from planner.diff.diff import compare_plans
from planner.diff.former import judge_former
from planner.diff.text import diff_text
from planner.diff.wording import verdicts
from planner.manifests.folder import files_of, kept_plan, write_folder
from planner.rules.check import change_spec
from tests.planner.diff.pairs import SMALL, base

DAY, NIGHT = SMALL["schedule.windows"]
WORKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday"]
FEW = {"at": "00:00", "prefill_units": 1, "decode_units": 1}
NONE = {"at": "03:00", "prefill_units": 0, "decode_units": 0}
NO_NIGHT = [DAY, NIGHT, NONE, NIGHT | {"at": "04:00"}]
QUIET = [1.0] * 3 + [0.0] + [1.0] * 20  # nobody asks at three


def _change(fields, first=None):
    """The change from the small day, with the fields of `first` written into it, to one with other fields too."""
    spec, before = base(40)
    if first is not None:
        spec = change_spec(spec, first)
        before = compile_plan(spec)
    return compare_plans(before, compile_plan(change_spec(spec, fields), before))


def _other(windows, days=WORKDAYS):
    return {"schedule.other_days": [{"days": days, "windows": windows}]}


@pytest.mark.parametrize(
    ("fields", "verdict", "said"),
    [
        (_other(NO_NIGHT), "outage", "no decode unit is on at 03:00-04:00 on monday to saturday"),
        (_other(NO_NIGHT, ["2026-12-24"]), "outage", "no decode unit is on at 03:00-04:00 on 2026-12-24"),
        (_other([FEW]), "degraded", "too few prefill units are on at 08:00-01:00 on monday to saturday"),
        (_other([DAY | {"at": "00:00"}]), "no_restart", "no_restart: no running pod ends"),
    ],
)
def test_the_worst_of_all_days_gives_the_verdict_and_is_named(fields, verdict, said):
    """Ordinary days may be one in seven."""
    change = _change(fields)

    assert change.verdict == verdict
    assert said in verdicts(change)[-1]


def test_a_change_of_pods_is_judged_on_other_days_too():
    """On two days one decode unit is on, and no nodes are free for another while it restarts."""
    full = _other([DAY | {"at": "00:00", "prefill_units": 5, "decode_units": 1}], ["saturday", "monday"])
    change = _change({"kubernetes.image": "another:2"}, full)

    assert change.ways["git"].times == {
        "rolling": "all day on ordinary days",
        "outage": "all day on saturday, monday",
    }
    assert "outage all day on saturday, monday; rolling all day on ordinary days" in " ".join(diff_text(change).split())


def test_days_that_no_calendar_has_are_not_judged():
    """Where each weekday has windows of its own, no day is ordinary."""
    week = [*WORKDAYS, "sunday"]
    all_day = _other([DAY | {"at": "00:00"}], week)

    assert _change(all_day | {"schedule.windows": NO_NIGHT}, all_day).verdict == "no_restart"


@pytest.mark.parametrize(
    ("first", "fields", "verdict"),
    [
        ({}, {"schedule.windows": NO_NIGHT}, "outage"),
        ({"traffic": None, "cost.prices": None}, {"schedule.windows": NO_NIGHT}, "outage"),
        ({"traffic.profile": QUIET}, {"schedule.windows": NO_NIGHT}, "no_restart"),
        ({}, {"schedule.windows": [FEW]}, "degraded"),
        ({"kubernetes.controller": None}, {"schedule.windows": NO_NIGHT}, "no_restart"),
        ({"kubernetes.controller": None, "schedule.windows": NO_NIGHT}, {"kubernetes.controller": {}}, "outage"),
    ],
)
def test_units_that_a_schedule_takes_away_are_missed_where_tokens_are_asked(first, fields, verdict):
    """No pod restarts. Without traffic any hour may be asked, and without a controller nothing switches units."""
    assert _change(fields, first).verdict == verdict


def test_a_shortage_that_was_there_before_is_said_and_not_counted():
    """A change of a price is not to blame for it, and whoever reads of the change learns of it."""
    change = _change({"cost.usd_per_gpu_hour": 3}, {"schedule.windows": NO_NIGHT})
    worse = _change({"schedule.windows": [*NO_NIGHT, NONE | {"at": "05:00"}]}, {"schedule.windows": NO_NIGHT})

    assert change.verdict == "no_restart"
    assert "no decode unit is on at 03:00-04:00, as before the change" in diff_text(change)
    assert (worse.verdict, [each.is_new for each in worse.shortages]) == ("outage", [True, False] * 2)


def test_a_folder_whose_units_are_too_few_is_not_made_worse_by_the_same_spec(tmp_path):
    """It keeps no figures, so what its units serve is computed again."""
    short = change_spec(base(40)[0], {"schedule.windows": [FEW]})
    write_folder(tmp_path, files_of(compile_plan(short), None))
    kept = kept_plan(tmp_path)
    found = run_passes(short, kept)
    change = compare_plans(kept, found.plan, judged=judge_former(kept, found))

    assert change.verdict == "no_restart"
    assert [each.is_new for each in change.shortages] == [False]


def test_the_share_of_refused_requests_is_that_of_the_worst_hour():
    """One prefill unit of four serves 59.3 % of what the busiest hour asks, and text and JSON say what is left."""
    change = _change({"schedule.windows": [FEW]})
    (short,) = change.shortages
    asked = max(each.asked_tokens_per_s for each in base(40)[1].demand["prefill"].stretches)
    most = base(40)[1].demand["prefill"].most_tokens_per_s / 2

    assert short.missed_share == pytest.approx(1 - most / asked, rel=1e-3)
    assert change.ways["git"].missed_share == short.missed_share
    assert "up to 40.7% of requests are refused" in " ".join(diff_text(change).split())


@pytest.mark.parametrize(
    ("zone", "times"),
    [("Antarctica/Troll", ["00:00-02:00"]), ("Atlantic/Reykjavik", [])],
)
def test_clocks_are_compared_on_every_day_of_the_year(zone, times):
    """Troll's clocks show UTC in January, and are two hours ahead in July: its units leave while callers are there."""
    busy = {"traffic.input_tokens": 90e9, "traffic.output_tokens": 12e9, "schedule.timezone": "UTC"}
    change = _change({"schedule.timezone": zone}, busy)

    assert [each.times for each in change.shortages if each.is_new and each.phase == "prefill"] == times


PEAK = [1] * 12 + [6] * 4 + [1] * 8


@pytest.mark.parametrize(("zone", "times"), [("Asia/Shanghai", ["20:00-00:00"]), ("UTC", [])])
def test_a_schedule_may_bring_another_clock(zone, times):
    """Without one, the traffic's hours were UTC's; windows that fit them elsewhere are eight hours off."""
    all_day = {"schedule": None, "kubernetes.controller": None, "prefill.units": 4, "decode.units": 2}
    windows = [DAY | {"at": "12:00"}, NIGHT | {"at": "16:00"}]
    switched = {"prefill.units": None, "decode.units": None, "kubernetes.controller": {}}
    change = _change(
        switched | {"schedule": {"timezone": zone, "windows": windows}}, all_day | {"traffic.profile": PEAK}
    )

    assert [each.times for each in change.shortages if each.phase == "decode"] == times
    assert ("schedule.timezone" in diff_text(change)) == bool(times)


def test_an_evening_may_be_part_of_the_next_day():
    """Saturday's last hours in UTC are Sunday's first ones in Shanghai, when one unit of each phase is on."""
    busy = {"days": ["saturday"], "profile": [1] * 16 + [6] * 8}
    first = {
        "traffic.input_tokens": 22e9,
        "traffic.output_tokens": 2.6e9,
        "traffic.other_days": [busy],
        "schedule.timezone": "UTC",
        "schedule.windows": [FEW],
    } | _other([DAY | {"at": "00:00"}], ["saturday"])
    change = _change({"schedule.timezone": "Asia/Shanghai"}, first)

    assert change.verdict == "degraded"
    assert [each.times for each in change.shortages if each.is_new and each.phase == "decode"] == [
        "00:00-08:00 on sunday"
    ]


def test_a_rate_that_only_the_former_plan_knows_is_worse():
    """Nobody can tell what units of a GPU without rates serve, be they as many as before."""
    change = _change({"cluster.gpu": {"name": "own", "memory": "80GiB", "nvlink": "200GB/s", "nic": "400Gbps"}})

    assert change.verdict == "degraded"
    assert "nobody can tell whether enough prefill units are on all day" in diff_text(change)
