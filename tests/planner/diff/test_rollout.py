"""What still serves while a change is carried out, hour by hour, and how long that takes."""

from dataclasses import replace

import pytest

from planner.compiler import compile_plan
from planner.diff.diff import compare_plans
from planner.diff.pods import compare_pods
from planner.manifests.render import render_files
from planner.rules.check import change_spec, check_spec
from tests.planner.diff.pairs import base, changed
from tests.planner.test_shipped_specs import SPECS

PHASES = ("prefill", "decode")
IMAGE = {"kubernetes.image": "another:2"}


@pytest.fixture(scope="module")
def spec():
    """Three prefill units and two decode units that are always on, whose demand nobody says."""
    return change_spec(check_spec(SPECS / "h20.yaml"), {"prefill.units": 3, "decode.units": 2, "cluster.nodes": 16})


@pytest.fixture(scope="module")
def before(spec):
    """What it deploys."""
    return compile_plan(spec)


def _ways(spec, before, change):
    ways = compare_plans(before, compile_plan(change_spec(spec, change), before)).ways
    return {
        tool: (way.verdict, {phase: (each.units, each.of_units) for phase, each in way.least_units.items()})
        for tool, way in ways.items()
    }


@pytest.mark.parametrize(
    ("change", "git", "pulumi"),
    [
        ({"slo.tpot_ms": 60}, ("no_restart", 3, 2), ("no_restart", 3, 2)),
        ({"gateway.port": 8001}, ("rolling", 3, 2), ("rolling", 3, 2)),
        (IMAGE, ("outage", 0, 0), ("degraded", 2, 1)),
        ({"decode.overlap": "none"}, ("outage", 3, 0), ("degraded", 3, 1)),
        ({"model.name": "another"}, ("outage", 0, 0), ("outage", 0, 0)),
        ({"prefill.units": 2}, ("rolling", 2, 2), ("rolling", 2, 2)),
        ({"prefill.units": 2} | IMAGE, ("outage", 0, 0), ("degraded", 1, 1)),
        ({"prefill.units": 4}, ("no_restart", 3, 2), ("no_restart", 3, 2)),
    ],
)
def test_tools_differ_by_their_turns(change, git, pulumi, spec, before):
    """Git changes all units at once. Pulumi changes one of a phase at a time, unless KV or nodes are others."""
    found = _ways(spec, before, change)

    assert found == {
        tool: (verdict, {"prefill": (prefill, 3), "decode": (decode, 2)})
        for tool, (verdict, prefill, decode) in {"git": git, "pulumi": pulumi}.items()
    }


def test_the_verdict_is_that_of_the_worst_way(spec, before):
    """So a gate on the verdict passes nothing that interrupts the service, whichever way the change is applied."""
    change = compare_plans(before, compile_plan(change_spec(spec, IMAGE), before))

    assert (change.verdict, change.minutes, change.least_capacity) == (
        "outage",
        change.ways["git"].minutes,
        {"prefill": 0.0, "decode": 0.0},
    )


def test_turns_take_their_time(spec, before):
    """The phase with most units decides: three turns of drain and start; all at once it is one of each."""
    stages = {"pods": "1min", "join": "1min", "graphs": "165s", "storage": "1000TB/s"}  # 5 min with maps and ready
    day = {"windows": [{"at": "00:00", "prefill_units": 3, "decode_units": 2}], "start": stages}
    phases = {
        name: {key: value for key, value in spec.document.data[name].items() if key != "units"} for name in PHASES
    }
    quick = {"schedule": day, "kubernetes.drain": "4min", "kubernetes.load_rate": "1000TB/s"}
    timed = change_spec(spec, phases | quick)
    plan = compile_plan(timed)
    ways = compare_plans(plan, compile_plan(change_spec(timed, IMAGE), plan)).ways

    assert (ways["git"].minutes, ways["pulumi"].minutes) == (10, 28)


@pytest.mark.parametrize("controller", [{}, None])
def test_pods_that_end_drain_as_their_own_plan_says(controller):
    """Another drain counts from the next change on: up and down take as long as another image under the old one."""
    short, long = (_with_kubernetes(base(40)[1], controller=controller, drain=drain) for drain in ("5min", "30min"))
    for before, after in ((short, long), (long, short)):
        drained, same = compare_plans(before, after), compare_plans(before, _with_kubernetes(before, image="another:2"))

        assert {tool: way.seconds for tool, way in drained.ways.items()} == {
            tool: way.seconds for tool, way in same.ways.items()
        }


