"""Promises of a day that asks for more than its units make."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from planner.compiler import run_passes
from planner.cost.demand import PhaseLoad
from planner.facts.day import minute_of, periods
from planner.report.text import plan_text
from planner.rules.check import change_spec, check_spec
from planner.rules.overload import units_meet_demand
from stacks.simulator.flows.day import simulate_day
from stacks.simulator.flows.latency import prompt_waits
from tests.planner.conftest import SPEC
from tests.planner.test_shipped_specs import SPECS

POINT = {"requests": 10, "kv_tokens": 5500, "prompt_tokens": 5000}
NO_HITS = {"operating_point.prefill.cache_hit_rate": None}


def overloads(spec, loads):
    """What is found of loads where units take no more requests than their operating point says."""
    asked = SimpleNamespace(resolved=spec, busy_hours=[(each, None) for each in loads if each.is_over])
    return list(units_meet_demand(asked))


@pytest.fixture
def spec(spec_folder):
    """One that promises both latencies."""
    path = spec_folder / "promises.yaml"
    path.write_text(SPEC + "\nslo: {ttft_ms: 2000, tpot_ms: 50}\n")
    return check_spec(path)


@pytest.mark.parametrize(("phase", "field"), [("prefill", "slo.ttft_ms"), ("decode", "slo.tpot_ms")])
@pytest.mark.parametrize(("asked", "is_broken"), [(0, False), (100, False), (100.4, False), (101, True), (300, True)])
def test_a_promise_is_broken_when_more_is_asked_for_than_is_made(phase, field, asked, is_broken, spec):
    """The warning names the promise and the time, from the first whole per cent too much on."""
    found = overloads(spec, [PhaseLoad(phase, "20:00", asked, 100.0, 100.0, 0.0)])

    assert [each.path for each in found] == (["traffic"] if is_broken else [])
    assert all("at 20:00" in each.rule and each.reason.endswith(f"and {field} is not kept") for each in found)


def test_a_phase_of_which_no_unit_is_on_keeps_nothing(spec):
    """Nothing is served then, and no share of it can be told."""
    (found,) = overloads(spec, [PhaseLoad("decode", "03:00", 1.0, 0.0, 0.0, 0.0, hours_beyond=15.5)])

    assert found.rule == (
        "W138 asks for tokens at 03:00, when no decode unit is on, "
        "and for more than the decode units that are on can make during 15.5 h of that day in all"
    )


@pytest.mark.parametrize(
    ("are_all_on", "all_on_beyond", "fix"),
    [
        (False, None, "turn on more prefill units at that time"),
        (
            False,
            "12:00-14:00",
            "turn on more prefill units at that time; for 12:00-14:00, when all are on, plan 2 of them, which take 2 "
            "nodes, and more cluster.nodes unless enough are free",
        ),
        (
            True,
            "20:00-21:00",
            "all prefill units are on then: plan 3 of them, which take 3 nodes, and more cluster.nodes "
            "unless enough are free",
        ),
    ],
)
def test_more_units_are_planned_where_none_is_left_to_turn_on(are_all_on, all_on_beyond, fix, spec):
    """A schedule that has every unit on cannot turn on more of them."""
    load = PhaseLoad("prefill", "20:00", 300.0, 100.0, 100.0, 0.0, are_all_on=are_all_on, all_on_beyond=all_on_beyond)
    at_noon = replace(load, at="12:00", asked_per_s=150.0, are_all_on=True)
    (found,) = overloads(spec, [load, at_noon] if all_on_beyond else [load])

    assert found.fix == f"{fix} (tidemill simulate shows how long requests wait)"


def test_the_published_day_leaves_decode_units_off_and_prefill_has_time():
    """At 03:30, when decode is fullest, most of its units are off.

    At 15:00 prefill has 109 % of its point's load. It computes 59 % of the time, so prompts wait longer and none is
    refused.
    """
    plan = run_passes(check_spec(SPECS / "deepseek-h800.yaml"))
    (found,) = (each for each in plan.plan.warnings if each.rule.startswith("W138"))

    assert found.rule == (
        "W138 asks for 121% of the most tokens that the decode units can make at 03:30, "
        "and for more than they can make during 8.5 h of that day"
    )
    assert str(found.fix).startswith(
        "turn on more decode units at that time; for 10:00-11:00, 14:00-17:00, 20:00-23:00, "
    )


@pytest.mark.parametrize(("ttft_ms", "is_broken"), [(3600, True), (3900, False)])
def test_a_ttft_is_missed_if_prompts_wait_too_long(ttft_ms, is_broken):
    """At 15:00 the published day has 109 % of the load for its utilisation, and prompts take 3,729 ms.

    The simulation shows the same for the fullest minute.
    """
    plan = run_passes(change_spec(check_spec(SPECS / "deepseek-h800.yaml"), {"slo.ttft_ms": ttft_ms}))
    day = simulate_day(plan)

    assert max(prompt_waits(day.services["mid"], day.curves["mid"]).mean) == pytest.approx(3.729, abs=1e-3)
    assert ("slo.ttft_ms" in [each.path for each in plan.plan.warnings]) is is_broken


@pytest.mark.parametrize("utilisation", [0.3, 0.539])
def test_a_ttft_is_broken_however_full_the_operating_point_is(utilisation):
    """The day makes prefill compute 58.9 % of the time at 15:00, whatever share the point is at."""
    changes = {"slo.ttft_ms": 3600, "operating_point.prefill.utilisation": utilisation}
    plan = run_passes(change_spec(check_spec(SPECS / "deepseek-h800.yaml"), changes))
    (found,) = (each for each in plan.plan.warnings if each.path == "slo.ttft_ms")

    assert found.rule.startswith("W115 is not kept, because traffic asks for 105% of the tokens that the prefill units")
    assert found.reason == "these then compute 58.9% of the time, with which TTFT is predicted at 3,769.3 ms"


def test_a_day_that_asks_for_nothing_is_planned():
    """A Sunday without demand is as good a profile as any other of an unlike day."""
    sunday = {"days": ["sunday"], "profile": [0] * 24}
    traffic = {"input_tokens": 1e9, "output_tokens": 1e8, "profile": [1] * 24, "other_days": [sunday]}
    plan = run_passes(change_spec(check_spec(SPECS / "h800-one-pair.yaml"), {"traffic": traffic} | NO_HITS))

    assert [each.load for each in plan.demand_on("sunday")] == [0, 0]
    assert {load.day for load, _ in plan.busy_hours} <= {None}
    assert PhaseLoad("decode", "00:00", 0.0, 0.0, 0.0, 0.0).load == 0, "with all units off, too"


@pytest.mark.parametrize(("tpot_ms", "broken"), [(60, ["slo.tpot_ms"]), (95, [])])
def test_units_that_take_more_requests_miss_the_tpot(tpot_ms, broken):
    """The day has 168 % of the load of ten requests, and max_requests is 64.

    Then 27 requests run at 94 ms and nobody waits, as in the simulation.
    """
    changes = {
        "operating_point": {"mixed": POINT},
        "slo": {"tpot_ms": tpot_ms, "ttft_ms": 3000},
        "traffic": {"input_tokens": 1e9, "output_tokens": 2e8},
    }
    plan = run_passes(change_spec(check_spec(SPECS / "h200-single-node.yaml"), changes))
    found = [each for each in plan.plan.warnings if "traffic asks" in each.rule]
    outcome = simulate_day(plan).outcomes["mid"]

    assert [each.path for each in found] == broken
    assert "with 168.2% of this load" in " ".join(plan_text(plan.plan).split())
    assert all(
        "works on 27 requests at a time, with which TPOT is predicted at 94.0 ms" in each.reason for each in found
    )
    assert outcome.refused == 0
    assert outcome.latencies.ttft_kept == 1
    assert outcome.latencies.tpot[0] == pytest.approx(0.094, rel=0.01)


def test_too_few_places_break_all_promises_in_one_sentence():
    """More than half of the same day is refused where there are ten places."""
    changes = {
        "operating_point": {"mixed": POINT},
        "mixed.max_requests": 10,
        "slo": {"tpot_ms": 60, "ttft_ms": 3000},
        "traffic": {"input_tokens": 3e9, "output_tokens": 6e8},
    }
    plan = run_passes(change_spec(check_spec(SPECS / "h200-single-node.yaml"), changes))
    (found,) = (each for each in plan.plan.warnings if each.rule.startswith("W138"))

    assert found.rule.startswith("W138 asks for 505% of the most tokens")
    assert "refused" in found.reason
    assert found.reason.endswith(", and slo.ttft_ms and slo.tpot_ms are not kept")


def test_the_units_that_w138_asks_for_suffice():
    """With as many units as the warning says, on as many nodes, it is gone."""
    spec = change_spec(check_spec(SPECS / "deepseek-h800.yaml"), {"schedule": None, "slo": None})
    spec = change_spec(spec, {"decode.units": 4, "prefill.units": 29, "cluster.nodes": 400})
    (found,) = (each for each in run_passes(spec).plan.warnings if each.rule.startswith("W138"))
    units, nodes = map(int, re.search(r"plan (\d+) of them, which take (\d+) nodes", str(found.fix)).groups())
    enough = run_passes(change_spec(spec, {"decode.units": units}))

    assert nodes == sum(len(unit.nodes) for unit in enough.plan.units_of("decode"))
    assert [each for each in enough.plan.warnings if each.rule.startswith("W138")] == []


def test_too_much_traffic_is_named_where_nothing_is_promised(spec_folder):
    """Requests are refused then, too."""
    (spec_folder / "spec.yaml").write_text(SPEC + "\ntraffic: {input_tokens: 1e9, output_tokens: 1e8}\n")
    load = PhaseLoad("decode", "03:00", 300.0, 100.0, 120.0, 0.0)
    (found,) = overloads(check_spec(spec_folder / "spec.yaml"), [load])

    assert (found.path, found.rule.split()[0]) == ("traffic", "W138")
    assert "asks for 250% of the most tokens that the decode units can make at 03:00" in found.rule


def test_the_day_that_asks_for_most_is_named(tmp_path):
    """Saturday's windows have one unit of each phase, and its traffic is everybody's."""
    published = (SPECS / "deepseek-h800.yaml").read_text()
    saturday = "{days: [saturday], windows: [{at: '00:00', prefill_units: 1, decode_units: 1}]}"
    path = tmp_path / "spec.yaml"
    path.write_text(published.replace("  windows:", f"  other_days: [{saturday}]\n  windows:"))

    warned = [each.rule for each in run_passes(check_spec(path)).plan.warnings if each.rule.startswith("W138")]

    assert len(warned) == 2
    assert all("on saturday, and" in each and "h of that day" in each for each in warned)


@pytest.mark.parametrize(
    ("stretches", "expected"),
    [
        ([], ""),
        ([(0, 1440)], "all day"),
        ([(510, 930), (0, 510)], "all day"),
        ([(1320, 120), (0, 360), (660, 420)], "11:00-18:00, 22:00-06:00"),
        ([(60, 30), (90, 30), (121, 59)], "01:00-02:00, 02:01-03:00"),
        ([(1320, 480), (360, 60)], "22:00-07:00"),
    ],
)
def test_periods_join_stretches_that_meet(stretches, expected):
    """Over midnight, too."""
    assert periods(stretches) == expected


BUSY_DAY = """\
version: 1
name: busy
model: {catalog: deepseek-r1}
cluster: {gpu: h20, nodes: 14, gpus_per_node: 8, rack_size: 4}
prefill: {ep_size: 16, redundant_experts: 16, overlap: none, precision: fp8}
decode: {ep_size: 32, redundant_experts: 32, overlap: none, precision: fp8}
schedule: {windows: [{at: "06:00", prefill_units: 3, decode_units: 2}]}
kubernetes: {controller: {}}
traffic: {input_tokens: 5000000000, output_tokens: 2000000000, requests: 4000000,
          profile: [3, 2, 2, 2, 2, 3, 4, 5, 7, 9, 10, 10, 10, 10, 10, 10, 9, 9, 8, 8, 7, 6, 5, 4]}
