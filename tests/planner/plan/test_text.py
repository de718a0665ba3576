"""A plan as text: what a reader of a design review needs to see, and how nodes are named."""

import json

import pytest

from planner.cli import main
from planner.plan.text import plan_text
from tests.planner.layout.test_memory import PAIR


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (["a", "b"], "a, b"),
        (["n-0", "n-1"], "n-0, n-1"),
        (["n-8", "n-9", "n-10", "n-12"], "n-8 to n-10, n-12"),
        (["n-36", "n-37", "n-38", "n-35", "n-34"], "n-36 to n-38, n-35, n-34"),
        (["n08", "n09", "n10"], "n08 to n10"),
        (["n8", "n09", "n10"], "n8, n09, n10"),
        (["a9", "b10", "b11", "b12"], "a9, b10 to b12"),
        ([f"n-{2 * index}" for index in range(11)], "n-0, n-2, n-4, n-6, n-8, n-10, n-12, n-14 and 3 more"),
    ],
)
def test_a_range_of_nodes_has_every_node_between(nodes, expected, spec_file, plan_of):
    """In the order of ranks; names that skip a number, go down or are written otherwise begin anew."""
    spec = {
        "version": 1,
        "name": "river",
        "model": {"config": "config.json"},
        "cluster": {"gpu": "cpu", "nodes": [{"name": name} for name in nodes], "gpus_per_node": 1},
        "mixed": {"ep_size": len(nodes), "redundant_experts": -32 % len(nodes), "precision": "fp32"},
    }
    text = plan_text(plan_of(json.dumps(spec, indent=1)))
    lines = text[text.index("nodes by rank") : text.index("expert map")].splitlines()[1:]

    assert " ".join(" ".join(lines).split()).endswith(f" {expected}")


def test_a_plan_names_what_it_counts_with(plan_of):
    """Bytes of KV a token, the bound of each map, what a step's luck adds, and a default as YAML writes it."""
    plan = plan_of(json.dumps(PAIR, indent=1))
    text = " ".join(plan_text(plan).split())

    assert "KV per GPU bytes/token tokens full-length requests prefill 70,272 366,720 " in text
    assert "max/mean bound in a step" in text
    assert "deterministic false" in text
    assert " prefill fp8 32 32,768 16,384 decode fp8 128 32,768 - " in text
    assert "1 of 1 unit " in text
    assert "Expert loads are drawn with alpha 1.01, seed 0" in text


def test_what_patches_change_is_said(spec_text, plan_of):
    """Each field with its value, in 80 columns: nobody reviews what nobody sees. A plan without any says nothing."""
    pod = "{leaderWorkerTemplate: {workerTemplate: {spec: {hostIPC: true, dnsPolicy: null}}}}"
    patches = f"  patches: [{{kind: LeaderWorkerSet, patch: {{spec: {pod}}}}}]\n"
    text = plan_text(plan_of(spec_text + patches))
    path = "spec.leaderWorkerTemplate.workerTemplate.spec"

    assert f"Patched by the spec:\n  - every LeaderWorkerSet: {path}.hostIPC" in text
    assert f"{path}.dnsPolicy null" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
    assert "Patched" not in plan_text(plan_of(spec_text))


def test_loads_of_a_file_are_told_instead_of_how_they_would_be_drawn(spec_text, plan_of):
    """Defaults that nothing reads are none."""
    drawn = spec_text[spec_text.index("expert_load:") : spec_text.index("gateway:")]
    plan = plan_of(spec_text.replace(drawn, "expert_load:\n  file: loads.json\n"))
    text = " ".join(plan_text(plan).split())

    assert "Expert loads are those of loads.json" in text
    assert [each.path for each in plan.decisions if each.path.startswith("expert_load")] == []


@pytest.mark.parametrize(("num_away", "counted"), [(4, "."), (5, " and 1 more node."), (6, " and 2 more nodes.")])
def test_nodes_that_are_not_used_fit_a_terminal(num_away, counted, with_line, plan_of):
    """Some by name and reason, the others counted, in 80 columns."""
    away = [f"{{name: n{index}, taints: [team=research:NoSchedule]}}" for index in range(num_away)]
    nodes = ", ".join([*away, "{name: a}", "{name: b}", "{name: c}"])
    text = plan_text(plan_of(with_line(8, f"  nodes: [{nodes}]")))

    assert max(map(len, text.splitlines())) <= 80
    assert f"n3 (tainted team=research:NoSchedule){counted}" in " ".join(text.split())


