"""Which unit leaves a faulty node, over every state of four units and every fault of their nodes."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product

import pytest

from planner.facts import names
from stacks.controller.decide import decide
from stacks.controller.heal import STEADY_S, FaultReports, find_node_health, find_reports, heal
from stacks.controller.situation import Orders
from tests.stacks.controller.days import HOUR, MIDNIGHT, UNITS, situation
from tests.stacks.controller.test_decide import EVERY_STATE

NOON, NIGHT = MIDNIGHT + 12 * HOUR, MIDNIGHT + 23 * HOUR
ALL_READY, AT_NIGHT = ((1, True),) * 4, ((1, True), (0, False)) * 2
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
FAULTY = {"key": names.FAULTY_TAINT, "value": "x", "effect": "NoSchedule"}
SPARE = "spare"


def node(name, *taints, conditions=()):
    status = {"conditions": [{"type": kind, "status": status} for kind, status in conditions]}
    return {"metadata": {"name": name}, "spec": {"taints": list(taints)}, "status": status}


def pod(unit, on, *, tolerations=(), **metadata):
    labels = {names.UNIT_LABEL: unit}
    return {
        "metadata": {"name": f"{unit}-0", "labels": labels, **metadata},
        "spec": {"nodeName": on, "tolerations": list(tolerations)},
    }


def seen(states, *, spares=(SPARE,), orders=None):
    """Four units that may move to the spares."""
    found = situation(states, orders)
    units = (replace(unit, nodes=(unit.name,), spares=spares) for unit in found.units)
    return replace(found, units=tuple(units))


def reports(nodes, *conditions, labels=(), spares=("s0", "s1"), pods=(), now=NOON):
    """What they report to the plan x, whose spec has these conditions and labels. Other nodes of units are sound."""
    known = {each["metadata"]["name"] for each in nodes}
    everywhere = [*nodes, *(node(each) for each in (*UNITS, *spares) if each not in known)]
    units = seen(ALL_READY, spares=spares).units
    return find_reports("x", units, everywhere, pods, {"conditions": conditions, "labels": labels}, now)


def healing(states, cordoned, *, now=NOON, orders=None, spares=(SPARE,), occupied=()):
    """What is done when each unit that is on has a pod on a node of its own name, and some nodes are cordoned."""
    look = seen(states, spares=spares, orders=orders)
    nodes = [node(name, *([CORDON] if name in cordoned else [])) for name in ("p0", "p1", "d0", "d1", *spares)]
    pods = [pod(unit.name, unit.name) for unit in look.units if unit.is_on] + [pod("d9", each) for each in occupied]
    return heal(look, decide(look, now), find_node_health(look.units, nodes, pods, FaultReports(), now))


def test_a_unit_moves_only_while_all_others_serve():
    """In every state, whichever nodes are cordoned: what is on is ready, nothing changes, another serves its phase."""
    moves = 0
    for states, *cordons in product(EVERY_STATE, *((False, True),) * 5):
        cordoned = [name for name, is_bad in zip(("p0", "p1", "d0", "d1", SPARE), cordons, strict=True) if is_bad]
        look, move = seen(states), healing(states, cordoned).move
        if move is None:
            continue
        moves += 1
        (unit,) = (each for each in look.units if each.name == move.unit)
        assert unit.name in cordoned
        assert SPARE not in cordoned
        assert not decide(look, NOON).scales
        assert all(each.is_ready for each in look.units if each.is_on)
        assert [each.name for each in look.units if each.phase == unit.phase and each.is_ready and each != unit]

    assert moves


def test_a_unit_on_a_cordoned_node_moves_to_a_spare():
    """It is drained; the day starts it again."""
    found = healing(ALL_READY, ["d1"])

    assert (found.move.unit, found.move.is_on, found.problems) == ("d1", False, ())
    assert found.move.reason == "d1, which is cordoned; it moves to a spare"
    drained = seen(((1, True), (1, True), (1, True), (0, False)))
    assert [(each.unit, each.is_on) for each in decide(drained, NOON).scales] == [("d1", True)]


@pytest.mark.parametrize("orders", [Orders(hold_until=NOON + HOUR), Orders(may_drain=False)])
def test_no_unit_moves_while_a_person_holds_it(orders):
    """Nor while nobody knows for how long."""
    assert healing(ALL_READY, ["d1"], orders=orders).move is None


def test_one_moves_at_a_time():
    """The second waits for the first."""
    assert healing(ALL_READY, ["p0", "d1"], spares=("s0", "s1")).move.unit == "p0"
    assert healing(((0, False), (1, True), (1, True), (1, True)), ["d1"]).move is None
    assert healing(((1, False), (1, True), (1, True), (1, True)), ["d1"]).move is None


@pytest.mark.parametrize(
    ("spares", "occupied", "cordoned"), [((), (), ["d1"]), ((SPARE,), (SPARE,), ["d1"]), ((SPARE,), (), ["d1", SPARE])]
)
def test_without_a_spare_a_person_is_asked_for_a_new_plan(spares, occupied, cordoned):
    """There is none, or another unit has it, or it is faulty itself."""
    found = healing(ALL_READY, cordoned, spares=spares, occupied=occupied)

    assert found.move is None
    assert found.problems == ("d1 is on d1, which is cordoned, and no spare is left: plan again without it",)


def test_a_unit_moves_back_when_its_spare_is_faulty():
    """Its own node is sound by then, and empty."""
    look = seen(ALL_READY)
    pods = [pod(unit.name, SPARE if unit.name == "d1" else unit.name) for unit in look.units]
    nodes = [node("p0"), node("p1"), node("d0"), node("d1"), node(SPARE, CORDON)]

    found = heal(look, decide(look, NOON), find_node_health(look.units, nodes, pods, FaultReports(), NOON))

    assert (found.move.unit, found.problems) == ("d1", ())


def test_the_only_unit_of_a_phase_stays():
    """To move it would end the service."""
    found = healing(AT_NIGHT, ["p0"], now=NIGHT)

    assert found.move is None
    assert found.problems == (
        "p0 is on p0, which is cordoned, and no other prefill unit serves: delete its pods to move it all the same",
    )


TAINT = {"key": "team", "value": "batch", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taint", "tolerations", "why"),
    [
        (CORDON, [], "is cordoned"),
        (TAINT, [], "has the taint team=batch:NoSchedule"),
        (TAINT | {"effect": "NoExecute"}, [], "has the taint team=batch:NoExecute"),
        ({"key": "tidemill.dev/faulty", "value": "x", "effect": "NoSchedule"}, [], "reports a fault"),
        (TAINT | {"effect": "PreferNoSchedule"}, [], None),
        (TAINT, [{"key": "team", "operator": "Exists"}], None),
        (TAINT, [{"operator": "Exists"}], None),
        ({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}, [], None),
    ],
)
def test_a_node_is_faulty_if_it_repels_the_units_new_pods(taint, tolerations, why):
    """A taint that they tolerate would only have the unit come back; those of a lost node Kubernetes sees to."""
    units, pods = seen(ALL_READY).units, [pod("d1", "node-1", tolerations=tolerations)]
    health = find_node_health(units, [node("node-1", taint), node(SPARE)], pods, FaultReports(), NOON)

    assert health.faults["d1"] == ({"node-1": why} if why else {})


@pytest.mark.parametrize("taint", [CORDON, TAINT, {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}])
def test_a_spare_that_repels_pods_is_none(taint):
    """Whoever put the taint there."""
    nodes, pods = [node("node-1"), node(SPARE, taint)], [pod("d1", "node-1")]
    health = find_node_health(seen(ALL_READY).units, nodes, pods, FaultReports(), NOON)

    assert SPARE in health.unusable


def test_pods_that_end_or_wait_are_on_no_faulty_node():
    """The one goes anyway, and the other has no node yet."""
    units = seen(ALL_READY).units
    waits = {"metadata": {"name": "d0-0", "labels": {names.UNIT_LABEL: "d0"}}, "spec": {}}
    ends = pod("d1", "node-1", deletionTimestamp="2026-12-01T12:00:00Z")

    health = find_node_health(units, [node("node-1", CORDON), node(SPARE)], [ends, waits], FaultReports(), NOON)

    assert not any(health.faults.values())
    assert "node-1" in health.unusable
    assert SPARE not in health.unusable


def test_a_strangers_pod_with_a_units_labels_moves_nobody():
    """The unit would move again and again; but no unit's pod could join it on its node."""
    stranger = pod("d1", SPARE)
    stranger["metadata"]["name"] = "mine"

    health = find_node_health(seen(ALL_READY).units, [node(SPARE, CORDON)], [stranger], FaultReports(), NOON)

    assert not any(health.faults.values())
    assert SPARE in health.unusable


