"""A plan as text: what a reader of a design review needs to see, and how nodes are named."""

import json
import re

import pytest

from planner.cli import main
from planner.compiler import run_passes
from planner.facts.quantities import gb
from planner.plan.loaded import read_plan
from planner.plan.relied_on import relied_on
from planner.plan.text import plan_text
from planner.search.decision import DEFAULT
from planner.spec.check import check_spec, with_values
from tests.planner.layout.test_memory import PAIR
from tests.planner.test_shipped_specs import SPECS


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
        ([f"n-{2 * index}" for index in range(11)], ", ".join(f"n-{2 * index}" for index in range(11))),
    ],
)
def test_a_range_of_nodes_has_every_node_between(nodes, expected, spec_file, found_of):
    """In the order of ranks; names that skip a number, go down or are written otherwise begin anew."""
    spec = {
        "version": 1,
        "name": "river",
        "model": {"config": "config.json"},
        "cluster": {"gpu": "cpu", "nodes": [{"name": name} for name in nodes], "gpus_per_node": 1},
        "mixed": {"ep_size": len(nodes), "redundant_experts": -32 % len(nodes), "precision": "fp32"},
    }
    text = plan_text(found_of(json.dumps(spec, indent=1)))
    lines = text[text.index("nodes by rank") : text.index("expert map")].splitlines()[1:]

    assert " ".join(" ".join(lines).split()).endswith(f" {expected}")


def test_a_plan_names_what_it_counts_with(found_of):
    """Bytes of KV a token, the bound of each map, what a step's luck adds, and how many defaults were taken."""
    plan = found_of(json.dumps(PAIR, indent=1))
    text = " ".join(plan_text(plan).split())

    assert "KV per GPU bytes/token tokens full-length requests prefill 70,272 366,720 " in text
    assert "max/mean bound in a step" in text
    assert re.search(r"Left at their defaults: [0-9]+ fields\.", text)
    assert " prefill fp8 32 32,768 16,384 decode fp8 128 32,768 - " in text
    assert "1 of 1 unit " in text
    assert "Expert loads are drawn with alpha 1.01, seed 0" in text


def test_what_the_overlay_changes_is_said(spec_text, found_of):
    """Each field is named, in 80 columns and without its value; a plan without an overlay says nothing."""
    objects = "[{kind: Service, patch: {spec: {type: NodePort}}}]"
    overlay = f"  overlay: {{unit_pod: {{spec: {{hostIPC: true, dnsPolicy: null}}}}, objects: {objects}}}\n"
    text = plan_text(found_of(spec_text + overlay))

    assert "Changed by the overlay:\n  - pods of units: spec.hostIPC\n  - pods of units: spec.dnsPolicy\n" in text
    assert "  - every Service: spec.type\n" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "overlay" not in plan_text(found_of(spec_text))


def test_loads_of_a_file_are_told_instead_of_how_they_would_be_drawn(spec_text, found_of):
    """Defaults that nothing reads are none."""
    drawn = spec_text[spec_text.index("expert_load:") : spec_text.index("gateway:")]
    plan = found_of(spec_text.replace(drawn, "expert_load:\n  file: loads.json\n"))
    text = " ".join(plan_text(plan).split())

    assert "Expert loads are those of loads.json" in text
    assert [each.path for each in plan.decisions if each.path.startswith("expert_load")] == []


def test_nodes_that_are_not_used_are_named_with_their_reason(with_line, found_of):
    """All of them, each reason once, in 80 columns."""
    away = [f"{{name: n{index}, taints: [team=research:NoSchedule]}}" for index in range(6)]
    away.append("{name: x, taints: [down=yes:NoExecute]}")
    nodes = ", ".join([*away, "{name: a}", "{name: b}", "{name: c}"])
    text = plan_text(found_of(with_line(8, f"  nodes: [{nodes}]")))

    assert max(map(len, text.splitlines())) <= 80
    assert "Not used: n0 to n5 (tainted team=research:NoSchedule); x (tainted down=yes:NoExecute)." in " ".join(
        text.split()
    )


