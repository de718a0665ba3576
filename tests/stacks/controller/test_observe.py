"""What a TidemillDeployment and its units' objects say together, and what of it nobody could follow."""

from datetime import UTC, datetime

import pytest

from planner.facts import names
from stacks.controller.clock import Clock
from stacks.controller.decide import decide
from stacks.controller.observe import UNIT_KIND, deployment_reference, observe, read_situation
from stacks.controller.situation import Orders
from stacks.controller.spec import WrongDay
from stacks.kube.readiness import missing
from tests.stacks.controller.cluster import NAMESPACE, PLAN, MemoryCluster
from tests.stacks.controller.days import MIDNIGHT

CLOCK = Clock(MIDNIGHT, 1)
SPEC = {
    "timezone": "UTC",
    "warmUpSeconds": 600,
    "drainSeconds": 300,
    "units": [
        {"name": f"{phase[0]}{index}", "phase": phase, "pods": 2} for phase in ("prefill", "decode") for index in (0, 1)
    ],
    "steps": [
        {"at": "06:00", "units": {"prefill": 2, "decode": 2}},
        {"at": "22:00", "units": {"prefill": 1, "decode": 1}},
    ],
}


def group(name, **spec):
    """A unit's object, of which nothing is ready."""
    metadata, spec = {"name": name, "generation": 1}, {"leaderWorkerTemplate": template()} | spec
    return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": metadata, "spec": spec}


def template(**pod):
    return {"workerTemplate": {"spec": pod}}


def test_the_day_is_read_as_it_was_planned():
    """States last until the next one, the last into the next day, with the first units of each phase."""
    seen = read_situation(SPEC, [group("p0"), group("d0", replicas=0)], CLOCK, MIDNIGHT, {"d0": ["node-d0"]})

    steps = seen.timetable.steps
    assert [(step.at, step.minutes, step.units, step.num_nodes) for step in steps] == [
        ("06:00", 16 * 60, ("p0", "p1", "d0", "d1"), 8),
        ("22:00", 8 * 60, ("p0", "d0"), 4),
    ]
    assert [(unit.name, unit.replicas, unit.has_pods) for unit in seen.units] == [
        ("p0", 1, True),
        ("p1", None, False),
        ("d0", 0, True),
        ("d1", None, False),
    ]


def withheld(name, wanted=1, *, generation=2, **status):
    """A ready unit whose template waits for its turn; the status says how far its controller is."""
    partition = {"rollingUpdateConfiguration": {"partition": 1}}
    found = group(name, replicas=wanted, rolloutStrategy=partition)
    found["metadata"] |= {"generation": generation, "labels": {names.PLAN_LABEL: PLAN}}
    seen = {"observedGeneration": 2, "replicas": wanted, "readyReplicas": wanted, "updatedReplicas": wanted}
    return found | {"status": seen | {"conditions": [{"type": "Available", "status": "True"}]} | status}


LAGGING = {"observedGeneration": 1, "currentRevision": "a", "updateRevision": "a"}
OLD, SAME = ({"observedGeneration": 2, "currentRevision": each, "updateRevision": "b"} for each in "ab")


@pytest.mark.parametrize(
    ("unit", "leader", "outdated"),
    [
        (withheld("p0", updatedReplicas=0), OLD, True),
        (withheld("p0", updatedReplicas=0, readyReplicas=0), OLD, True),
        (withheld("p0", updatedReplicas=0), LAGGING, True),
        (withheld("p0", updatedReplicas=0, readyReplicas=0), {}, False),  # it was just made
        (withheld("p0", updatedReplicas=0, readyReplicas=0), SAME, False),  # its pods are being made
        (withheld("p0"), OLD, False),  # its own status says so, and nobody asks for more
        (withheld("p0", generation=3, updatedReplicas=0), OLD, False),  # it is not ready either, so nobody gets a turn
        (withheld("p0", 0, replicas=1, updatedReplicas=0), OLD, True),
        (withheld("p0", 0, replicas=1), SAME, False),
        (withheld("p0", 0), OLD, False),
        (withheld("p0", 0, generation=3), SAME, True),
        (withheld("p0", updatedReplicas=0) | {"spec": {"replicas": 1}}, OLD, False),  # nothing is withheld
    ],
)
def test_a_unit_is_outdated_while_its_pods_have_an_older_template(unit, leader, outdated):
    """One that is off is, until the new template is what it will start with."""
    cluster = MemoryCluster(SPEC)
    cluster.objects[UNIT_KIND, "p0"] = unit
    cluster.put("StatefulSet", "p0", labels={"leaderworkerset.sigs.k8s.io/name": "p0"}, status=leader, generation=2)
    found = observe(cluster, cluster.get(deployment_reference(NAMESPACE, PLAN)), MIDNIGHT).situation.units[0]

    assert found.is_outdated is outdated
    assert found.is_ready is (missing(unit) is None and bool(found.replicas))


