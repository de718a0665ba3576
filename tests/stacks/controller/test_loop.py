"""Rounds over a cluster that refuses some of what they ask for."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from planner.facts import names
from stacks.cli import main
from stacks.controller import loop, measure
from stacks.controller.clock import timestamp
from stacks.controller.demand import Load
from stacks.controller.figures import Figures
from stacks.controller.heal import STEADY_S
from stacks.controller.loop import follow, run_once, run_round
from stacks.controller.observe import UNIT_KIND
from stacks.kube import api
from tests.stacks.controller.cluster import PLAN, MemoryCluster
from tests.stacks.controller.days import DAY, HOUR, MIDNIGHT, NIGHT
from tests.stacks.controller.test_observe import OLD, SPEC, withheld

NOON, EVENING = MIDNIGHT + 12 * HOUR, MIDNIGHT + 23 * HOUR
NODES = [f"node-{unit['name']}" for unit in SPEC["units"]]
SECOND = {*DAY} - {*NIGHT}


def with_nodes(**spec):
    """The day of four units, each on a node of its own."""
    units = [unit | {"nodes": [node]} for unit, node in zip(SPEC["units"], NODES, strict=True)]
    return SPEC | {"units": units} | spec


def lending():
    """The same by night, when the nodes of the second units are lent."""
    cluster = MemoryCluster(with_nodes(lendNodes={"noticeSeconds": 60}), nodes=NODES)
    for unit in SECOND:
        cluster.unit(unit, 0)
    return cluster


def healed(**labels):
    """The same, where units leave nodes that report `GPUMissing`, or have one of the `labels`, for one spare."""
    units = [unit | {"spares": ["spare"]} for unit in with_nodes()["units"]]
    cluster = MemoryCluster(
        with_nodes(units=units, heal={"conditions": ["GPUMissing"]} | labels), nodes=[*NODES, "spare"]
    )
    for unit, node in zip(SPEC["units"], NODES, strict=True):
        cluster.pod(unit["name"], node)
    return cluster


def labels(cluster, node):
    return cluster.objects["Node", node]["metadata"]["labels"]


@pytest.fixture
def overload(monkeypatch):
    """Demand for more decode units than the plan has: news at each look."""
    figures = Figures({"decode": Load(2, 1e6, 0.0, 0.0)}, frozenset())
    monkeypatch.setattr(measure, "read_figures", lambda _: figures)
    rooms = {"decode": {"requests": 8}}
    demand = {"used": 0.9, "backlog": 2, "afterSeconds": 0, "staySeconds": 900, "rooms": rooms}
    return {"metrics": "http://gateway/metrics", "demand": demand}


def test_units_are_scaled_and_the_status_is_written_where_events_are_refused(overload):
    """A quota of events may be all that there is wrong. The log says so, once, as the news is not news again."""
    said, cluster = [], MemoryCluster(SPEC | overload)
    cluster.unit("p1", 0)
    cluster.refused.add(("create", "Event"))
    follower = cluster.follower(said=said)

    for second in (0, 5):
        run_round(follower, NOON + second)

    assert cluster.replicas()["p1"] == 1
    assert {each["type"]: each["reason"] for each in cluster.status["conditions"]}["Forecast"] == "BeyondPlan"
    assert Counter(each.partition(":")[0] for each in said)["cannot write an event"] == 2  # the start, and the news


def test_a_change_is_noted_before_any_unit_is_scaled_for_it(monkeypatch):
    """A controller that is killed right after that has left no unit out."""

    def be_killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "apply_scale", be_killed)
    cluster = MemoryCluster(SPEC)
    cluster.objects[names.DEPLOYMENT_KIND, PLAN]["status"] = {"unitNames": ["p0", "p1", "d0"]}
    cluster.unit("p1", 0)

    with pytest.raises(KeyboardInterrupt):
        run_round(cluster.follower(), NOON)

    (change,) = cluster.status["changes"]
    assert (change["began"], [each["name"] for each in change["units"]]) == (timestamp(NOON), ["d1"])


def test_gateways_without_a_ready_unit_say_what_fails_and_nothing_of_demand(overload, monkeypatch):
    """Just then requests fail."""
    failed = iter((5, 8))
    monkeypatch.setattr(measure, "read_figures", lambda _: Figures({}, frozenset(), {"10.0.0.1": next(failed)}))
    cluster = MemoryCluster(SPEC | overload)
    cluster.objects[names.DEPLOYMENT_KIND, PLAN]["status"] = {"unitNames": ["p0", "p1", "d0"]}  # d1 is new
    cluster.unit("d1", 0)

    for second in (0, 5):
        run_round(cluster.follower(), NOON + second)

    forecast = next(each for each in cluster.status["conditions"] if each["type"] == "Forecast")
    assert (forecast["reason"], forecast["message"]) == ("NoFigures", "the gateway knows of no ready unit")
    assert cluster.status["changes"][0]["failed"] == 3


def test_units_are_scaled_before_anything_is_told(overload):
    """An admission webhook for events may take its time."""
    cluster = MemoryCluster(SPEC | overload)
    cluster.unit("p1", 0)

    run_round(cluster.follower(), NOON)

    assert [reason for reason, _ in cluster.told()] == ["Start", "BeyondPlan"]


def test_nodes_are_lent_where_events_are_refused():
    """Marks and status are there, and no round marks them again."""
    said, cluster = [], lending()
    cluster.refused.add(("create", "Event"))
    follower = cluster.follower(said=said)

    for second in (0, 5, 10):
        run_round(follower, EVENING + second)

    assert {node for node in NODES if labels(cluster, node).get(names.NODE_LABEL) == "free"} == {"node-p1", "node-d1"}
    assert cluster.status["freeNodes"] == 2
    assert len(said) == 4  # two units' nodes, each with what cannot be written


def test_an_order_that_nobody_can_follow_is_told_once():
    """An event says it, and the condition does for as long as it is so."""
    cluster = MemoryCluster(SPEC | {"force": {"state": "07:00", "until": "2026-01-01T00:00:00Z"}})
    follower = cluster.follower()

    for second in (0, 5):
        run_round(follower, EVENING + second)

    ((reason, why),) = [each for each in cluster.told() if each[0] != "Drain"]
    assert reason == "WrongOrder"
    assert "is none of the day's" in why
    following_day = cluster.status["conditions"][0]
    assert (following_day["status"], following_day["reason"]) == ("True", "WrongOrder")
    assert {unit for unit, number in cluster.replicas().items() if number} == {*NIGHT}


def test_a_controller_that_looks_once_lets_the_next_one_act():
    """It would have to be seen for as long as a lease lasts, and whoever looks once sees it once."""
    cluster = MemoryCluster(SPEC)

    for holder in ("one", "two"):
        assert run_once(cluster.follower(holder), NOON).startswith("state 06:00")


@pytest.mark.parametrize("second", [0, 4, 5, 29, 299])
def test_a_controller_that_looks_once_looks_at_nodes(second):
    """Whoever asks what it would do is told of faulty nodes and of marks in any second, and cron heals in any, too."""
    cluster, said = healed(), []
    cluster.objects[names.DEPLOYMENT_KIND, PLAN]["spec"]["lendNodes"] = {"noticeSeconds": 60}
    cluster.objects["Node", "node-d1"]["status"] = {"conditions": [{"type": "GPUMissing", "status": "True"}]}
    run_once(replace(cluster.follower(said=said), lease=None), NOON + second)
    told = list(said)
    run_once(cluster.follower(), NOON + second)

    assert told == ["would have 0 nodes free and 0 left", "would keep new pods away from node-d1"]
    assert cluster.told() == [("Faulty", "node-d1 reports a fault")]


def test_a_node_that_reports_a_fault_again_and_again_costs_one_move():
    """At every look its condition is another one: the unit leaves once, and its pods find the taint there."""
    cluster = healed()
    follower = cluster.follower()
    for look in range(20):
        now = NOON + 30 * look
        condition = {
            "type": "GPUMissing",
            "status": "False" if look % 2 else "True",
            "lastTransitionTime": timestamp(now),
        }
        cluster.objects["Node", "node-d1"]["status"] = {"conditions": [condition]}
        run_round(follower, now)
        if not cluster.replicas()["d1"]:
            cluster.unit("d1")
            cluster.pod("d1", "spare")

    assert [reason for reason, _ in cluster.told()] == ["Faulty", "Drain"]
    assert cluster.objects["Node", "node-d1"]["spec"]["taints"]

    run_round(follower, now + STEADY_S)
    assert cluster.told()[-1] == ("Mended", "node-d1 reports no fault any more")
    assert "taints" not in cluster.objects["Node", "node-d1"]["spec"]


def test_a_label_that_comes_and_goes_costs_one_move():
    """Whenever the unit's pods start again, the taint is there: it stays for ten minutes from when it was added."""
    cluster = healed(labels=["gpu=bad"])
    follower = cluster.follower()
    for look in range(19):
        cluster.objects["Node", "node-d1"]["metadata"]["labels"] = {"gpu": "bad" if look % 4 < 2 else "good"}
        run_round(follower, NOON + 30 * look)
        if not cluster.replicas()["d1"]:
            cluster.unit("d1")
            del cluster.objects["Pod", "d1-0"]
        if look == 4:
            cluster.pod("d1", "spare" if cluster.objects["Node", "node-d1"]["spec"].get("taints") else "node-d1")

    assert [reason for reason, _ in cluster.told()] == ["Faulty", "Drain"]

    cluster.objects["Node", "node-d1"]["metadata"]["labels"] = {"gpu": "good"}
    run_round(follower, NOON + STEADY_S)
    assert cluster.told()[-1] == ("Mended", "node-d1 reports no fault any more")
    assert "taints" not in cluster.objects["Node", "node-d1"]["spec"]


