"""What a person reads of demand, and what the next look reads of this one."""

from dataclasses import replace

import pytest

from stacks.controller.clock import Clock
from stacks.controller.decide import decide
from stacks.controller.demand import Demand, Floor
from stacks.controller.lend import Marks
from stacks.controller.measure import Measurement, previous_floors, previous_suspects
from stacks.controller.observe import Observation
from stacks.controller.report import build_status, build_wrong_day_status
from stacks.controller.stragglers import Suspect
from tests.stacks.controller.days import HOUR, MIDNIGHT, OFF, READY, STARTING, UNITS, situation

NOW = MIDNIGHT + 2 * HOUR
DONE = "every unit that is wanted is ready, with its newest template"
DEPLOYMENT = {"metadata": {"generation": 1}, "spec": {}}


def status(demand, suspects=None):
    """The status at night, when one unit of each phase is on."""
    floors = {phase: floor.units for phase, floor in demand.floors.items()} if demand else {}
    return build(replace(situation((READY, OFF, READY, OFF)), floors=floors), demand, suspects)


def build(seen, demand=None, suspects=None, departed=()):
    """The status of what was seen."""
    measurement = Measurement(Observation(seen, Clock(MIDNIGHT, 1)), demand, suspects)
    return build_status(measurement, decide(seen, NOW), Marks(), None, [*UNITS, *departed], (), (), NOW, DEPLOYMENT)


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
    conditions = status(Demand({"decode": Floor(units, NOW + 60, units)}, {}, unknown))["conditions"]
    (found,) = (each for each in conditions if each["type"] == "Forecast")

    assert (found["status"], found["reason"]) == condition[:2]
    assert found["message"].startswith(condition[2])


def test_a_deployment_that_follows_its_day_alone_says_nothing_of_demand():
    """Neither a condition nor a floor."""
    found = status(None)

    assert [each["type"] for each in found["conditions"]] == ["Following", "Current", "Served", "Ready"]
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


def test_a_plan_is_carried_out_when_every_unit_that_is_wanted_is_ready():
    """Tools that apply it wait for that condition; a unit that is late needs time, and nobody's help."""
    late = build(situation((READY, OFF, STARTING, OFF)))

    assert conditions_of(status(None))["Ready"] == ("True", "CarriedOut", DONE)
    assert conditions_of(late)["Ready"] == ("False", "TooFewUnits", "0 of 1 decode units are ready")
    assert "Stalled" not in conditions_of(late)


def test_a_plan_is_not_carried_out_while_a_unit_that_left_it_is_there():
    """It still has its nodes."""
    found = conditions_of(build(situation((READY, OFF, READY, OFF)), departed=["d2"]))

    assert found["Ready"] == ("False", "UnitsLeave", "d2 left the plan: not deleted yet")


def test_a_day_that_cannot_be_followed_waits_for_a_person():
    """So tools say at once that it has failed, instead of waiting for as long as they may."""
    found = conditions_of(build_wrong_day_status("spec.timezone (x) is no name", NOW, DEPLOYMENT))

    why = ("WrongDay", "spec.timezone (x) is no name")
    assert found == {"Following": ("False", *why), "Ready": ("False", *why), "Stalled": ("True", *why)}


def test_a_template_that_does_not_start_waits_for_a_person():
    """Another template is what it takes. The unit that awaits its turn meanwhile serves, and has not failed."""
    waiting, late = {"is_outdated": True}, {"is_late": True}
    look = situation((READY, OFF, STARTING, READY))
    units = [replace(unit, **{"d0": late, "d1": waiting}.get(unit.name, {})) for unit in look.units]
    found = conditions_of(build(replace(look, units=tuple(units))))

    assert found["Stalled"] == ("True", "Stopped", found["Current"][2])
    assert found["Ready"] == ("False", *found["Stalled"][1:])


def conditions_of(written):
    return {each["type"]: (each["status"], each["reason"], each["message"]) for each in written["conditions"]}