def test_a_controller_gives_turns_once_new_units_are_ready(spec, before):
    """A new decode unit takes its start before the three turns; without a controller it starts beside them."""
    stages = {"pods": "1min", "join": "1min", "graphs": "165s", "storage": "1000TB/s"}  # 5 min with maps and ready
    day, more = ([{"at": "00:00", "prefill_units": 3, "decode_units": number}] for number in (1, 2))
    phases = {
        name: {key: value for key, value in spec.document.data[name].items() if key != "units"} for name in PHASES
    }
    quick = {"kubernetes.drain": "4min", "kubernetes.load_rate": "1000TB/s"}
    timed = change_spec(spec, phases | quick | {"schedule": {"windows": day, "start": stages}})
    found = []
    for controller in ({}, {"kubernetes.controller": {}}):
        plan = compile_plan(change_spec(timed, controller))
        after = change_spec(timed, controller | IMAGE | {"schedule.windows": more})
        found.append(compare_plans(plan, compile_plan(after, plan)).ways["pulumi"].minutes)

    assert found == [28, 28 + 5]


def test_hours_have_verdicts_of_their_own():
    """At night one decode unit is on and no node is free for another; by day two share less than half of their load."""
    day, night = ({"at": at, "prefill_units": units, "decode_units": 2} for at, units in (("08:00", 4), ("00:00", 5)))
    plan = compile_plan(change_spec(base(40)[0], {"schedule.windows": [day, night | {"decode_units": 1}]}))
    way = compare_plans(plan, _with_kubernetes(plan, image="another:2")).ways["pulumi"]

    assert way.times == {"rolling": "08:00-00:00", "outage": "00:00-08:00"}
    assert (way.least_units["decode"].units, way.least_units["decode"].of_units) == (0, 1)


def _with_kubernetes(plan, **fields):
    """The plan with other fields of `kubernetes`, which decide nothing else here."""
    return plan.with_sections(written=plan.written | {"kubernetes": plan.written["kubernetes"] | fields})


def _ways_with_controller(kind, **controller):
    """Both ways of a change of the small day: by day all its 4 and 2 units are on, by night 2 and 1."""
    plans = base(40)[1], changed(40, kind)
    change = compare_plans(*(_with_kubernetes(each, controller=controller) for each in plans))
    assert change.ways["git"] == change.ways["pulumi"]
    return change


def test_with_a_controller_units_have_turns_whoever_applies():
    """By day each phase lacks one unit; by night the next one stands in, also for the only decode unit."""
    found = _ways_with_controller("image")

    assert found.verdict == "rolling"
    assert {phase: (each.units, each.of_units) for phase, each in found.ways["git"].least_units.items()} == {
        "prefill": (3, 4),
        "decode": (1, 2),
    }


@pytest.mark.parametrize(("controller", "serving"), [({}, 1), (None, 0)])
def test_a_unit_that_leaves_serves_until_others_have_changed(controller, serving):
    """The only decode unit that stays starts again meanwhile. A controller that is new does not know the other one."""
    day = {"schedule.windows": [{"at": "00:00", "prefill_units": 4, "decode_units": 2}]}
    spec = change_spec(base(40)[0], day | {"kubernetes.controller": controller})
    plan = compile_plan(spec)
    fewer = {"schedule.windows": [{"at": "00:00", "prefill_units": 4, "decode_units": 1}], "kubernetes.controller": {}}
    change = compare_plans(plan, compile_plan(change_spec(spec, fewer | IMAGE), plan))
    found = change.ways["git"].least_units["decode"]

    assert (found.units, found.of_units) == (serving, 2)
    assert change.ways["pulumi"] == change.ways["git"]