@pytest.mark.parametrize(
    ("taint", "seconds_ago", "is_lost"), [("unreachable", 1, True), ("unreachable", -1, False), ("not-ready", 1, False)]
)
def test_a_pod_is_lost_when_its_time_is_over_and_its_node_does_not_answer(taint, seconds_ago, is_lost):
    """A kubelet that still speaks will say itself that the pod has ended."""
    end = datetime.fromtimestamp(NOON - seconds_ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    nodes = [node("node-1", {"key": f"node.kubernetes.io/{taint}", "effect": "NoExecute"})]
    pods = [pod("d1", "node-1", deletionTimestamp=end), pod("d0", "node-1")]

    assert find_node_health(seen(ALL_READY).units, nodes, pods, FaultReports(), NOON).lost == (
        ("d1-0",) if is_lost else ()
    )


def test_a_node_is_tainted_while_one_of_the_conditions_is_true():
    """False, unknown, and conditions that nobody asked for do not count."""
    nodes = [
        node("bad", conditions=[("GPUMissing", "True")]),
        node("good", conditions=[("GPUMissing", "False"), ("Ready", "True")]),
        node("unknown", conditions=[("GPUMissing", "Unknown")]),
    ]

    assert reports(nodes, "GPUMissing", "XIDErrors") == FaultReports(frozenset({"bad"}))


def test_a_node_may_report_a_fault_by_another_status_or_a_label():
    """Some conditions say that all is well, and are false when it is not."""
    labelled = node("labelled") | {"metadata": {"name": "labelled", "labels": {"example.com/gpu": "bad", "a": "b"}}}
    nodes = [node("bad", conditions=[("GpuReady", "False")]), node("good", conditions=[("GpuReady", "True")]), labelled]

    assert reports(nodes, "GpuReady=False").faulty == {"bad"}
    assert reports(nodes, "GpuReady=False", labels=["example.com/gpu=bad"]).faulty == {"bad", "labelled"}
    assert reports(nodes, labels=["example.com/gpu=good"]) == FaultReports()


def test_no_more_nodes_are_tainted_than_there_are_spares():
    """A detector may be wrong about all of them; what has its taint keeps it."""
    missing = [("GPUMissing", "True")]
    nodes = [node("p0", FAULTY, conditions=missing), node("p1", conditions=missing)]

    found = reports(nodes, "GPUMissing", spares=(SPARE,))

    assert found.faulty == {"p0"}
    assert found.problem == (
        "too few sound spares are there for units' nodes that report faults (p0, p1): plan again without them"
    )


LABEL = {"kubernetes.io/os": "linux"}


def labelled(name, *taints):
    return node(name, *taints) | {"metadata": {"name": name, "labels": LABEL}}


@pytest.mark.parametrize(
    ("spares", "others"),
    [
        (("p0", "p1", "d0", "d1"), []),
        (("s0", "s1", "s2"), []),
        (("s0", "s1", "s2", "s3"), [node("s0", CORDON)]),
        (("s0", "s1", "s2", "s3"), [labelled("s0")]),
        (("s0", "s1", "s2", "s3"), [node("s0", FAULTY | {"value": "other"})]),
    ],
)
def test_no_node_is_tainted_that_no_spare_can_replace(spares, others):
    """A label that all nodes have is no fault, and a spare that cannot take a pod is none."""
    found = reports([*map(labelled, UNITS), *others], labels=["kubernetes.io/os=linux"], spares=spares)

    assert not found.faulty & {*UNITS}
    assert found.problem.startswith(
        "too few sound spares are there for units' nodes that report faults (d0, d1, p0, p1"
    )


def test_a_spare_that_is_no_node_replaces_none():
    """The spec may name nodes that the cluster does not have."""
    units = seen(ALL_READY, spares=("s0", "s1", "s2", "s3")).units
    settings = {"conditions": (), "labels": ["kubernetes.io/os=linux"]}

    assert not find_reports("x", units, [*map(labelled, UNITS)], (), settings, NOON).faulty


def test_a_spare_of_other_gpus_replaces_no_node():
    """Units of a phase with GPUs of its own have spares of their own."""
    units = [replace(unit, spares=("h0", "h1") if unit.phase == "prefill" else ()) for unit in seen(ALL_READY).units]
    nodes = [labelled("p0"), node("p1"), node("d0"), labelled("d1"), node("h0"), node("h1")]

    found = find_reports("x", units, nodes, (), {"conditions": (), "labels": ["kubernetes.io/os=linux"]}, NOON)

    assert (found.faulty, "(d1)" in found.problem) == ({"p0"}, True)


def test_a_taint_that_units_tolerate_leaves_a_spare_sound():
    """All nodes of a pool have it."""
    nodes = [node("p1", TAINT, conditions=[("GPUMissing", "True")]), *(node(each, TAINT) for each in ("s0", "s1"))]
    tolerating = pod("d1", "d1", tolerations=[{"key": "team", "operator": "Exists"}])

    assert reports(nodes, "GPUMissing", pods=[tolerating]).faulty == {"p1"}
    assert not reports(nodes, "GPUMissing", pods=[pod("d1", "d1")]).faulty


def test_a_spare_that_a_unit_has_moved_to_is_still_its_spare():
    """One node was replaced before, and there is a second spare for the next."""
    missing = [("GPUMissing", "True")]
    nodes = [node("p0", FAULTY, conditions=missing), node("p1", conditions=missing)]

    assert reports(nodes, "GPUMissing", pods=[pod("p0", "s0"), pod("p1", "p1")]).faulty == {"p0", "p1"}


def test_a_fault_that_is_over_moves_no_unit():
    """Its taint is still there at the look that takes it away."""
    nodes = [node("d1", FAULTY, conditions=[("GPUMissing", "False")]), node(SPARE)]

    found = reports(nodes, "GPUMissing")
    health = find_node_health(seen(ALL_READY).units, nodes, [pod("d1", "d1")], found, NOON)

    assert found == FaultReports(recovered=frozenset({"d1"}))
    assert not health.faults["d1"]


@pytest.mark.parametrize("value", ["other", None])
def test_a_taint_of_another_plan_is_a_fault_all_the_same(value):
    """What that plan goes by is not known here."""
    nodes = [node("d1", FAULTY | {"value": value}), node(SPARE)]

    health = find_node_health(seen(ALL_READY).units, nodes, [pod("d1", "d1")], reports(nodes, "GPUMissing"), NOON)

    assert health.faults["d1"] == {"d1": "reports a fault"}


def test_a_spare_that_has_just_reported_a_fault_takes_no_unit():
    """It gets its taint at this look."""
    nodes = [node("d1", CORDON), node(SPARE, conditions=[("GPUMissing", "True")])]

    health = find_node_health(seen(ALL_READY).units, nodes, [pod("d1", "d1")], reports(nodes, "GPUMissing"), NOON)

    assert SPARE in health.unusable


@pytest.mark.parametrize(
    ("changed_s", "stays"), [(-STEADY_S, False), (-STEADY_S + 1, True), (STEADY_S - 1, True), (86_400, False)]
)
def test_a_taint_stays_while_its_condition_changes(changed_s, stays):
    """What counts is the clock of whoever wrote the condition, if that is near to ours."""
    bad = node("d1", FAULTY, conditions=[("GPUMissing", "False")])
    changed = datetime.fromtimestamp(NOON + changed_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    bad["status"]["conditions"][0]["lastTransitionTime"] = changed

    assert reports([bad], "GPUMissing") == FaultReports(frozenset({"d1"} if stays else ()), frozenset({"d1"}))
