"""Units to nodes: laws over random clusters, an exhaustive reference on small ones, and a previous plan."""

import json
from collections import Counter
from itertools import combinations
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cli import main
from planner.compiler import run_passes
from planner.facts.catalog import GPUS
from planner.layout.nodes import nodes_of, short_gpu
from planner.placement.place import place_units
from planner.problems.errors import InfeasibleError
from planner.report.prerequisites import prerequisites
from planner.rules.check import check_spec
from planner.spec.cluster import ClusterSpec
from planner.spec.kubernetes import KubernetesSpec
from planner.spec.schedule import ScheduleSpec

LISTED = """\
  nodes:
    - {name: a1, rack: a, leaf: l1}
    - {name: a2, rack: a, leaf: l1, cordoned: true}
    - {name: b1, rack: b, leaf: l1, taints: [team=research:NoSchedule]}
    - {name: b2, rack: b, leaf: l1, gpu: h20}
    - {name: c1, rack: c, leaf: l2, gpus: 1}
    - {name: c2, rack: c, leaf: l2, taints: [spot:PreferNoSchedule]}
    - {name: d1, rack: d, leaf: l2}
"""


DECODE_OVER_RACKS = "  ep_size: 1152\n  redundant_experts: 1120"


@st.composite
def cases(draw, max_nodes=20):
    """A cluster, units of two phases, and when they are on."""
    nodes = draw(st.integers(1, max_nodes))
    sizes = {key: draw(st.none() | st.integers(1, nodes)) for key in ("rack_size", "leaf_size")}
    layouts = [
        SimpleNamespace(
            phase=phase,
            num_units=draw(st.integers(0 if phase == "prefill" else 1, 4)),
            nodes_per_unit=nodes_per_unit,
            ranks_per_node=2,
            ep_size=2 * nodes_per_unit,
            gpu="cpu",
        )
        for phase in ("prefill", "decode")
        for nodes_per_unit in [draw(st.integers(1, 6))]
    ]
    windows = None
    if draw(st.booleans()):
        counts = [
            {f"{each.phase}_units": draw(st.integers(0, each.num_units)) for each in layouts},
            {f"{each.phase}_units": each.num_units for each in layouts},
        ]
        windows = [{"at": at} | count for at, count in zip(("01:00", "07:30"), counts, strict=True)]
    schedule = ScheduleSpec.model_validate({"windows": windows}) if windows else None
    return ClusterSpec.model_validate({"gpu": "cpu", "gpus_per_node": 2, "nodes": nodes} | sizes), layouts, schedule


def placed(case, previous=None):
    """The placement of a case, or None where the cluster is too small."""
    cluster, layouts, schedule = case
    written = SimpleNamespace(
        name="any", cluster=cluster, schedule=schedule, kubernetes=KubernetesSpec(), gpu_names=("cpu",)
    )
    checked = SimpleNamespace(
        written=written,
        cluster=cluster,
        has_windows_of_traffic=False,
        document=SimpleNamespace(autos=()),
        gpu_of=lambda _: GPUS["cpu"],
        locate=lambda finding: finding.at("spec.yaml", 1, 1),
    )
    return None if short_gpu(checked, layouts) else place_units(checked, layouts, previous)


@pytest.mark.slow
@given(case=cases())
def test_units_have_whole_nodes_to_themselves(case):
    """Each as many as it wants, none twice, and infeasible only where there are too few."""
    cluster, layouts, _ = case
    placement = placed(case)
    needed = sum(each.num_units * each.nodes_per_unit for each in layouts)
    if placement is None:
        assert needed > cluster.nodes
        return
    nodes = [node for unit in placement.units for node in unit.nodes]

    assert len(nodes) == len(set(nodes)) == needed
    assert set(nodes) <= {node.name for node in nodes_of(cluster)}


@pytest.mark.slow
@given(case=cases())
def test_no_count_is_below_its_bound(case):
    """A bound that a placement beats is none."""
    placement = placed(case)
    for objective in placement.objectives if placement else ():
        assert objective.excess >= 0, objective


@pytest.mark.slow
@given(case=cases())
def test_the_same_spec_moves_nothing(case):
    """Planned after itself, every unit stays where it was."""
    first = placed(case)
    if first is not None:
        again = placed(case, {unit.name: unit.nodes for unit in first.units})

        assert [unit.nodes for unit in again.units] == [unit.nodes for unit in first.units]


@st.composite
def changes(draw, max_nodes=20):
    """A case, and another that has parts of the first: its cluster, its prefill or decode units, its schedule."""
    one, other = draw(cases(max_nodes)), draw(cases(max_nodes))
    cluster, prefill, decode, schedule = (draw(st.sampled_from([0, 0, 1])) for _ in range(4))
    pair = one, other
    return one, (pair[cluster][0], [pair[prefill][1][0], pair[decode][1][1]], pair[schedule][2])