def test_units_that_are_off_stay_off_when_their_controller_goes():
    """No manifest turns them on. So only those that are on all day count, which are too few by day."""
    day, night = ({"at": at, "prefill_units": units, "decode_units": 1} for at, units in (("08:00", 4), ("00:00", 1)))
    spec = change_spec(base(40)[0], {"schedule.windows": [day, night], "kubernetes.drain": "5min"})
    plans = [compile_plan(change_spec(spec, {"kubernetes.controller": controller})) for controller in ({}, None)]
    taken, given = compare_plans(*plans), compare_plans(*reversed(plans))
    said = "prefill-1, prefill-2, prefill-3 may be off when the controller goes, and stay so until somebody scales them"

    short = [(each.phase, each.times) for each in taken.shortages if each.is_new]
    assert (taken.verdict, short) == ("degraded", [("prefill", "08:00-00:00")])
    assert (said in taken.assumed, said in given.assumed) == (True, False)


@pytest.mark.parametrize("place", [{"name": "other"}, {"kubernetes.namespace": "other"}])
@pytest.mark.parametrize("more", [{}, {"model.name": "another"}])
def test_another_name_is_an_outage(place, more):
    """It is a second deployment, whose units know nothing of the first's, though all nodes are other ones."""
    spec, plan = base(40)
    nodes = [{"name": f"other-{node}", "rack": f"rack-{node // 4}"} for node in range(40)]
    change = compare_plans(plan, compile_plan(change_spec(spec, place | more | {"cluster.nodes": nodes}), plan))

    assert change.verdict == "outage"
    assert set(change.least_capacity.values()) == {0.0}
    assert any(each.startswith("the first deployment ends when the change is applied") for each in change.assumed)


def test_turns_with_room_cost_nothing():
    """They wait for the night, when another unit stands in."""
    found = _ways_with_controller("image", turns="with_room")

    assert found.verdict == "rolling"
    assert found.least_capacity == {"prefill": 1.0, "decode": 1.0}


def test_turns_that_never_come_are_told():
    """A day of one state has no hour with nodes for one unit more."""
    alone = [{"at": "08:00", "prefill_units": 4, "decode_units": 2}]
    spec = change_spec(base(40)[0], {"schedule.windows": alone, "kubernetes.controller": {"turns": "with_room"}})
    plan = compile_plan(spec)
    found = compare_plans(plan, _with_kubernetes(plan, image="another:2"))

    assert "all states want as many: set kubernetes.controller.turns: now" in " ".join(found.assumed)


@pytest.mark.parametrize(
    ("turns", "verdict", "least"),
    [
        ("now", "degraded", {"prefill": (1, 4), "decode": (1, 2)}),
        ("with_room", "degraded", {"prefill": (1, 2), "decode": (1, 1)}),
    ],
)
def test_with_another_kv_format_one_unit_of_each_phase_serves(turns, verdict, least):
    """The old gateway stays until the first new pair is ready, and the new one has that pair alone."""
    found = _ways_with_controller("model name", turns=turns)

    assert found.verdict == verdict
    assert {phase: (each.units, each.of_units) for phase, each in found.ways["git"].least_units.items()} == least


def test_another_kv_format_is_an_outage_where_a_phase_has_one_unit_and_no_room():
    """Nobody serves between the end of the old decode unit and the start of the new one."""
    alone = {"schedule.windows": [{"at": "00:00", "prefill_units": 4, "decode_units": 1}]}
    spec = change_spec(base(40)[0], alone | {"kubernetes.controller": {}})
    plan = compile_plan(spec)
    found = compare_plans(plan, compile_plan(change_spec(spec, {"model.name": "another"}), plan))

    assert {phase: each.units for phase, each in found.ways["git"].least_units.items()} == {"prefill": 1, "decode": 0}
    assert found.verdict == "outage"


def test_another_engines_units_go_at_once_with_another_image():
    """Its version decides what KV is, and its router does not know; the controller is told to look at images."""
    engine = {"engine": "sglang", "kubernetes.tidemill_image": "registry.example.com/tidemill:1"}
    half = {"traffic.input_tokens": 30e9, "traffic.output_tokens": 4e9}  # one unit less keeps up
    spec = change_spec(base(40)[0], engine | half | {"kubernetes.image": "registry.example.com/sglang:v0.5.23"})
    plan = compile_plan(spec)
    rebuilt = compile_plan(change_spec(spec, {"kubernetes.image": "registry.example.com/sglang:v0.5.23-1"}), plan)
    image = compare_plans(plan, rebuilt).verdict
    variable = compare_plans(plan, _with_kubernetes(plan, env={"NCCL_DEBUG": "INFO"})).verdict

    assert (image, variable) == ("outage", "rolling")
    assert "\n  sameImage: {}\n" in render_files(plan)["tidemilldeployment-deepseek-r1.yaml"]
    assert "sameImage" not in render_files(base(40)[1])["tidemilldeployment-deepseek-r1.yaml"]