slo: {ttft_ms: 3000}
"""


def test_a_night_with_too_few_units_hides_no_promise_that_is_missed_by_day(tmp_path):
    """Both have a warning, and the plan has the hours of both; the operating point keeps the promise."""
    path = tmp_path / "busy.yaml"
    path.write_text(BUSY_DAY)
    spec = check_spec(path)
    night = {"at": "22:00", "prefill_units": 1, "decode_units": 1}
    nights = change_spec(spec, {"schedule.windows": [spec.document.data["schedule"]["windows"][0], night]})
    plans = [run_passes(each).plan for each in (spec, nights)]
    warned = [[each.id for each in plan.warnings if each.path in ("slo.ttft_ms", "traffic")] for plan in plans]
    unswitched = run_passes(change_spec(nights, {"kubernetes.controller": None})).plan
    promises = [plan.promises["ttft_ms"] for plan in plans]
    times = [
        periods((minute_of(each.at), each.minutes) for each in promise.misses_on("monday")) for promise in promises
    ]

    assert warned == [["W115"], ["W138", "W115"]]
    assert unswitched.promises == plans[0].promises  # nothing switches units: the night is as the day
    assert "W138" not in [each.id for each in unswitched.warnings]
    assert [each.met for each in promises] == [True, True]
    assert times[0] in times[1]
    assert max(each.predicted for each in promises[0].misses_on("monday")) == pytest.approx(
        float(re.search(r"predicted at ([\d,.]+) ms", str(plans[0].warnings)).group(1).replace(",", "")), abs=0.1
    )