@given(change=changes())
def test_a_unit_that_can_keep_its_nodes_keeps_them(change):
    """Whatever else changes: other units, the schedule, racks and leaves, or the number of nodes."""
    first, near = _placed_one_after_the_other(*change)
    usable = {node.name for node in nodes_of(change[1][0])}
    now = {unit.name: unit.nodes for unit in near.units} if near else {}
    kept = {name: now[name] for name in now if _can_keep(first.get(name, ()), len(now[name]), usable)}

    assert kept == {name: first[name] for name in kept}


@settings(max_examples=50, deadline=None)
@given(change=changes(max_nodes=6))
def test_the_others_are_placed_around_them_as_well_as_possible(change):
    """The slow reference: no placement in which these units stay is better; moves count last."""
    first, near = _placed_one_after_the_other(*change)
    cluster, layouts, schedule = change[1]
    if near is None or sum(each.num_units for each in layouts) > 3:
        return
    own = {node.name: node for node in nodes_of(cluster)}
    units = [(each.phase, index, each.nodes_per_unit) for each in layouts for index in range(each.num_units)]
    had = [first.get(unit.name, ()) for unit in near.units]
    fixed = [
        nodes if _can_keep(nodes, len(unit.nodes), own) else None for unit, nodes in zip(near.units, had, strict=True)
    ]

    def measured(every):
        names = [{node.name for node in nodes} for nodes in every]
        if any(kept is not None and set(kept) != now for kept, now in zip(fixed, names, strict=True)):
            return [float("inf")]
        moves = sum(len(now - set(nodes)) for now, nodes in zip(names, had, strict=True) if nodes)
        return counted(units, every, schedule) + ([moves] if any(had) else [])

    best = min(map(measured, assignments(units, nodes_of(cluster))))

    assert measured([[own[name] for name in unit.nodes] for unit in near.units]) == best


def _placed_one_after_the_other(before, after):
    """The nodes of the first case by unit, and the placement of the second near it; nothing for what has no room."""
    first = placed(before)
    nodes = {unit.name: unit.nodes for unit in first.units} if first else {}
    return nodes, placed(after, nodes)


def _can_keep(had, wanted, usable):
    """Whether a unit had just as many nodes as it wants now, all of them usable."""
    return len(had) == wanted > 0 and set(had) <= set(usable)


@given(case=cases(max_nodes=7))
def test_small_clusters_are_placed_as_well_as_possible(case):
    """The slow reference: of all placements none is better, count after count."""
    cluster, layouts, schedule = case
    placement = placed(case)
    if placement is None or sum(each.num_units for each in layouts) > 3:
        return
    units = [(each.phase, index, each.nodes_per_unit) for each in layouts for index in range(each.num_units)]
    best = min(counted(units, every, schedule) for every in assignments(units, nodes_of(cluster)))
    own = {node.name: node for node in nodes_of(cluster)}
    reached = counted(units, [[own[name] for name in unit.nodes] for unit in placement.units], schedule)

    assert reached == best == [objective.value for objective in placement.objectives]


def counted(units, assignment, schedule):
    """The counts, node by node: leaves, racks, and the worst losses; those whose places are known."""
    nodes = [node for own in assignment for node in own]
    states = [{phase: 1000 for phase, _, _ in units}]
    if schedule:
        states = [{phase: window.num_units(phase) for phase, _, _ in units} for window in schedule.windows]
    counts = []
    if nodes[0].leaf:
        counts.append(sum(len({node.leaf for node in own}) for own in assignment))
    if nodes[0].rack:
        used = [
            {node.rack for unit, own in zip(units, assignment, strict=True) if unit[1] < on[unit[0]] for node in own}
            for on in states
        ]
        counts.append(sum(map(len, used)))
        decode = [own for unit, own in zip(units, assignment, strict=True) if unit[0] == "decode"]
        counts.append(max(Counter(rack for own in decode for rack in {node.rack for node in own}).values()))
    return counts


def assignments(units, nodes):
    """Every way to give each unit its number of nodes."""
    if not units:
        yield []
        return
    for chosen in combinations(nodes, units[0][2]):
        rest = [node for node in nodes if node not in chosen]
        for others in assignments(units[1:], rest):
            yield [list(chosen), *others]