@pytest.mark.parametrize(
    ("same_image", "image", "has_other_kv_format"), [(1, "a:1", True), (1, "a:2", False), (0, "a:1", False)]
)
def test_a_unit_of_another_image_is_a_stranger_where_images_decide_what_kv_is(same_image, image, has_other_kv_format):
    """The pods' own image tells, beside that of the unit's object."""
    cluster = MemoryCluster(SPEC | ({"sameImage": {}} if same_image else {}))
    unit = withheld("p0", updatedReplicas=0)
    for name in cluster.replicas():
        cluster.objects[UNIT_KIND, name]["spec"]["leaderWorkerTemplate"] = template(containers=[{"image": "a:2"}])
    unit["spec"]["leaderWorkerTemplate"] = template(containers=[{"image": "a:2"}])
    cluster.objects[UNIT_KIND, "p0"] = unit
    cluster.put("StatefulSet", "p0", labels={"leaderworkerset.sigs.k8s.io/name": "p0"}, status=OLD, generation=2)
    cluster.pod("p0", "node-a")["spec"]["containers"] = [{"image": image}]
    found = observe(cluster, cluster.get(deployment_reference(NAMESPACE, PLAN)), MIDNIGHT).situation.units

    assert [each.has_other_kv_format for each in found] == [has_other_kv_format, False, False, False]
    assert found[0].holds == {"node-a"}


@pytest.mark.parametrize(
    ("former", "gateway", "is_ready", "found"),
    [
        ("kv-1", "kv-2", True, (True, "newest")),
        ("kv-1", "kv-2", False, (True, "former")),
        ("kv-1", "kv-1", True, (True, "former")),  # it was undone, or is not applied yet
        ("kv-2", "kv-2", False, (False, "newest")),
    ],
)
def test_a_unit_whose_pods_have_another_kv_format_is_a_stranger(former, gateway, is_ready, found):
    """Launch files tell the format, also the gateway's, which takes the new one once all its pods are replaced."""
    cluster = MemoryCluster(SPEC)
    launch = {"p0-old": former, "p0-new": "kv-2", "gateway-launch": gateway}
    for config, kv in launch.items():
        labels = {names.UNIT_LABEL: "p0"} if config.startswith("p0") else names.gateway_selector(PLAN)
        made = cluster.put("ConfigMap", config, labels=labels)
        made["data"] = {"p0.json.0": f'{{\n  "kv_digest": "{kv}",\n'}
    unit = withheld("p0", updatedReplicas=0)
    unit["spec"]["leaderWorkerTemplate"] = template(**mounting("p0-new"))
    cluster.objects[UNIT_KIND, "p0"] = unit
    cluster.put("StatefulSet", "p0", labels={"leaderworkerset.sigs.k8s.io/name": "p0"}, status=OLD, generation=2)
    cluster.pod("p0", "node-a")["spec"] |= mounting("p0-old")
    counts = {"observedGeneration": 1, "replicas": 1, "availableReplicas": 1, "updatedReplicas": int(is_ready)}
    labels, spec = names.gateway_selector(PLAN), {"template": mounting("gateway-launch")}
    cluster.put("Deployment", "gateway", labels=labels, spec=spec, status=counts)
    seen = observe(cluster, cluster.get(deployment_reference(NAMESPACE, PLAN)), MIDNIGHT).situation

    assert (seen.units[0].has_other_kv_format, seen.gateway) == found


