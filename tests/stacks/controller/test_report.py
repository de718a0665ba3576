"""What a person reads of demand, and what the next look reads of this one."""

from dataclasses import replace

import pytest

from stacks.controller.clock import Clock
from stacks.controller.decide import decide
from stacks.controller.demand import Demand, Floor
from stacks.controller.lend import Marks
from stacks.controller.measure import Measurement, previous_floors, previous_suspects
from stacks.controller.observe import Observation
from stacks.controller.report import build_status
from stacks.controller.stragglers import Suspect
from tests.stacks.controller.days import HOUR, MIDNIGHT, OFF, READY, situation

NOW = MIDNIGHT + 2 * HOUR
DEPLOYMENT = {"metadata": {"generation": 1}}


def status(demand, suspects=None):
    """The status at night, when one unit of each phase is on."""
    floors = {phase: floor.units for phase, floor in demand.floors.items()} if demand else {}
    seen = replace(situation((READY, OFF, READY, OFF)), floors=floors)
    measurement = Measurement(Observation(seen, Clock(MIDNIGHT, 1)), demand, suspects)
    return build_status(measurement, decide(seen, NOW), Marks(), None, NOW, DEPLOYMENT)


@pytest.mark.parametrize(
    ("units", "unknown", "condition"),
    [
        (1, None, ("True", "AsForecast", "demand asks for no more units than the day")),
        (2, None, ("False", "MoreDemand", "demand asks for 2 decode units, the day for 1")),
        (3, None, ("False", "BeyondPlan", "demand asks for 3 decode units, and the plan's 4 nodes have room for 2")),
        (1, "nobody answers", ("Unknown", "NoFigures", "nobody answers")),
    ],
)
def test_a_person_reads_whether_demand_is_as_forecast(units, unknown, condition):
    """And if it is more, whether the plan has units for it."""
    found = status(Demand({"decode": Floor(units, NOW + 60, units)}, {}, unknown))["conditions"][-1]

    assert (found["type"], found["status"], found["reason"]) == ("Forecast", *condition[:2])
    assert found["message"].startswith(condition[2])


def test_a_deployment_that_follows_its_day_alone_says_nothing_of_demand():
    """Neither a condition nor a floor."""
    found = status(None)

    assert [each["type"] for each in found["conditions"]] == ["Following", "Current", "Served"]
    assert "demand" not in found


def test_the_next_look_goes_on_from_what_was_written():
    """So a controller that is started again knows since when more is asked for."""
    floors = {"prefill": Floor(1, NOW + 60, 2), "decode": Floor(2, NOW + 90, 3, NOW - 5)}
    suspects = {"d0": Suspect(True), "d1": Suspect(False, NOW - 5)}
    written = {"status": status(Demand(floors, {}), suspects)}

    assert previous_floors(written) == floors
    assert previous_suspects(written) == suspects
    assert previous_floors({}) == previous_suspects({}) == {}


@pytest.mark.parametrize("until", ["2026-11-31T00:00:00Z", "9999-12-31T23:59:59-23:59"])
def test_a_floor_until_no_time_is_none(until):
    """The server's schema admits it. The next look decides anew, and writes a time that there is."""
    no_time = [{"phase": "decode", "units": 5, "until": until, "peak": 5}]

    assert previous_floors({"status": {"demand": no_time}}) == {}
    assert previous_suspects({"status": {"stragglers": [{"unit": "d0", "isLast": True, "since": until}]}}) == {
        "d0": Suspect(True)
    }
