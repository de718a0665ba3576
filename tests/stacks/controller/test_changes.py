"""Changes are recorded beside what was promised, by looks that may be any time apart."""

from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given, settings

from planner.diff.diff import compare_plans
from planner.facts.names import DEPLOYMENT_KIND
from stacks.controller.changes import MAX_CHANGES, ChangeRecord, changes_json, follow_changes, previous_changes
from stacks.controller.clock import timestamp
from stacks.controller.decide import decide
from stacks.controller.loop import run_round
from stacks.controller.observe import UNIT_KIND
from stacks.controller.situation import LiveUnit
from stacks.controller.sweep import SET_LABEL
from stacks.program.plan_objects import plan_objects
from tests.stacks.controller.cluster import MemoryCluster
from tests.stacks.controller.day_spec import day_plan
from tests.stacks.controller.days import ABSENT, HOUR, MIDNIGHT, OFF, READY, STARTING, UNITS
from tests.stacks.controller.test_observe import OLD as OLD_LEADER
from tests.stacks.controller.test_observe import withheld
from tests.stacks.controller.test_turns import (
    CASES,
    DOWN,
    LATE,
    LEAVING,
    NOON,
    OLD,
    Running,
    advance,
    estranged,
    running,
    seen,
)

SPEC = {"startSeconds": 360, "turnSeconds": 600}
ALL_DAY = {"windows": [{"at": "00:00", "prefill_units": 2, "decode_units": 2}]}
TWO = {"prefill": {"units": 1, "ofUnits": 2}, "decode": {"units": 1, "ofUnits": 2}}


def look_at(status, look, now=NOON, *, known=tuple(UNITS), spec=SPEC, failed=MappingProxyType({})):
    """The changes in the status after one look, as they are written."""
    deployment = {"spec": spec, "status": {"changes": status}}
    return changes_json(follow_changes(deployment, look, decide(look, now), known, now, failed))


def follow(*looks):
    """The changes after looks at these states, of each minute."""
    status = []
    for number, states in enumerate(looks):
        status = look_at(status, seen(states), NOON + 60 * number)
    return status


def names(units):
    return [each["name"] for each in units]


def test_a_change_is_recorded_in_order_beside_its_promise():
    """Two turns, at each of which one unit of a phase serves."""
    (change,) = follow(
        (OLD, OLD, OLD, OLD),
        (LEAVING, OLD, LEAVING, OLD),
        (STARTING, OLD, READY, OLD),
        (READY, LEAVING, READY, LEAVING),
        (READY, READY, READY, READY),
        (READY, READY, READY, READY),
    )

    assert names(change["units"]) == ["p0", "d0", "p1", "d1"]
    assert {each["change"] for each in change["units"]} == {"restarted"}
    assert (change["left"], change["outcome"]) == ([], "CarriedOut")
    assert (change["began"], change["ended"]) == (timestamp(NOON), timestamp(NOON + 240))
    assert change["least"] == TWO
    assert change["promised"] == {"least": TWO, "seconds": 1200, "minutes": 20}


@settings(max_examples=10, deadline=None)
@given(CASES)
def test_a_controller_that_is_killed_between_two_acts_leaves_no_unit_out(case):
    """What it has seen is written before anything is done. No phase has less than was promised."""
    (now, on), _, random = case
    units, status = running("old", on), []
    for _ in range(120):
        look = seen([unit.as_seen("new") for unit in units.values()])
        after, scales = look_at(status, look, now), decide(look, now).scales
        if random.randint(0, 3):  # else it is killed before it has written what it has seen, and does nothing
            status = after
        else:
            scales = ()
        for each in scales[: random.randint(0, len(scales))]:
            units = units | {each.unit: Running(int(each.is_on), units[each.unit].template)}
        late = [name for name in units if random.randint(0, 1)]
        units = {name: unit if name in late else advance(unit, "new") for name, unit in units.items()}
    (change,) = look_at(status, look, now)

    assert change["outcome"] == "CarriedOut"
    assert {*names(change["units"])} == {*on}
    least, promised = change["least"], change["promised"]["least"]
    assert all(least[phase]["units"] >= promised[phase]["units"] for phase in least)


def test_requests_that_fail_during_a_change_are_counted_over_all_gateways():
    """Neither those before it, nor those at a gateway before it was seen. One that starts again counts from 0."""
    looks = [
        ((OLD,) * 4, {"old": 10}),
        ((LEAVING, OLD, LEAVING, OLD), {"old": 12, "new": 5}),
        ((READY, OLD, READY, OLD), {}),  # none answers
        ((READY, LEAVING, READY, LEAVING), {"new": 1}),  # it has started again, and the other one is gone
        ((READY,) * 4, {"new": 4}),
        ((READY,) * 4, {"new": 90}),
    ]
    counted, status = [], []
    for states, failed in looks:
        status = look_at(status, seen(states), failed=failed)
        counted.append(status[0]["failed"])

    assert counted == [0, 2, 2, 3, 6, 6]
    assert "gateways" not in status[0]