def test_warnings_stand_before_everything_that_is_planned(spec_text, plan_of, spec_file, capsys):
    """In 80 columns, and `validate` has a line of each with its place; a plan without any says nothing of them."""
    text = spec_text.replace("overlap: none", "overlap: five_stage", 1)
    planned = plan_text(plan_of(text))
    path = spec_file(text, "warned.yaml")
    status = main(["validate", str(path)])
    lines = capsys.readouterr().out.splitlines()

    assert max(map(len, planned.splitlines())) <= 80
    assert planned.index("Warnings:\n  - prefill.overlap (five_stage) is ") < planned.index("by default")
    assert (status, lines[0]) == (0, f"{path}: valid")
    assert lines[1].startswith(f"warning: {path}:13:12: prefill.overlap (five_stage) is meant for decode")
    assert "Warnings" not in plan_text(plan_of(spec_text))


def test_spares_are_named(with_line, plan_of):
    """As the nodes of units are; a plan without any says nothing of them."""
    text = plan_text(plan_of(with_line(8, "  nodes: 7\n  spares: [node-4, node-5, node-6]")))

    assert "  Spares for units that lose a node: node-4 to node-6.\n" in text
    assert "Spares" not in plan_text(plan_of(with_line(8, "  nodes: 7")))


def test_spares_are_among_the_nodes_that_are_paid(with_line, plan_of):
    """They are held all day, as their row says, and the last row counts them as its dollars do."""
    spec = with_line(8, "  nodes: 7\n  spares: [node-5, node-6]") + "cost: {usd_per_gpu_hour: 2.0}\n"
    bill = plan_text(plan_of(spec)).partition("US$ per day")[2].partition("\n\n")[0]
    mean_nodes = {name: float(nodes) for name, _, nodes, *_ in map(str.split, bill.splitlines()[1:])}

    assert mean_nodes["spares"] == 2
    assert mean_nodes["all"] == mean_nodes["prefill"] + mean_nodes["decode"] + mean_nodes["spares"]


def test_a_reason_of_several_decisions_is_said_once(spec_text, plan_of):
    """The rows below the first one refer to it."""
    day = 'schedule: {windows: [{at: "08:00", prefill_units: 1, decode_units: 1}]}\n'
    text = " ".join(plan_text(plan_of(spec_text.replace("  units: 1\n", "") + day)).split())

    assert text.count("the most that any window of the schedule has") == 1
    assert "decode.units 1 for the same reason" in text


@pytest.mark.parametrize(("night_units", "is_said"), [(0, True), (1, False)])
def test_a_schedule_is_not_taken_for_one_that_is_executed(night_units, is_said, plan_of):
    """A plan that would switch units says that nothing does in a cluster, and what plays its day."""
    day = {"at": "08:00", "prefill_units": 1, "decode_units": 1}
    night = {"at": "20:00", "prefill_units": night_units, "decode_units": night_units}
    plan = plan_of(json.dumps(PAIR | {"schedule": {"timezone": "UTC", "windows": [day, night]}}, indent=1))

    text = " ".join(plan_text(plan).split())

    assert ("nothing switches units in a cluster" in text) is is_said
    assert ("tidemill up --day plays the day on one machine." in text) is is_said
    assert plan.deployable.switches_units is is_said


@pytest.mark.parametrize(("gpu", "per_node", "reached"), [("h800", 8, 8), ("h800", 4, 4), ("gb200", 4, 72)])
def test_the_head_says_how_many_gpus_reach_each_other(gpu, per_node, reached, plan_of):
    """A domain of HGX ends with its node, however few GPUs that has; one of NVL72 does not."""
    plan = plan_of(json.dumps(PAIR | {"cluster": {"gpu": gpu, "nodes": 120, "gpus_per_node": per_node}}, indent=1))

    assert f"GB/s each way to the other {reached - 1}\n" in plan_text(plan)