def test_warnings_stand_before_everything_that_is_planned(spec_text, found_of, spec_file, capsys):
    """In 80 columns, and `validate` has a line of each with its place; a plan without any says nothing of them."""
    text = f"{spec_text}cost: {{usd_per_gpu_hour: 2.0, currency: {{code: EUR, per_usd: 0.1}}}}\n"
    planned = plan_text(found_of(text))
    path = spec_file(text, "warned.yaml")
    status = main(["validate", str(path)])
    lines = capsys.readouterr().out.splitlines()

    assert max(map(len, planned.splitlines())) <= 80
    assert planned.index("Warnings:\n  - cost.currency.per_usd (0.1) is ") < planned.index("phase    units")
    assert (status, lines[0]) == (0, f"{path}: valid")
    assert lines[1].startswith(
        f"warning: {path}:{len(text.splitlines())}:62: cost.currency.per_usd (0.1) is less than 0.25"
    )
    assert "Warnings" not in plan_text(found_of(spec_text))


def test_spares_are_named(with_line, found_of):
    """As the nodes of units are; a plan without any says nothing of them."""
    text = plan_text(found_of(with_line(8, "  nodes: 7\n  spares: [node-4, node-5, node-6]")))

    assert "  Spares for units that lose a node: node-4 to node-6.\n" in text
    assert "Spares" not in plan_text(found_of(with_line(8, "  nodes: 7")))


def test_spares_are_among_the_nodes_that_are_paid(with_line, found_of):
    """They are held all day, as their row says, and the last row counts them as its dollars do."""
    spec = with_line(8, "  nodes: 7\n  spares: [node-5, node-6]") + "cost: {usd_per_gpu_hour: 2.0}\n"
    bill = plan_text(found_of(spec)).partition("US$ per day")[2].partition("\n\n")[0]
    mean_nodes = {name: float(nodes) for name, _, nodes, *_ in map(str.split, bill.splitlines()[1:])}

    assert mean_nodes["spares"] == 2
    assert mean_nodes["all"] == mean_nodes["prefill"] + mean_nodes["decode"] + mean_nodes["spares"]


def test_a_reason_of_several_decisions_is_said_once(spec_text, found_of):
    """The rows below the first one refer to it."""
    day = 'schedule: {windows: [{at: "08:00", prefill_units: 1, decode_units: 1}]}\n'
    text = " ".join(plan_text(found_of(spec_text.replace("  units: 1\n", "") + day)).split())

    assert text.count("the most that any window of the schedule has") == 1
    assert "decode.units 1 for the same reason" in text


@pytest.mark.parametrize(("night_units", "is_said"), [(0, True), (1, False)])
def test_a_schedule_is_not_taken_for_one_that_is_executed(night_units, is_said, found_of):
    """A plan that would switch units says that nothing does in a cluster, and what plays its day."""
    day = {"at": "08:00", "prefill_units": 1, "decode_units": 1}
    night = {"at": "20:00", "prefill_units": night_units, "decode_units": night_units}
    plan = found_of(json.dumps(PAIR | {"schedule": {"timezone": "UTC", "windows": [day, night]}}, indent=1))

    text = " ".join(plan_text(plan).split())

    assert ("nothing switches units in a cluster" in text) is is_said
    assert ("tidemill up --day plays the day on one machine." in text) is is_said
    assert plan.plan.switches_units is is_said


@pytest.mark.parametrize(("gpu", "per_node", "reached"), [("h800", 8, 8), ("h800", 4, 4), ("gb200", 4, 72)])
def test_the_head_says_how_many_gpus_reach_each_other(gpu, per_node, reached, found_of):
    """A domain of HGX ends with its node, however few GPUs that has; one of NVL72 does not."""
    plan = found_of(json.dumps(PAIR | {"cluster": {"gpu": gpu, "nodes": 120, "gpus_per_node": per_node}}, indent=1))

    assert f"GB/s each way to the other {reached - 1}\n" in plan_text(plan)


def test_a_plan_spells_out_every_unit():
    """Whoever is called at night finds each of 29 prefill and 9 decode units with its nodes."""
    plan = run_passes(check_spec(SPECS / "deepseek-h800.yaml"))
    lines = plan_text(plan).splitlines()

    assert all(any(line.split()[:1] == [unit.name] for line in lines) for unit in plan.units)
    assert max(map(len, lines)) <= 80


def test_warnings_carry_the_ids_of_their_rules(found_of):
    """As `validate` prints them: docs/rules.md is searched by id."""
    text = " ".join(plan_text(found_of(json.dumps(PAIR, indent=1))).split())

    assert "[W111]" in text[text.index("Warnings:") : text.index("phase units")]


