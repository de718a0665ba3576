"""Units that have left the plan, and launch files that nobody needs any more."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from planner.facts import names
from planner.facts.day import DAY_S
from stacks.controller.decide import decide
from stacks.controller.loop import run_round
from stacks.controller.observe import UNIT_KIND
from stacks.controller.situation import LiveUnit, Orders
from tests.stacks.controller.cluster import PLAN, MemoryCluster
from tests.stacks.controller.days import HOUR, MIDNIGHT, OFF, READY, STARTING, UNITS, situation
from tests.stacks.controller.test_observe import SPEC

NOON = MIDNIGHT + 12 * HOUR
SET, REVISION = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/template-revision-hash"
WITHOUT_D1 = {
    "units": [each for each in SPEC["units"] if each["name"] != "d1"],
    "steps": [{"at": "06:00", "units": {"prefill": 2, "decode": 1}}],
}


def departed(state, *, name="d2", holds=()):
    return LiveUnit(name, "decode", state[0], is_ready=state[1], holds=frozenset(holds))


def test_a_unit_that_left_the_plan_serves_until_all_turns_are_over():
    """It serves in place of the only other one of its phase, which starts again meanwhile."""
    look = replace(situation((READY, OFF, READY, OFF)), departed=(departed(READY),))
    outdated = replace(look, units=tuple(replace(unit, is_outdated=unit.is_on) for unit in look.units))

    assert decide(outdated, MIDNIGHT).leaving == ()
    assert decide(look, MIDNIGHT).leaving == ("d2",)


@pytest.mark.parametrize("state", [OFF, STARTING, READY])
def test_a_unit_that_has_left_the_plan_goes_once_nobody_misses_it(state):
    """In every state of the others, each phase keeps the ready units that are wanted."""
    for states in itertools.product((OFF, STARTING, READY), repeat=len(UNITS)):
        look = replace(situation(states), departed=(departed(state),))
        ready = Counter(unit.phase for unit in look.units if unit.is_ready)
        decision = decide(look, NOON)
        is_missed = state == READY and ready["decode"] < 2
        is_missed |= bool(state[0]) and (ready["prefill"] < 2 or ready["decode"] < 2)

        assert decision.leaving == (() if is_missed else ("d2",))
        assert "d2" not in [each.unit for each in decision.scales]


def test_a_unit_that_has_left_the_plan_makes_room_for_one_that_needs_its_nodes():
    """The new one would wait for it, and it for the new one; one that is off starts only after that."""
    look = situation((READY, READY, READY, STARTING))
    units = tuple(replace(unit, nodes=("b",)) if unit.name == "d1" else unit for unit in look.units)
    look = replace(look, units=units, departed=(departed(READY, holds=["b"]),))
    off = replace(look, units=tuple(replace(unit, replicas=int(unit.name != "d1")) for unit in units))

    assert decide(look, NOON).leaving == ("d2",)
    assert decide(off, NOON).scales == ()
    assert [each.unit for each in decide(replace(off, departed=()), NOON).scales] == ["d1"]


@pytest.mark.parametrize("orders", [Orders(hold_until=NOON + 1), Orders(may_drain=False)])
def test_no_unit_leaves_during_a_hold(orders):
    """It serves on, though it has left the plan."""
    look = replace(situation((READY,) * 4, orders), departed=(departed(READY),))

    assert decide(look, NOON).leaving == ()


def deployed():
    """The day of four units, which a controller has followed; and the second decode unit then leaves the plan."""
    cluster = MemoryCluster(SPEC)
    for unit in cluster.replicas():
        cluster.objects[UNIT_KIND, unit]["metadata"]["labels"][names.PHASE_LABEL] = UNITS[unit]
        cluster.put("Service", unit, labels={names.PLAN_LABEL: PLAN, names.UNIT_LABEL: unit})
    run_round(cluster.follower(), NOON)
    cluster.objects[names.DEPLOYMENT_KIND, PLAN]["spec"] |= WITHOUT_D1
    return cluster


def test_a_unit_and_its_objects_go_and_the_others_stay():
    """Whatever the round in which the controller is killed."""
    cluster = deployed()
    for second in (5, 10, 15):
        run_round(cluster.follower(), NOON + second)

    assert [*cluster.replicas()] == ["p0", "p1", "d0"]
    assert [name for kind, name in cluster.objects if kind == "Service"] == ["p0", "p1", "d0"]
    assert cluster.status["unitNames"] == ["p0", "p1", "d0"]
    assert ("Delete", "d1: it has left the plan") in cluster.told()
    assert ("Delete", "Service d1: its unit d1 has left the plan") in cluster.told()


@pytest.mark.parametrize("kind", [kind for _, kind in names.COMPANIONS])
def test_what_only_has_the_name_of_a_unit_that_left_stays(kind):
    """Whoever may edit the day's units may not delete by it what belongs to others, or to the whole plan."""
    cluster = deployed()
    units = cluster.objects[names.DEPLOYMENT_KIND, PLAN]["spec"]["units"]
    cluster.put(kind, "payments-db", labels={names.UNIT_LABEL: "payments-db"})
    cluster.put(kind, PLAN, labels={names.PLAN_LABEL: PLAN})
    cluster.put(kind, "d1", labels={names.PLAN_LABEL: "another", names.UNIT_LABEL: "d1"})
    units.extend({"name": name, "phase": "decode", "pods": 1} for name in ("payments-db", PLAN))
    run_round(cluster.follower(), NOON + 5)
    del units[-2:]
    for second in (10, 15):
        run_round(cluster.follower(), NOON + second)

    assert cluster.status["unitNames"] == ["p0", "p1", "d0"]
    assert {name for of, name in cluster.objects if of == kind} >= {"payments-db", PLAN, "d1"}