def test_nodes_that_take_no_pods_are_left_out(with_line, found_of):
    """Cordoned, tainted, of another GPU, or with too few: each is named with the reason."""
    plan = found_of(with_line(8, LISTED.rstrip()))

    assert [unit.nodes for unit in plan.units] == [("a1",), ("c2", "d1")]
    assert plan.plan.as_json()["placement"]["unusable_nodes"] == {
        "a2": "cordoned",
        "b1": "tainted team=research:NoSchedule",
        "b2": "has h20",
        "c1": "has 1 GPUs",
    }


def test_spares_are_kept_free(with_line, found_of):
    """No unit is planned on one; the plan names them, but for those that take no pods."""
    names = [*"abcde", "f, cordoned: true"]
    nodes = ", ".join(f"{{name: {name}}}" for name in names)
    plan = found_of(with_line(8, f"  nodes: [{nodes}]\n  spares: [d, a, f]"))

    assert [unit.nodes for unit in plan.units] == [("b",), ("c", "e")]
    assert plan.plan.as_json()["placement"]["spares"] == ["a", "d"]
    assert plan.plan.as_json()["placement"]["unusable_nodes"] == {"f": "cordoned"}


def test_counted_nodes_have_spares_too(with_line, found_of):
    """By the names that they have in the plan."""
    plan = found_of(with_line(8, "  nodes: 5\n  spares: [node-0, node-2]"))

    assert [unit.nodes for unit in plan.units] == [("node-1",), ("node-3", "node-4")]
    assert plan.placement.spares == ("node-0", "node-2")


def test_a_node_without_a_rack_stands_alone(with_line, found_of):
    """The racks of the others are counted all the same."""
    names = [("a1", "a"), ("b1", "b"), ("x", None), ("b2", "b"), ("a2", "a")]
    listed = [{"name": name} | ({"rack": rack} if rack else {}) for name, rack in names]
    plan = found_of(with_line(8, f"  nodes: {json.dumps(listed)}"))
    placement = plan.placement

    assert [(each.name, each.value) for each in placement.objectives[:2]] == [("racks", 2), ("rack_loss", 1)]
    assert {len({name[0] for name in unit.nodes}) for unit in placement.units} == {1}


def test_a_rack_under_two_leaf_switches_is_told(with_line, found_of):
    """Racks of three nodes and leaves of two: the plan names one such rack and counts the others."""
    torn = found_of(with_line(8, "  nodes: 6\n  rack_size: 3\n  leaf_size: 2"))
    whole = found_of(with_line(8, "  nodes: 6\n  rack_size: 3\n  leaf_size: 3"))

    assert list(prerequisites(torn.plan)) == [
        ("racks under several leaves", "rack-0 (leaf-0 and leaf-1) and 1 more of 2", "units there use the spine")
    ]
    assert list(prerequisites(whole.plan)) == []


def test_a_node_that_is_not_used_splits_no_rack(with_line, found_of):
    """One that is cordoned may stand anywhere, or nowhere."""
    nodes = [{"name": f"n{index}", "rack": "r", "leaf": "l"} for index in range(3)]
    away = [{"name": "x", "cordoned": True}, {"name": "y", "rack": "r", "leaf": "m", "cordoned": True}]
    plan = found_of(with_line(8, f"  nodes: {json.dumps([*away, *nodes])}"))

    assert list(prerequisites(plan.plan)) == []


def test_too_few_usable_nodes_says_why(with_line, problems_of, found_of):
    """S701: which nodes would have done."""
    text = with_line(8, LISTED.replace("name: d1,", "name: d1, cordoned: true,").rstrip())
    with pytest.raises(InfeasibleError) as error:
        found_of(text)

    assert error.value.findings[0].message == (
        "cluster.nodes must have at least 3 usable nodes (units x nodes of a unit: prefill 1 x 1 + decode 1 x 2), "
        "but only 2 of 7 are usable (a2: cordoned, b1: tainted team=research:NoSchedule, b2: has h20, ...); "
        "units do not share nodes; "
        "nearest: cluster.nodes.1.cordoned false, or decode.ep_size 2"
    )


def test_a_unit_stays_under_one_leaf_where_one_has_room(with_line, found_of):
    """Four nodes under leaves of two: the decode unit takes a leaf of its own."""
    plan = found_of(with_line(8, "  nodes: 4\n  leaf_size: 2"))

    assert [(unit.nodes, unit.why) for unit in plan.units] == [
        (("node-0",), "in 1 leaf"),
        (("node-2", "node-3"), "in 1 leaf"),
    ]