def test_what_a_plan_relies_on_is_told(found_of):
    """Nobody here has seen the cluster: names of nodes, folders, weights and images are a reader's to compare."""
    model = {"catalog": "deepseek-r1", "checkpoint": "/models/r1"}
    kubernetes = {"image": "mine:1", "volumes": [{"host_path": "/mnt/models", "mount_path": "/models"}]}
    plan = found_of(json.dumps(PAIR | {"model": model, "kubernetes": kubernetes}, indent=1))
    theirs = found_of(json.dumps(PAIR | {"model": model, "engine": "sglang"}, indent=1))
    alone = found_of(json.dumps(PAIR, indent=1))

    told = ["names of nodes", "weights", "folder on nodes"]
    assert [what for what, _ in relied_on(plan)] == told
    assert dict(relied_on(theirs))["image"].startswith("lmsysorg/sglang:v0.5.23: ")
    assert list(relied_on(alone)) == [], "nothing is deployed without a checkpoint"


def test_only_defaults_that_figures_rest_on_are_listed(found_of):
    """The others are counted in one line, and the plan's JSON has them all."""
    day = {"at": "08:00", "prefill_units": 1, "decode_units": 1}
    plan = found_of(json.dumps(PAIR | {"schedule": {"timezone": "UTC", "windows": [day]}}, indent=1))
    text = " ".join(plan_text(plan).split())
    paths = {each.path for each in plan.decisions if each.why == DEFAULT}

    assert {"kubernetes.host_network", "schedule.start.pods"} <= paths
    assert "schedule.start pods 30s, weights_from storage" in text
    assert "host_network false" not in text
    assert re.search(r"Left at their defaults: ([0-9]+) more fields", text)[1] == str(
        len([each for each in paths if not each.startswith("schedule.start.")])
    )


def test_rates_of_a_gpu_and_of_a_node_have_columns_of_their_own():
    """A node's GPUs are those of its unit: each column of a node is eight times that of a GPU."""
    plan = run_passes(check_spec(SPECS / "h800-one-pair.yaml"))
    text = plan_text(plan)
    head, prefill, decode = text[text.index("  tokens/s  per GPU") :].splitlines()[:3]
    rates = [float(each.replace(",", "")) for line in (prefill, decode) for each in line.split()[1:]]

    assert head.split("  ")[1:] == ["tokens/s", "per GPU", "GPU low", "GPU high", "per node", "node low", "node high"]
    assert [rates[3:6], rates[9:]] == [[pytest.approx(8 * each, abs=4) for each in rates[at : at + 3]] for at in (0, 6)]
    assert "at utilisation 0.539 (4,024 per GPU; at full use 7,465)" in " ".join(text.split())


@pytest.mark.parametrize(("profile", "is_flat"), [([1] * 24, True), ([1] * 23 + [2], False)])
def test_flat_traffic_is_told_once(profile, is_flat):
    """A day without a quietest hour has none in the text either; nor has a cache two rates."""
    traffic = {"input_tokens": 1e10, "output_tokens": 1e9, "cache_hit_rate": 0.563, "profile": profile}
    plan = run_passes(with_values(check_spec(SPECS / "h800-one-pair.yaml"), {"traffic": traffic}))
    text = " ".join(plan_text(plan).split())

    assert ("At any other time it is the same." in text) is is_flat
    assert ("In the quietest hour" in text) is not is_flat
    assert ("GB/s on average and" in text) is not is_flat
    assert "The spec's own hits, 56.3% of prompt tokens, save" in text


def test_experts_that_move_are_told_in_bytes_seconds_and_pods(tmp_path):
    """A new map restarts each unit of its phase, which reads all its weights again."""
    path = tmp_path / "before.json"
    path.write_text(json.dumps(run_passes(check_spec(SPECS / "h800-one-pair.yaml")).plan.as_json()))
    spec = with_values(check_spec(SPECS / "h800-one-pair.yaml"), {"expert_load.alpha": 1.05})
    plan = run_passes(spec, read_plan(path))
    text = " ".join(plan_text(plan).split())
    moved = plan.plan.as_json()["balance"]["decode"]["moves"]

    assert (
        f"decode: {moved['moved_slots']} of 16,704 slots differ from the previous plan's, {gb(moved['bytes'])}" in text
    )
    assert "61.0 GB a node: 30 s at kubernetes.load_rate. The pods are named at the end." in text