def test_a_unit_that_the_plan_does_not_have_yet_stays():
    """Whoever applies a plan writes the units before the deployment's object that lists them."""
    cluster = deployed()
    cluster.unit("d7")
    cluster.objects[UNIT_KIND, "d7"]["metadata"]["labels"][names.PHASE_LABEL] = "decode"
    for second in (5, 10):
        run_round(cluster.follower(), NOON + second)

    assert "d7" in cluster.replicas()


def test_what_may_not_be_deleted_is_tried_again():
    """The log says what, and the unit stays known."""
    cluster, said = deployed(), []
    cluster.refused.add(("delete", "Service"))
    for second in (5, 10):
        run_round(cluster.follower(said=said), NOON + second)
    cluster.refused.clear()
    run_round(cluster.follower(), NOON + 15)

    assert [each for each in said if each.startswith("cannot delete the Service of d1: ")]
    assert ("Service", "d1") not in cluster.objects


def template(config):
    """A pod's spec that mounts a launch file."""
    sources = [{"configMap": {"name": config}}]
    return {"spec": {"volumes": [{"name": "launch", "projected": {"sources": sources}}]}}


def test_templates_and_launch_files_go_once_nobody_can_need_them():
    """The newest of a unit stays, and the one that a pod has; a file that has just been written may be needed soon."""
    cluster, labels = MemoryCluster(SPEC), {names.PLAN_LABEL: PLAN}
    cluster.objects[UNIT_KIND, "p0"]["spec"]["leaderWorkerTemplate"] = {"workerTemplate": template("p0-d")}
    for number, key in enumerate("abbcd", start=1):
        owners = [{"kind": UNIT_KIND, "name": "p0", "uid": "uid-of-p0"}]
        marks = {"labels": {SET: "p0", REVISION: key}, "ownerReferences": owners}
        held = {"spec": {"leaderWorkerTemplate": {"workerTemplate": template(f"p0-{key}")}}}
        cluster.put("ControllerRevision", f"p0-{key}-{number}", **marks).update(revision=number, data=held)
        cluster.put("ConfigMap", f"p0-{key}", labels=labels)
    cluster.put("ConfigMap", "new", labels=labels, creationTimestamp="2025-11-25T12:00:01Z")
    cluster.put("ConfigMap", "gateway", labels=labels)
    cluster.put("Deployment", "gateway", labels=labels, spec={"template": template("gateway")})
    cluster.put("ConfigMap", "old-gateway", labels=labels)
    cluster.put("ConfigMap", "somebodys")
    pod = {names.PLAN_LABEL: PLAN, names.UNIT_LABEL: "p0", SET: "p0", REVISION: "b"}
    cluster.put("Pod", "p0-0", labels=pod, spec=template("p0-b")["spec"])
    foreign = [{"kind": "StatefulSet", "name": "p0", "uid": "uid-of-a-statefulset"}]
    marks = {"labels": {SET: "p0", REVISION: "x"}, "ownerReferences": foreign}
    cluster.put("ControllerRevision", "p0-x", **marks).update(revision=9)

    run_round(cluster.follower(), NOON + DAY_S)

    assert {name for kind, name in cluster.objects if kind == "ControllerRevision"} == {"p0-b-3", "p0-d-5", "p0-x"}
    assert {name for kind, name in cluster.objects if kind == "ConfigMap"} == {
        *("p0-b", "p0-d", "gateway", "new", "somebodys")
    }


def test_a_day_is_followed_where_nobody_may_delete():
    """The log says what is left."""
    cluster, said = MemoryCluster(SPEC), []
    cluster.refused.add(("list", "ConfigMap"))
    run_round(cluster.follower(said=said), NOON)

    assert [each.partition(":")[0] for each in said] == ["cannot delete what nobody needs any more"]
    assert cluster.status["state"] == "06:00"