def mounting(config):
    return {"volumes": [{"name": "launch", "configMap": {"name": config}}]}


@pytest.mark.parametrize(
    ("former_s", "newest_s", "extra_s"), [(50, 190, -140), (190, 50, 140), (50, 50, 0), (None, 50, -20)]
)
def test_pods_with_an_older_template_drain_as_that_one_says(former_s, newest_s, extra_s):
    """Their grace period tells; without one it is half a minute. Units without a newer template do not count."""
    cluster = MemoryCluster(SPEC)
    unit = withheld("p0", updatedReplicas=0)
    unit["spec"]["leaderWorkerTemplate"] = template(terminationGracePeriodSeconds=newest_s)
    cluster.objects[UNIT_KIND, "p0"] = unit
    cluster.put("StatefulSet", "p0", labels={"leaderworkerset.sigs.k8s.io/name": "p0"}, status=OLD, generation=2)
    cluster.pod("p0", "node-a")["spec"] |= {"terminationGracePeriodSeconds": former_s} if former_s else {}
    cluster.pod("d0", "node-b")["spec"]["terminationGracePeriodSeconds"] = 1000
    situation = observe(cluster, cluster.get(deployment_reference(NAMESPACE, PLAN)), MIDNIGHT).situation

    assert situation.extra_drain_s == extra_s


def test_a_unit_that_takes_too_long_is_late():
    """Its own status says since when it starts."""
    starting = {"type": "Progressing", "status": "True", "lastTransitionTime": "2025-11-24T23:49:59Z"}
    unit = withheld("p0", readyReplicas=0, conditions=[starting])
    late, early = (
        read_situation(SPEC | {"readySeconds": seconds}, [unit], CLOCK, MIDNIGHT).units[0] for seconds in (600, 602)
    )

    assert late.is_late
    assert not early.is_late


@pytest.mark.parametrize("lacks", [{"observedGeneration": 1}, {"status": "False"}])
def test_a_unit_that_has_just_been_turned_on_is_not_late(lacks):
    """Its status still tells of the start before, which may be hours ago."""
    before = {
        "type": "Progressing",
        "status": lacks.get("status", "True"),
        "lastTransitionTime": "2025-11-24T20:00:00Z",
    }
    unit = withheld("p0", readyReplicas=0, conditions=[before])
    unit["status"] |= {key: value for key, value in lacks.items() if key != "status"}
    (found, *_) = read_situation(SPEC | {"readySeconds": 600}, [unit], CLOCK, MIDNIGHT).units

    assert (found.is_ready, found.is_late) == (False, False)


def test_units_are_turned_on_where_nobody_may_look_at_their_templates():
    """The status says that none takes a new one, and why."""
    cluster = MemoryCluster(SPEC)
    cluster.objects[UNIT_KIND, "p0"] = withheld("p0", updatedReplicas=0)
    cluster.refused.add(("list", "StatefulSet"))
    situation = observe(cluster, cluster.get(deployment_reference(NAMESPACE, PLAN)), MIDNIGHT).situation

    assert not situation.units[0].is_outdated
    assert situation.unseen.startswith("no unit takes a new template, since StatefulSets cannot be looked at: ")