@pytest.mark.parametrize("round_s", [5, 6, 7, 15, 29, 31])
def test_nodes_are_looked_at_however_long_rounds_take(round_s, monkeypatch):
    """The first round of each half a minute looks, whenever it begins, and so does the very first."""
    cluster, begun, looks = healed(), [], []
    health = SimpleNamespace(note_end=lambda *, went_well: None)
    listed = cluster.list_all

    def clock():
        begun.append(NOON + 1 + len(begun) * round_s)
        return begun[-1]

    def list_all(api_version, kind, *arguments, **options):
        if kind == "Node":
            looks.append(begun[-1])
        return listed(api_version, kind, *arguments, **options)

    monkeypatch.setattr(cluster, "list_all", list_all)
    follow(replace(cluster.follower(), clock=clock), lambda: len(begun) == 600 // round_s, lambda _: None, health)

    assert looks[0] == begun[0]
    assert {each // 30 for each in looks} == {each // 30 for each in begun[:-1]}  # the lease is let go at the last


def test_the_controller_goes_by_the_clock_of_the_api_server(monkeypatch, capsys):
    """The server has said when pods have to be gone, and our own clock may be an hour ahead."""
    monkeypatch.setattr(api, "connect", lambda _: SimpleNamespace(now=lambda: NOON))
    monkeypatch.setattr(loop, "run_once", lambda follower, now: f"{now}, then {follower.clock()}")

    assert main(["controller", "ns/a", "--context", "kind", "--dry-run", "--once"]) == 0
    assert capsys.readouterr().out.endswith(f" {NOON}, then {NOON}\n")


def test_a_fault_that_was_seen_once_moves_no_unit():
    """It is over when its unit would go."""
    cluster = healed()
    follower = cluster.follower()
    for look, status in enumerate(("True", "False", "False")):
        cluster.objects["Node", "node-d1"]["status"] = {"conditions": [{"type": "GPUMissing", "status": status}]}
        run_round(follower, NOON + 30 * look)

    assert [reason for reason, _ in cluster.told()] == ["Faulty", "Mended"]
    assert cluster.replicas()["d1"] == 1


@pytest.mark.parametrize(
    ("marked", "taints"),
    [
        ({names.PLAN_LABEL: "other", names.NODE_LABEL: "reclaimed"}, []),
        ({}, [{"key": names.RECLAIMED_TAINT, "value": "other", "effect": "NoSchedule"}]),
    ],
)
def test_a_node_that_another_plan_has_marked_is_left_to_it(marked, taints):
    """It is said once, and the other nodes are lent as ever."""
    said, cluster = [], lending()
    node = cluster.objects["Node", "node-d1"]
    node["metadata"]["labels"], node["spec"] = dict(marked), {"taints": list(taints)}
    follower = cluster.follower(said=said)

    lines = {run_round(follower, EVENING + second) for second in (0, 5, 300)}

    assert (labels(cluster, "node-d1"), node["spec"]) == (marked, {"taints": taints})
    assert labels(cluster, "node-p1")[names.NODE_LABEL] == "free"
    assert cluster.status["nodes"] == {"free": ["node-p1"], "reclaimed": []}
    assert said == ["the 1 nodes of p1 are free"]
    (line,) = lines
    why = "the plan other has marked node-d1: plan one of the two again without this node"
    assert line == f"state 22:00: as planned; 1 of the units' nodes cannot be marked: {why}"


def test_marks_that_are_the_plans_own_come_and_go():
    """A taint that nobody has given a value goes, too: it names no other plan."""
    cluster = lending()
    node = cluster.objects["Node", "node-d1"]
    node["spec"] = {"taints": [{"key": names.RECLAIMED_TAINT, "effect": "NoSchedule"}]}

    run_round(cluster.follower(), EVENING)

    assert labels(cluster, "node-d1") == {names.PLAN_LABEL: PLAN, names.NODE_LABEL: "free"}
    assert "taints" not in node["spec"]


def test_a_status_is_written_where_nobody_may_look_at_nodes():
    """The marks in it are those that nodes have."""
    cluster = lending()
    cluster.refused.add(("list", "Node"))

    line = run_round(cluster.follower(), EVENING)

    assert "4 of the units' nodes cannot be marked: " in line
    assert cluster.status["nodes"] == {"free": [], "reclaimed": []}


def test_units_are_scaled_where_nobody_may_look_at_pods():
    """Only lending asks for them: no node becomes free, and the status says why."""
    cluster = lending()
    cluster.refused.add(("list", "Pod"))
    follower = cluster.follower()

    run_round(follower, EVENING)
    why, marked = cluster.status["why"], [node for node in NODES if labels(cluster, node)]
    run_round(follower, NOON)

    assert not marked
    assert why.startswith("no further node becomes free, since pods cannot be looked at: ")
    assert cluster.replicas() == dict.fromkeys(DAY, 1)


def test_the_first_turn_waits_for_a_look_that_finds_no_further_template():
    """A tool applies objects one by one, and phases that do not begin together take more turns."""
    cluster, drained = MemoryCluster(SPEC), []
    for late in ("p0", "d0", None):
        if late is not None:
            waiting = withheld(late, updatedReplicas=0)
            cluster.objects[UNIT_KIND, late] |= {key: waiting[key] for key in ("spec", "status")}
            labels = {"leaderworkerset.sigs.k8s.io/name": late}
            cluster.put("StatefulSet", late, labels=labels, status=OLD, generation=2)
        run_round(cluster.follower(), NOON)
        drained.append({name for name, replicas in cluster.replicas().items() if not replicas})

    assert drained == [set(), set(), {"p0", "d0"}]