def test_units_that_get_each_others_nodes_go_together():
    """One that waits for another to leave has a turn after it."""
    before = base(40)[1]
    first, second, third = (unit.nodes for unit in before.units_of("prefill")[:3])
    free = tuple(f"gpu-{number}" for number in range(90, 94))

    assert _turns_on(before, second, first) == [False, False]
    assert _turns_on(before, second, third, free) == [True, True, True]


def _turns_on(before, *nodes):
    """Whether the first prefill units have turns, if they get these nodes."""
    moved = dict(zip([unit.name for unit in before.units_of("prefill")], nodes, strict=False))
    units = tuple(replace(unit, nodes=moved.get(unit.name, unit.nodes)) for unit in before.units)
    return [each.in_turn for each in compare_pods(before, before.with_sections(units=units)) if each.name in moved]


def test_a_start_on_cpus_has_every_stage_but_graphs():
    """A drain of 30 s, then pods 30 s, join 30 s, maps 5 s, ready 10 s, and milliseconds for the demo's weights."""
    plan = compile_plan(check_spec(SPECS / "demo.yaml"))
    other = compile_plan(change_spec(check_spec(SPECS / "demo.yaml"), IMAGE))
    change = compare_plans(plan, other)

    assert (change.ways["git"].seconds, change.minutes) == (30 + 30 + 30 + 5 + 10 + 1, 2)
    assert 0 < change.weights.bytes < 100e6


def test_demand_is_never_more_than_what_served(spec, before):
    """A change keeps the hour's demand where nothing that served is missing, even if more was asked for."""
    hungry = change_spec(spec, {"traffic": {"input_tokens": 9e15, "output_tokens": 9e15}})
    plan = compile_plan(hungry)
    change = compare_plans(plan, compile_plan(change_spec(hungry, {"gateway.port": 8001}), plan))

    assert change.verdict == "rolling"


@pytest.mark.parametrize(("share", "verdict"), [(0.1, "rolling"), (0.55, "degraded")])
def test_remaining_units_are_compared_with_the_traffic(share, verdict, spec, before):
    """Two of three prefill units and one of two decode units serve at most a tenth of the peak, and not 55 %."""
    asked = {"input_tokens": 1e9, "output_tokens": 1e9}
    demand = compile_plan(change_spec(spec, {"traffic": asked}), before).demand
    most = {name: demand[phase].most_tokens_per_s * 86_400 for name, phase in zip(asked, PHASES, strict=True)}
    busy = change_spec(spec, {"traffic": {name: share * tokens for name, tokens in most.items()}})
    plan = compile_plan(busy, before)
    ways = compare_plans(plan, compile_plan(change_spec(busy, IMAGE), plan)).ways

    assert (ways["git"].verdict, ways["pulumi"].verdict) == ("outage", verdict)


@pytest.mark.parametrize(
    ("before", "after", "turns"),
    [({"issuer": "ca"}, {"issuer": "other"}, 0), (None, {"issuer": "ca"}, 3), ({"issuer": "ca"}, None, 3)],
)
def test_other_certificates_serve_nobody_for_a_while(before, after, turns):
    """Another issuer's are read within two minutes; with TLS on one side alone three units need three turns."""
    fields = {"kubernetes.controller": {}, "prefill.units": None, "decode.units": None, "cluster.nodes": 40}
    windows = [{"at": "00:00", "prefill_units": 3, "decode_units": 2}]
    spec = change_spec(base(40)[0], fields | {"schedule.windows": windows})
    old, new = (compile_plan(change_spec(spec, {"kubernetes.tls": tls})) for tls in (before, after))
    change = compare_plans(old, new)
    other = compare_plans(old, compile_plan(change_spec(spec, {"kubernetes.tls": before, "kubernetes.image": "b:2"})))

    assert (change.verdict, set(change.least_capacity.values())) == ("outage", {0.0})
    assert change.minutes == (other.minutes if turns else 2)
