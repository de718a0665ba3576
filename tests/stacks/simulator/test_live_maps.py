"""Units that change their expert maps in a simulated day."""

import json

import pytest
import yaml

from planner.compiler import run_passes
from planner.rules.check import change_spec, check_spec
from stacks import cli
from stacks.simulator.flows.day import simulate_day

LIVE = {"every": "6h", "min_gain": 0.01, "max_bytes": "100GB"}


@pytest.fixture(scope="module")
def maps(small_spec):
    """A function that returns the maps of a simulated day of the small spec, with these changes."""
    spec = check_spec(small_spec)

    def simulate(limits):
        plan = run_passes(change_spec(spec, {"expert_load.live": LIVE | limits}))
        return simulate_day(plan).maps["mixed"]

    return simulate


@pytest.fixture(scope="module")
def day(maps):
    return maps({})


def test_units_follow_drifting_loads_within_their_limits(day):
    """At the end of every period a unit may change its map, which makes the day more even than the plan's map does.

    More drift makes the plan's map less even, and gives live maps more to gain.
    """
    expected, most = day["mid"], day["low"]

    assert expected.decisions == most.decisions == 4
    assert 0 < most.switches <= 4
    assert 0 < most.num_bytes <= most.switches * 100e9
    assert 1 <= most.live < most.planned
    assert expected.planned < most.planned
    assert most.planned - most.live > expected.planned - expected.live


def test_a_limit_that_nothing_meets_keeps_the_map(maps):
    """Without a gain of `min_gain`, or with fewer bytes than an expert has, the day is that of the plan's map."""
    for limits in ({"min_gain": 100}, {"max_bytes": "1kB"}):
        found = maps(limits)["low"]

        assert (found.switches, found.num_bytes) == (0, 0)
        assert found.live == found.planned


def test_a_unit_that_starts_again_gets_its_former_map(small_spec):
    """A unit that was off begins with the plan's map, and gets its last one back at once: one more switch."""
    spec = yaml.safe_load(small_spec.read_text()) | {"expert_load": {"live": LIVE | {"every": "12h"}}}
    del spec["mixed"]["units"]
    spec["schedule"] = {"windows": [{"at": "13:00", "mixed_units": 2}, {"at": "12:00", "mixed_units": 0}]}
    spec["kubernetes"] = {"controller": {}}
    path = small_spec.with_name("windows.yaml")
    path.write_text(yaml.safe_dump(spec))
    found = simulate_day(run_passes(check_spec(path))).maps["mixed"]["low"]

    assert (found.hours, found.decisions) == (23, 1)
    assert found.switches == 2


def test_the_command_tells_the_day_of_maps(small_spec, day, capsys):
    """The text has a sentence for each phase, and the JSON its figures; without `live` neither says anything of it."""
    assert cli.main(["simulate", str(small_spec), "--format", "json"]) == 0
    assert "live_maps" not in json.loads(capsys.readouterr().out)["columns"][0]

    spec = yaml.safe_load(small_spec.read_text()) | {"expert_load": {"live": LIVE}}
    path = small_spec.with_name("live.yaml")
    path.write_text(yaml.safe_dump(spec))
    assert cli.main(["simulate", str(path), "--format", "json"]) == 0
    (column,) = json.loads(capsys.readouterr().out)["columns"]
    assert cli.main(["simulate", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    found = column["live_maps"]["mixed"]

    assert found["mid"]["num_bytes"] == day["mid"].num_bytes
    assert found["mid"]["live"] == pytest.approx(day["mid"].live, rel=1e-5)
    assert f"{day['mid'].switches} of 4 decisions change its map" in said
    assert "is assumed" in said