def test_a_change_whose_gateways_nobody_could_ask_says_nothing_of_failures():
    """Not that there were none."""
    (change,) = follow((OLD,) * 4, (READY,) * 4)

    assert "failed" not in change


def test_a_change_that_a_revert_replaces_ends_and_another_begins():
    """The unit that failed takes its former template, and no other one changes."""
    first, second = follow(
        (OLD, OLD, OLD, OLD), (STARTING, OLD, STARTING, OLD), (DOWN, READY, DOWN, READY), (READY, READY, READY, READY)
    )

    assert (first["outcome"], names(first["units"]), names(first["left"])) == ("Replaced", ["p0", "d0"], ["p1", "d1"])
    assert (second["outcome"], names(second["units"])) == ("CarriedOut", ["p0", "d0"])
    assert second["promised"]["minutes"] == 10


def test_templates_that_come_during_a_change_join_it_and_later_ones_make_their_own():
    """A tool applies objects one by one. Whichever change a unit is in, its promise is what then happens."""
    first, after = (OLD, READY, OLD, READY), (READY,) * 4
    (joined,) = follow(first, (STARTING, OLD, STARTING, OLD), (READY, STARTING, READY, STARTING), after)
    own = follow(first, after, (READY, OLD, READY, OLD), (READY, STARTING, READY, STARTING), after)

    assert (names(joined["units"]), joined["promised"]["seconds"]) == (["p0", "d0", "p1", "d1"], 1200)
    assert [(names(each["units"]), each["promised"]["seconds"]) for each in own] == [
        (["p0", "d0"], 600),
        (["p1", "d1"], 600),
    ]
    assert {str(each["promised"]["least"]) for each in (joined, *own)} == {str(TWO)}


def test_units_that_come_and_go_change_too():
    """The one that leaves counts as one that was to serve, and the new one does not."""
    gone = replace(seen((READY, READY, READY, OFF)), departed=(LiveUnit("p9", "prefill", 1, is_ready=True),))
    going = look_at([], gone, known=("p0", "p1", "p9", "d0"))
    (change,) = look_at(going, seen((READY,) * 4))

    assert [(each["name"], each["change"]) for each in change["units"]] == [("d1", "new"), ("p9", "removed")]
    assert change["least"]["prefill"] == {"units": 2, "ofUnits": 3}
    assert change["least"]["decode"] == {"units": 1, "ofUnits": 1}
    assert change["promised"]["least"] == change["least"]


def test_a_new_unit_that_gets_another_template_during_its_change_has_a_turn():
    """It is no part of the units that the change has left, and must not make all others wait for ever."""
    status = look_at([], seen((READY, READY, READY, STARTING)), known=tuple(UNITS)[:3])
    look = seen((READY, READY, READY, OLD))
    status = look_at(status, look, NOON + 60)

    assert [each.get("outcome") for each in status] == ["Replaced", None]
    assert names(status[-1]["left"]) == [tuple(UNITS)[3]]


P9 = LiveUnit("p9", "prefill", 1, is_ready=True)


@pytest.mark.parametrize(
    ("look", "now", "known", "minutes"),
    [
        (replace(seen((READY,) * 4), departed=(P9,)), NOON, (*UNITS, "p9"), 4),  # a drain
        (seen((READY, READY, READY, OFF)), NOON, ("p0", "p1", "d0"), 6),  # a start
        (replace(seen((OLD,) * 4), departed=(P9,)), NOON, (*UNITS, "p9"), 24),  # two turns, then a drain
        (seen((OLD, OLD, OLD, ABSENT)), NOON, ("p0", "p1", "d0"), 26),  # a start, then two turns
        (seen((OLD, OFF, OLD, OFF)), LATE, tuple(UNITS), 16),  # the stand-ins start, then one turn
        (seen((OLD, OLD, OLD, OLD), may_lack_one=False), NOON, tuple(UNITS), None),  # turns wait for the night
    ],
)
def test_the_promised_time_has_each_step_once(look, now, known, minutes):
    """Units start before others restart, and leave after that. Nobody knows how long turns wait for room."""
    (change,) = look_at([], look, now, known=known)

    assert change["promised"].get("minutes") == minutes