def test_the_night_frees_whole_racks(with_line, found_of):
    """Units that are on all day stand together, so that the others' racks are free at night."""
    windows = "[{at: 08:00, prefill_units: 4, decode_units: 2}, {at: 20:00, prefill_units: 2, decode_units: 1}]"
    text = with_line(
        25, f"schedule: {{windows: {windows}}}\nexpert_load:", with_line(19, "", with_line(8, "  nodes: 8"))
    )
    plan = found_of(text.replace("  nodes: 8\n", "  nodes: 8\n  rack_size: 4\n"))
    night = set(plan.schedule.steps[1].units)
    racks = {node for unit in plan.units if unit.name in night for node in unit.nodes}

    assert racks == {"node-0", "node-1", "node-2", "node-3"}
    assert [(step.at, step.num_nodes, step.minutes) for step in plan.schedule.steps] == [
        ("08:00", 8, 720),
        ("20:00", 4, 720),
    ]


def test_a_previous_plan_is_kept_where_it_can_be(spec_file, with_line, tmp_path, capsys):
    """--previous: one unit more, and the others stay; a node that is gone moves only its unit."""
    before = tmp_path / "before.json"
    listed = with_line(8, "  nodes: [{name: node-0}, {name: node-4}, {name: node-2}]")
    assert main(["plan", str(spec_file(listed)), "-o", str(before)]) == 0
    assert json.loads(before.read_text())["units"][1]["nodes"] == ["node-4", "node-2"]
    capsys.readouterr()
    path = str(spec_file(with_line(8, "  nodes: 6")))
    main(["plan", path, "--previous", str(before), "--format", "json"])
    plan = json.loads(capsys.readouterr().out)

    assert [unit["nodes"] for unit in plan["units"]] == [["node-0"], ["node-4", "node-2"]]
    assert plan["units"][1]["why"] == "where the previous plan has it"


def test_a_node_that_is_gone_moves_one_node(with_line, spec_file):
    """The unit keeps its other nodes at their ranks, and says how many."""
    plan = run_passes(check_spec(spec_file(with_line(8, "  nodes: 6\n  rack_size: 6"), "moved.yaml")))
    decode = plan.units[1]
    listed = "".join(
        f"\n    - {{name: node-{i}, rack: rack-0, cordoned: {str(f'node-{i}' == decode.nodes[0]).lower()}}}"
        for i in range(6)
    )
    path = spec_file(with_line(8, f"  nodes:{listed}"), "cordoned.yaml")
    after = run_passes(check_spec(path), plan.plan)

    assert after.units[0].nodes == plan.units[0].nodes
    assert after.units[1].nodes[1] == decode.nodes[1] != after.units[1].nodes[0]
    assert after.units[1].why.endswith("; 1 of 2 nodes as before")
    assert after.placement.objectives[-1].name == "moves"
    assert after.placement.objectives[-1].value == after.placement.objectives[-1].bound == 1


@pytest.mark.parametrize(
    ("num_units", "num_nodes", "places", "value", "bound", "why"),
    [
        (3, 2, {"nodes": 6, "rack_size": 2}, 3, 3, "every value is at its bound"),
        (3, 2, {"nodes": 6, "leaf_size": 3}, 4, 3, "its steps found nothing better"),  # one unit is under two leaves
    ],
)
def test_a_value_at_its_bound_is_proven(num_units, num_nodes, places, value, bound, why):
    """A bound adds up nodes: what is above it may still be the best, and is not called proven."""
    layout = SimpleNamespace(
        phase="decode", num_units=num_units, nodes_per_unit=num_nodes, ep_size=2 * num_nodes, gpu="cpu"
    )
    cluster = ClusterSpec.model_validate({"gpu": "cpu", "gpus_per_node": 2} | places)
    placement = placed((cluster, [layout], None))
    first = placement.objectives[0]

    assert (first.value, first.bound, first.is_proven) == (value, bound, value == bound)
    assert placement.why == why


@pytest.mark.parametrize(("content", "rule_id"), [(None, "S905"), ("{}", "S906"), ("torn", "S906")])
def test_a_previous_plan_that_is_none_is_exit_2(content, rule_id, spec_file, tmp_path, capsys):
    """S905, S906: missing, or not a plan."""
    path = tmp_path / "previous.json"
    if content is not None:
        path.write_text(content)
    status = main(["plan", str(spec_file()), "--previous", str(path)])

    assert (status, rule_id in capsys.readouterr().err) == (2, True)


def test_a_unit_over_more_racks_than_calls_may_nest(with_line, found_of):
    """1,200 racks of one node each: as many as the unit needs, one after the other."""
    small = with_line(8, "  nodes: 1200\n  rack_size: 1\n  gpus_per_node: 1")
    text = small.replace("  gpus_per_node: 2\n", "").replace("  ep_size: 4\n  redundant_experts: 4", DECODE_OVER_RACKS)
    decode = next(unit for unit in found_of(text).units if unit.phase == "decode")

    assert len(set(decode.nodes)) == 1152