def test_other_days_are_read_like_the_day():
    """States of weekdays and dates, with the units that they count."""
    others = [{"days": ["sunday", "2026-12-24"], "steps": [{"at": "08:00", "units": {"prefill": 1, "decode": 1}}]}]
    (other,) = read_situation(SPEC | {"otherDays": others}, [], CLOCK, MIDNIGHT).timetable.other_days

    assert other.days == ("sunday", "2026-12-24")
    assert [(step.at, step.units) for step in other.steps] == [("08:00", ("p0", "d0"))]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"otherDays": [{"days": ["2026-02-30"], "steps": SPEC["steps"]}]},
            "spec.otherDays.0.days has 2026-02-30, which is no weekday and no date",
        ),
        (
            {"otherDays": [{"days": ["sunday"], "steps": [{"at": "06:00", "units": {"decode": 3}}]}]},
            "spec.otherDays.0.steps at 06:00 wants 3 decode units of 2",
        ),
        ({"timezone": "Europe/Berlinn"}, "spec.timezone (Europe/Berlinn) is no name of a time zone"),
        ({"steps": [SPEC["steps"][0]] * 2}, "spec.steps has two states that begin at one time"),
        (
            {"steps": [{"at": "06:00", "units": {"decode": 3}}]},
            "spec.steps at 06:00 wants 3 decode units of 2",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_what_nobody_could_follow_is_said(change, why):
    """With the field and what it holds; the controller goes on and waits for a better one."""
    with pytest.raises(WrongDay) as error:
        read_situation(SPEC | change, [], CLOCK, MIDNIGHT)

    assert str(error.value) == why


def test_orders_have_the_worlds_time_and_the_day_its_own():
    """At a pace of 60, a hold of a minute lasts for an hour of the day."""
    clock = Clock(MIDNIGHT, 60)
    seen = read_situation(SPEC | {"hold": {"until": "2025-11-25T00:01:00Z"}}, [], clock, MIDNIGHT)

    assert seen.orders.hold_until == MIDNIGHT + 3600


@pytest.mark.parametrize("state", ["06:00", "18:00"])
def test_an_order_that_is_over_orders_nothing(state):
    """Whatever it names: the next plan may have no such state, and the order stays in the object."""
    over = {"until": "2025-11-25T00:00:00Z"}
    written = SPEC | {"hold": over, "force": {"state": state} | over}

    assert read_situation(written, [], CLOCK, MIDNIGHT).orders == Orders()


@pytest.mark.parametrize("until", ["2025-11-31T00:00:00Z", "2025-12-31T23:59:60Z", "9999-12-31T23:59:59-23:59"])
def test_a_hold_until_no_time_is_said_and_drains_nothing(until):
    """It was meant, and nobody knows for how long."""
    orders = read_situation(SPEC | {"hold": {"until": until}}, [], CLOCK, MIDNIGHT).orders

    assert (orders.hold_until, orders.may_drain) == (None, False)
    assert orders.unreadable == (
        f"spec.hold.until ({until}) is no time such as 2026-11-25T06:00:00Z, "
        "so no unit drains until it is corrected or null",
    )


@pytest.mark.parametrize(
    ("force", "why"),
    [
        (
            {"state": "07:00", "until": "2025-11-25T06:00:00Z"},
            "spec.force.state (07:00) is none of the day's (06:00, 22:00), so the day goes on without it",
        ),
        (
            {"state": "22:00", "until": "2025-11-31T00:00:00Z"},
            "spec.force.until (2025-11-31T00:00:00Z) is no time such as 2026-11-25T06:00:00Z, "
            "so the day goes on without it",
        ),
    ],
)
def test_a_force_that_nobody_can_follow_is_said_and_orders_nothing(force, why):
    """The hold beside it is followed."""
    hold = {"until": "2025-11-25t01:00:00z"}  # small letters are times too, by RFC 3339

    orders = read_situation(SPEC | {"hold": hold, "force": force}, [], CLOCK, MIDNIGHT).orders

    assert orders == Orders(hold_until=MIDNIGHT + 3600, unreadable=(why,))


def test_a_clock_that_has_left_the_calendar_is_said():
    """The fastest one does so in weeks; on its last day the controller still looks ahead."""
    metadata = {"name": "a", "namespace": "ns", "creationTimestamp": "2025-11-25T00:00:00Z"}
    deployment = {"metadata": metadata, "spec": SPEC | {"pace": 86_400}}
    days = (datetime(9999, 1, 1, tzinfo=UTC) - datetime(2025, 11, 25, tzinfo=UTC)).days  # of the fast clock
    last = observe(NoUnits(), deployment, MIDNIGHT + days - 1)

    assert decide(last.situation, last.clock.day_time(MIDNIGHT + days - 1)).state == "22:00"
    with pytest.raises(
        WrongDay, match=r"^spec.pace \(86400\) has left the calendar since 2025-11-25T00:00:00Z: create"
    ):
        observe(NoUnits(), deployment, MIDNIGHT + days)


class NoUnits:
    """A cluster in which nothing was created yet."""

    def list_all(self, *_, **__):
        return []