@pytest.mark.parametrize(("extra_s", "seconds"), [(0, 2 * 600 + 240), (60, 2 * 660 + 300), (-1000, 2 * 360)])
def test_pods_that_end_drain_as_the_former_plan_says(extra_s, seconds):
    """Two turns and a unit that leaves: each drain is that much longer or shorter than one of the new plan."""
    look = replace(seen((OLD,) * 4), departed=(P9,), extra_drain_s=extra_s)
    (change,) = look_at([], look, known=(*UNITS, "p9"))

    assert change["promised"]["seconds"] == seconds


@pytest.mark.parametrize(("former", "newest"), [("40s", "40s"), ("40s", "10min"), ("10min", "40s")])
def test_the_controller_promises_the_seconds_of_the_diff(tmp_path, former, newest):
    """Also where the change is one of `drain`: pods that end have the former one. Two turns are rounded up."""
    before = day_plan(tmp_path, schedule=ALL_DAY, drain=former)
    after = day_plan(tmp_path, schedule=ALL_DAY, drain=newest, env={"REVISION": "2"})
    day = next(each.manifest for each in plan_objects(after).all_objects() if each.manifest["kind"] == DEPLOYMENT_KIND)
    cluster = MemoryCluster({key: value for key, value in day["spec"].items() if key != "metrics"})
    for old, new in zip(unit_objects(before), unit_objects(after), strict=True):
        make_outdated(cluster, old, new)

    run_round(cluster.follower(), NOON)

    (change,) = cluster.status["changes"]
    assert len(change["left"]) == 4
    assert 0 <= change["promised"]["seconds"] - compare_plans(before, after).ways["git"].seconds <= 2


def unit_objects(plan):
    """Return the units' objects, as they are applied."""
    return [each.manifest for each in plan_objects(plan).all_objects() if each.manifest["kind"] == UNIT_KIND]


def make_outdated(cluster, old, new):
    """Give the cluster a unit whose pod has the template of `old`, and whose object is `new`."""
    name = new["metadata"]["name"]
    waiting = withheld(name, updatedReplicas=0)
    cluster.objects[UNIT_KIND, name] |= {"spec": new["spec"] | {"replicas": 1}, "status": waiting["status"]}
    cluster.put("StatefulSet", name, labels={SET_LABEL: name}, status=OLD_LEADER, generation=2)
    cluster.pod(name, f"node-of-{name}")["spec"] |= old["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]


def test_stand_ins_wait_for_whoever_uses_their_nodes():
    """Nodes that are lent are left within the notice, which goes by the clock of the day."""
    lent = SPEC | {"lendNodes": {"noticeSeconds": 1200}, "pace": 2}
    (change,) = look_at([], seen((OLD, OFF, OLD, OFF)), LATE, spec=lent)

    assert change["promised"]["minutes"] == 10 + 16


def test_a_unit_whose_new_template_nobody_has_seen_yet_serves():
    """It is not called ready for that instant, and its pods go on."""
    look = seen((OLD, STARTING, OLD, OLD))
    units = tuple(replace(unit, is_unseen=not unit.is_ready) for unit in look.units)

    assert look_at([], replace(look, units=units))[0]["least"]["prefill"] == {"units": 2, "ofUnits": 2}


def test_a_first_deployment_is_no_change():
    """Nobody has seen its units before."""
    assert look_at([], seen((STARTING,) * 4), known=()) == []


def test_with_room_and_a_stand_in_nothing_is_promised_to_be_missing():
    """The second units stand in by night, and with_room waits for the night by day."""
    night = look_at([], seen((OLD, OFF, OLD, OFF)), LATE)
    day = look_at([], seen((OLD,) * 4, may_lack_one=False))

    assert night[0]["promised"]["least"]["prefill"] == {"units": 1, "ofUnits": 1}
    assert day[0]["promised"]["least"]["prefill"] == {"units": 2, "ofUnits": 2}


def test_with_another_kv_format_only_units_of_the_gateways_format_serve():
    """The first new pair serves nobody before its gateway is there, and alone after that."""
    begun = look_at([], estranged(seen((OLD,) * 4)))
    pair = estranged(seen((READY, OLD, READY, OLD)))
    over = look_at(look_at(begun, pair), replace(pair, gateway="newest"))

    assert over[0]["least"] == over[0]["promised"]["least"] == TWO
    assert over[0]["promised"]["minutes"] == 20


def test_the_status_keeps_the_last_changes():
    """A deployment changes for years."""
    before = [ChangeRecord(MIDNIGHT + HOUR * hour, ended=MIDNIGHT + HOUR * hour) for hour in range(MAX_CHANGES)]
    kept = look_at(changes_json(before), seen((OLD,) * 4))

    assert [each["began"] for each in kept] == [timestamp(each.began) for each in before[1:]] + [timestamp(NOON)]
    assert previous_changes({"status": {"changes": kept}})[:-1] == before[1:]
