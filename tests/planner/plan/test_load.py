"""A plan's JSON read back: what is refused, what its digest covers, and that it deploys what was planned."""

import contextlib
import copy
import hashlib
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from planner.cli import main
from planner.facts.checkpoint_manifest import MANIFEST
from planner.facts.digest import digest_of, pretty_json
from planner.facts.strict_json import NotStrict, parse_json
from planner.plan.launch import launch_digest, restore_map, unit_digest
from planner.plan.load import load_plan, read_plan
from planner.plan.plan import Plan, document_digest, plan_digest
from planner.plan.user_input import read_input
from planner.problems.errors import CallError, SpecError
from planner.spec.resolved import ResolvedSpec
from planner.spec.schema import Spec
from tests.docs.plan_schema import schema_of_plans
from tests.planner.test_shipped_specs import SPECS

SCHEDULE = """\
schedule:
  windows: [{at: "08:00", prefill_units: 1, decode_units: 1}, {at: "20:00", prefill_units: 0, decode_units: 0}]
  other_days: [{days: [sunday], windows: [{at: "00:00", prefill_units: 0, decode_units: 0}]}]
"""
DECODE = "river-decode-0.launch.json"
PREFILL = "river-prefill-0.launch.json"
GATEWAY = "gateway.launch.json"

# What runs. A path is a leaf's keys, joined by a space since file names have dots.
DEPLOYED = re.compile(
    r"name|runnable|phases .*|schedule .*|launch_documents .*|spec (kubernetes|gateway) .*"
    r"|units \d+ (name|phase|nodes \d+|ranks|unit_digest|expert_map)|expert_maps \S+ physical_to_logical .*"
    r"|memory \w+ weights_bytes"  # decides how long a pod may take to start
)
SAMPLE = re.compile(r".* physical_to_logical (\d+ [1-9]\d*|[1-9]\d* \d+)")  # one slot of one layer stands for all


@pytest.fixture(scope="module")
def document(plan_of, spec_text):
    """The JSON of a plan that runs, with a schedule."""
    return json.loads(pretty_json(plan_of(spec_text.replace("  units: 1\n", "") + SCHEDULE).as_json()))


@pytest.fixture(scope="module")
def estimated(plan_of, spec_text):
    """The JSON of a plan with every section: memory and traffic of GPUs, a warning, and why it does not run."""
    text = spec_text.replace("  units: 1\n", "").replace("gpu: cpu", "gpu: mi300x") + SCHEDULE
    text = text.replace("overlap: none", "overlap: five_stage", 1)
    return json.loads(pretty_json(plan_of(text.replace("precision: fp32", "precision: bf16")).as_json()))


def loaded(document, path):
    """The plan that comes of these data."""
    return load_plan(pretty_json(document).encode(), path)


def refusal(document, path):
    """The one problem of these data; None where there is none."""
    try:
        loaded(document, path)
    except CallError as error:
        (problem,) = error.findings
        return problem
    return None


def leaves(value, keys=()):
    """Keys of every value that holds no other."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [leaf for key, each in inner for leaf in leaves(each, (*keys, key))]
    return found or ([] if isinstance(value, dict | list) else [keys])


def edited(document, keys, change):
    """A copy with another value there."""
    copied = copy.deepcopy(document)
    holder = copied
    for key in keys[:-1]:
        holder = holder[key]
    holder[keys[-1]] = change(holder.get(keys[-1]) if isinstance(holder, dict) else holder[keys[-1]])
    return copied


def other(value):
    """Another value of the same kind."""
    if isinstance(value, str) and value.startswith("sha256:"):
        return f"{value[:-1]}{int(value[-1], 16) ^ 1:x}"
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return re.sub(r"^\d+", lambda found: str(int(found[0]) + 1), value) if value[:1].isdigit() else f"{value}x"
    return value + 1 if value is not None else 1


def resealed(document):
    """A copy with the digests of what it holds now, as somebody would have to compute them."""
    sealed = copy.deepcopy(document)
    maps = {sha256: each["physical_to_logical"] for sha256, each in sealed["expert_maps"].items()}
    for each in sealed["launch_documents"].values():
        with contextlib.suppress(KeyError):  # a map that is not there
            if each["kind"] == "unit":
                each["unit_digest"] = unit_digest(restore_map(each, maps))
            each["launch_digest"] = launch_digest(restore_map(each, maps))
    for unit in sealed["units"]:
        launch = sealed["launch_documents"].get(f"{unit['name']}.launch.json", {})
        unit["unit_digest"] = launch.get("unit_digest", unit["unit_digest"])
    spec = Spec.model_validate(sealed["spec"])
    sealed["spec_digest"] = digest_of(spec.model_dump(mode="json"))
    sealed["digest"] = plan_digest(sealed, spec)
    return sealed | {"document_digest": document_digest(sealed)}


def every_leaf(document):
    """Keys of leaves, one slot for all of a map."""
    return [keys for keys in leaves(document) if not SAMPLE.fullmatch(" ".join(map(str, keys)))]


def test_the_digest_covers_what_is_deployed_and_nothing_else(estimated):
    """Each leaf by itself: a better estimate is the same plan, and whatever runs differently is another."""
    wrong = []
    for keys in every_leaf(estimated):
        path = " ".join(map(str, keys))
        if path.startswith("spec ") and not DEPLOYED.fullmatch(path):
            continue  # such a spec may be wrong; its edit is refused by document_digest
        after = edited(estimated, keys, other)
        try:
            spec = Spec.model_validate(after["spec"])
        except ValidationError:
            continue  # nobody reads such a plan
        is_another = plan_digest(after, spec) != estimated["digest"]
        if is_another != bool(DEPLOYED.fullmatch(path)):
            wrong.append(path)

    assert wrong == []


def test_a_plan_of_an_earlier_version_names_the_field_that_is_gone(document, tmp_path):
    """Its copy of the spec has every field of that version, written or not."""
    kubernetes = document["spec"]["kubernetes"] | {"patches": []}

    assert refusal(document | {"spec": document["spec"] | {"kubernetes": kubernetes}}, tmp_path).reason == (
        "spec.kubernetes.patches is a key that this version of tidemill does not have"
    )


@pytest.mark.slow
def test_whatever_is_edited_is_refused(estimated, tmp_path):
    """Each leaf by itself, estimates too: they change nothing that runs, but a reviewer decides by them."""
    refusals = {keys: refusal(edited(estimated, keys, other), tmp_path / "plan.json") for keys in every_leaf(estimated)}

    assert [keys for keys, problem in refusals.items() if problem is None] == []


@pytest.fixture(scope="module")
def of_the_catalog(plan_of, spec_text):
    """The JSON of a plan whose model is the catalog's, with the digests that its user says."""
    model = f"  catalog: deepseek-v2-lite\n  config_digest: sha256:{'1' * 64}\n  weights_digest: sha256:{'2' * 64}"
    text = spec_text.replace("  config: config.json", model).replace("bundled:demo", "/models/v2-lite")
    text = text.replace("redundant_experts: 4", "redundant_experts: 8")
    return json.loads(pretty_json(plan_of(text).as_json()))


def test_digests_that_the_spec_says_reach_the_ranks(of_the_catalog, tmp_path):
    """As written; another one in a launch document is refused."""
    checkpoint = loaded(of_the_catalog, tmp_path).launch_documents[DECODE]["checkpoint"]
    keys = ("launch_documents", GATEWAY, "checkpoint", "weights_digest")

    assert checkpoint == {
        "uri": "/models/v2-lite",
        "config_digest": f"sha256:{'1' * 64}",
        "weights_digest": f"sha256:{'2' * 64}",
    }
    assert refusal(resealed(edited(of_the_catalog, keys, lambda _: None)), tmp_path).rule.startswith("S908")


@pytest.mark.parametrize("keys", [("memory", "prefill", "kv_tokens"), ("failures", "decode", "node", "units")])
def test_an_edited_estimate_is_told_from_an_edit_of_what_runs(estimated, tmp_path, keys):
    """S909: the digest of the whole document does not fit, and that of what is deployed does."""
    problem = refusal(edited(estimated, keys, other), tmp_path / "plan.json")

    assert (problem.rule[:4], problem.path) == ("S909", "document_digest")


def test_an_edited_plan_says_so(document, tmp_path):
    """S909: the message has four parts, and names the digest that does not fit."""
    problem = refusal(edited(document, ("units", 0, "nodes", 0), lambda _: "node-2"), tmp_path / "plan.json")

    assert problem.rule.startswith("S909")
    assert re.fullmatch(
        r"digest \(sha256:[0-9a-f]{50}\.\.\.\) must match the digest of the content \(sha256:[0-9a-f]{12}\.\.\.\); "
        "the plan was edited after tidemill plan wrote it; change the spec and plan it again",
        problem.message,
    )


OF_DECODE = ("launch_documents", DECODE)
DIGESTS = [
    (("launch_documents", GATEWAY, "max_queued_requests"), "S908"),
    (("launch_documents", GATEWAY, "launch_digest"), "S908"),
    ((*OF_DECODE, "limits", "max_requests"), "S908"),
    ((*OF_DECODE, "launch_digest"), "S908"),
    ((*OF_DECODE, "kv_cache", "bytes_per_token"), "S908"),
]


@pytest.mark.parametrize(("keys", "rule"), DIGESTS, ids=[" ".join(keys) for keys, _ in DIGESTS])
def test_each_digest_is_computed_again(document, keys, rule, tmp_path):
    """Each digest is checked: one that was sealed anew agrees with its content, but not with the rest of the plan."""
    after = edited(document, keys, other)
    after["digest"] = plan_digest(after, Spec.model_validate(after["spec"]))
    problem = refusal(after | {"document_digest": document_digest(after)}, tmp_path / "plan.json")

    assert problem.rule[:4] == rule
    assert problem.path.startswith(".".join(keys[:2]))


def test_a_spec_that_has_gained_fields_since_is_read(document, tmp_path):
    """A version before had fewer, so its `spec_digest` is another; what the plan deploys is the same."""
    before = document | {"spec_digest": f"sha256:{'0' * 64}"}
    plan = loaded(before | {"document_digest": document_digest(before)}, tmp_path / "plan.json")

    assert plan.digest == document["digest"]


def test_a_unit_digest_is_computed_again(document, tmp_path):
    """S908: a unit whose document is sealed as a file, and not for its ranks."""
    after = edited(document, ("units", 1, "unit_digest"), other)
    launch = after["launch_documents"][DECODE] = document["launch_documents"][DECODE] | {
        "unit_digest": after["units"][1]["unit_digest"]
    }
    maps = {sha256: each["physical_to_logical"] for sha256, each in after["expert_maps"].items()}
    launch["launch_digest"] = launch_digest(restore_map(launch, maps))
    after["digest"] = plan_digest(after, Spec.model_validate(after["spec"]))
    problem = refusal(after | {"document_digest": document_digest(after)}, tmp_path / "plan.json")

    assert (problem.rule[:4], problem.path) == ("S908", f"launch_documents.{DECODE}.launch_digest")


def test_the_schema_takes_what_is_written(document, estimated):
    """And not what somebody misspelt."""
    validator = Draft202012Validator(schema_of_plans())

    assert [list(validator.iter_errors(each)) for each in (document, estimated)] == [[], []]
    assert list(validator.iter_errors(edited(document, ("memory",), lambda _: {"decode": {"kv_token": 1}})))


def test_a_key_of_no_version_is_refused(document, tmp_path):
    """S906: whoever sealed it may read something into it; inside launch documents and dataclasses too."""
    places = [(), ("phases", "decode"), ("units", 0), ("schedule", "transitions", 0), ("decisions", 0), ("model",)]
    for keys in places:
        added = edited(document, keys, lambda each: each | {"extra": 1}) if keys else document | {"extra": 1}
        problem = refusal(resealed(added), tmp_path / "plan.json")

        assert problem.rule[:4] == "S906", keys
        assert "extra" in problem.reason, keys


def test_a_list_is_refused_at_its_first_wrong_entry(document):
    """Millions of them took minutes to be told apart, and one is told."""
    with pytest.raises(ValidationError) as refused:
        Plan.model_validate_json(json.dumps(document | {"units": [[]] * 1000}))

    assert [each["loc"] for each in refused.value.errors() if len(each["loc"]) > 1] == [("units", 0)]


@pytest.mark.parametrize(("section", "most"), [("demand", 1440), ("decisions", 1000)])
def test_a_list_is_no_longer_than_a_plan_can_have_it(estimated, section, most, tmp_path):
    """S906 at once: a page of 20,000 stretches of a day took over a minute."""
    rates = {f"{each}_tokens_per_s": 1.0 for each in ("asked", "served", "most")}
    hour = {"at": "00:00", "minutes": 1} | rates
    peak = {"at": "00:00", "highest_load": 1.0, "lowest_load": 1.0, "hours_beyond": 0.0} | rates
    entry = hour if section == "demand" else estimated[section][0]

    def problem_with(length):
        longer = [entry] * length
        found = {"decode": peak | {"stretches": longer}} if section == "demand" else longer
        return refusal(resealed(estimated | {section: found}), tmp_path / "plan.json")

    assert problem_with(most + 1).rule.startswith("S906")
    assert problem_with(most + 1).reason.endswith(
        f"{'stretches' if section == 'demand' else section} is not that short"
    )
    assert "short" not in str(problem_with(most))


@pytest.mark.parametrize(("text", "reason"), [(b"[],", "lists and objects"), (b"1,", "values")])
def test_a_document_of_too_many_parts_is_not_parsed(text, reason):
    """They take a hundred times more memory than their bytes."""
    with pytest.raises(NotStrict, match=reason):
        parse_json(b"[" + text * 2**23 + b"0]")


def test_a_map_is_known_by_its_digest(document, tmp_path):
    """S909: another map under the same name."""
    (sha256, _) = next(iter(document["expert_maps"].items()))
    after = edited(document, ("expert_maps", sha256, "physical_to_logical", 0, 0), lambda value: value + 1)
    problem = refusal(resealed(after), tmp_path / "plan.json")

    assert (problem.rule[:4], problem.path) == ("S909", f"expert_maps.{sha256}")


def without(file):
    """A change: the launch document of that name is gone."""
    return lambda documents: {name: each for name, each in documents.items() if name != file}


def nodes_with(**odd):
    """Five nodes of a cluster; the one in the middle, which the decode unit has, is odd."""
    return [{"name": f"node-{number}"} | (odd if number == 2 else {}) for number in range(5)]


WEIGHTS = dict.fromkeys(["attention", "dense", "shared", "gates", "embedding", "routed"], 1)
BYTES = ("activation_bytes", "buffer_bytes", "reserve_bytes", "cuda_graph_bytes", "full_requests")
COUNTS = ("weights_bytes", "kv_bytes_per_token", "kv_tokens", "gpu_bytes")
MEMORY = {"weights": WEIGHTS} | dict.fromkeys([*BYTES, *COUNTS], 1)
FEWER_EXPERTS = {"num_logical_experts": 28, "num_physical_experts": 32, "slots_per_gpu": 8, "routed_per_gpu": 8}
OF_SPEC = ("ep_size", "attention_tp", "dp_size", "nodes_per_unit", "slots_per_gpu", "routed_per_gpu")
MAP_OF_DECODE = f"launch_documents.{DECODE}.expert_map.sha256"
REFERENCES = [
    (("name",), lambda _: "brook", "name"),
    (("runnable",), lambda _: False, "runnable"),
    (("why_not",), lambda _: ["it is late"], "why_not"),
    (("launch_documents",), without(GATEWAY), f"launch_documents.{GATEWAY}"),
    (("launch_documents",), without(DECODE), f"launch_documents.{DECODE}"),
    (("launch_documents",), lambda each: each | {"../x": each[GATEWAY]}, "launch_documents.../x"),
    (("launch_documents",), lambda each: each | {GATEWAY: each[DECODE]}, f"launch_documents.{GATEWAY}.deterministic"),
    (("launch_documents",), lambda each: each | {DECODE: each[GATEWAY]}, f"launch_documents.{DECODE}.deterministic"),
    (
        ("launch_documents",),
        lambda each: each | {DECODE: each[PREFILL]},
        f"launch_documents.{DECODE}.expert_map.sha256",
    ),
    (("launch_documents", DECODE, "phase"), lambda _: "prefill", f"launch_documents.{DECODE}.phase"),
    (("launch_documents", DECODE, "ranks"), lambda ranks: ranks[:3], f"launch_documents.{DECODE}.ranks"),
    (("launch_documents", DECODE, "ranks", 0, "place"), lambda _: 1, f"launch_documents.{DECODE}.ranks.0.place"),
    (("launch_documents", DECODE, "places", 0), lambda _: "node-0", f"launch_documents.{DECODE}.places.0"),
    (("launch_documents", DECODE, "spares"), lambda _: ["node-0"], f"launch_documents.{DECODE}.spares"),
    (("launch_documents", DECODE, "version"), lambda _: 1, f"launch_documents.{DECODE}.version"),
    (("launch_documents", DECODE, "surprise"), lambda _: 1, f"launch_documents.{DECODE}.surprise"),
    (("launch_documents", DECODE, "deterministic"), lambda _: 0, f"launch_documents.{DECODE}.deterministic"),
    (("launch_documents", DECODE, "kv_digest"), lambda _: "sha256:" + "0" * 64, f"launch_documents.{DECODE}.kv_digest"),
    (("launch_documents", DECODE, "ports", "kv"), lambda _: 0, f"launch_documents.{DECODE}.ports.kv"),
    (("launch_documents", GATEWAY, "ports", "http"), lambda _: 8001, f"launch_documents.{GATEWAY}.ports.http"),
    (("launch_documents", GATEWAY, "model", "name"), lambda _: "gpt", f"launch_documents.{GATEWAY}.model.name"),
    (("launch_documents", GATEWAY, "checkpoint"), lambda _: None, f"launch_documents.{GATEWAY}.checkpoint"),
    (("launch_documents", GATEWAY, "checkpoint", "uri"), lambda _: "/x", f"launch_documents.{GATEWAY}.checkpoint.uri"),
    (("inputs",), lambda _: {}, f"launch_documents.{GATEWAY}.checkpoint.config_digest"),
    (
        ("inputs",),
        lambda each: each | {MANIFEST: "sha256:" + "0" * 64},
        f"launch_documents.{GATEWAY}.checkpoint.weights_digest",
    ),
    (("phases", "decode", "num_logical_experts"), lambda _: 31, "phases.decode.num_logical_experts"),
    (("phases", "decode", "num_logical_experts"), lambda _: 10**18, "phases.decode.num_logical_experts"),
    (("phases", "decode", "num_physical_experts"), lambda _: 32, "phases.decode.num_physical_experts"),
    (("phases", "decode"), lambda each: each | FEWER_EXPERTS, "phases.decode.num_logical_experts"),
    *((("phases", "decode", key), lambda each: each + 1, f"phases.decode.{key}") for key in OF_SPEC),
    (("phases", "decode", "gpu"), lambda _: "h800", "phases.decode.gpu"),
    (("phases",), lambda phases: {"prefill": phases["prefill"]}, "phases"),
    (("memory",), lambda _: {"mixed": MEMORY}, "memory"),
    (("units",), lambda units: units[:1], "units"),
    (("spec", "decode", "ep_size"), lambda _: "auto", "spec.decode.ep_size"),
    (("spec", "decode", "redundant_experts"), lambda _: "auto", "spec.decode.redundant_experts"),
    (("units", 1, "nodes"), lambda nodes: nodes[:1], "units.1.nodes"),
    (("spec", "cluster", "nodes"), lambda _: nodes_with(cordoned=True), "units.1.nodes"),
    (("spec", "cluster", "nodes"), lambda _: nodes_with(gpu="h800"), "units.1.nodes"),
    (("spec", "cluster", "nodes"), lambda _: nodes_with(taints=["gone:NoSchedule"]), "units.1.nodes"),
    (("units", 1, "nodes"), lambda _: ["node-0", "node-1"], "units.1.nodes"),
    (("units", 1, "nodes"), lambda _: ["node-1", "node-1"], "units.1.nodes"),
    (
        ("launch_documents", DECODE, "expert_map", "sha256"),
        lambda _: "sha256:" + "0" * 64,
        f"launch_documents.{DECODE}.expert_map.sha256",
    ),
    (("units", 1, "expert_map"), lambda _: "sha256:" + "0" * 64, "units.1.expert_map"),
    (("units", 1, "nodes"), lambda _: ["node-1", "node-9"], "units.1.nodes"),
    (("units", 1, "nodes"), lambda nodes: nodes[::-1], f"launch_documents.{DECODE}.places.0"),
    (("units", 1, "ranks"), lambda _: 10**18, "units.1.ranks"),
    (("units", 1, "phase"), lambda _: "mixed", "units"),
    (("schedule", "steps", 0, "units"), lambda _: ["nobody"], "schedule.steps.0.units"),
    (("schedule", "steps", 0, "units"), lambda _: [], "schedule.steps.0.units"),
    (("schedule", "steps", 0, "at"), lambda _: "09:00", "schedule.steps.0.at"),
    (("schedule", "peak_nodes"), lambda nodes: nodes + 1, "schedule.peak_nodes"),
    (("schedule", "other_days"), lambda _: [], "schedule.other_days"),
    (("schedule", "other_days", 0, "days"), lambda _: ["saturday"], "schedule.other_days.0.days.0"),
    (("schedule", "other_days", 0, "steps", 0, "units"), lambda _: ["nobody"], "schedule.other_days.0.steps.0.units"),
    (("spec", "schedule", "windows"), lambda _: "auto", "spec.schedule.windows"),
    (("spec", "schedule", "windows", 0, "at"), lambda _: "09:00", "schedule.mean_nodes"),
]


@pytest.mark.parametrize(("keys", "change", "where"), REFERENCES)
def test_parts_that_refer_to_nothing_are_refused(document, keys, change, where, tmp_path):
    """S908: even where every digest has been computed again."""
    problem = refusal(resealed(edited(document, keys, change)), tmp_path / "plan.json")

    assert (problem.rule[:4], problem.path) == ("S908", where)
    assert len(problem.message.split("; ")) == 3


@pytest.mark.slow
def test_nothing_that_ranks_are_told_can_be_changed(document, tmp_path):
    """Each value of each launch document by itself, with every digest computed again."""
    keys = [
        each
        for each in every_leaf(document)
        if each[0] == "launch_documents" and each[-1] not in ("launch_digest", "unit_digest")  # these are computed
    ]
    refusals = {each: refusal(resealed(edited(document, each, other)), tmp_path / "plan.json") for each in keys}

    assert len(keys) > 60
    assert [each for each, problem in refusals.items() if problem is None] == []


def with_map_of(document, change):
    """A copy whose decode unit has another map, named by its own digest wherever it is named."""
    old = document["units"][1]["expert_map"]
    rows = change(copy.deepcopy(document["expert_maps"][old]["physical_to_logical"]))
    text = json.dumps(edited(document, ("expert_maps", old, "physical_to_logical"), lambda _: rows))
    return json.loads(text.replace(old, digest_of(rows)))


MAPS = {
    "an expert that is nowhere": lambda rows: [[0] * len(row) for row in rows],
    "an expert that does not exist": lambda rows: [[32, *row[1:]] for row in rows],
    "a slot too many": lambda rows: [[*row, 0] for row in rows],
    "a layer with fewer slots": lambda rows: [rows[0][:32], *rows[1:]],
    "no layers": lambda rows: [],
}


@pytest.mark.parametrize("change", MAPS.values(), ids=MAPS)
def test_a_map_that_does_not_fit_the_phase_is_refused(document, change, tmp_path):
    """S908: with any digest, a map must give each slot of the phase an expert of the model, and use all experts."""
    problem = refusal(resealed(with_map_of(document, change)), tmp_path / "plan.json")

    assert (problem.rule[:4], problem.path) == ("S908", "units.1.expert_map")


def test_another_map_of_the_phase_is_another_plan(document, tmp_path):
    """One that moves experts around is carried out as it stands: who sealed it has chosen it."""
    other_map = with_map_of(document, lambda rows: [row[::-1] for row in rows])

    assert loaded(resealed(other_map), tmp_path / "plan.json").digest != document["digest"]


def test_a_name_that_would_leave_the_folder_is_refused(document, tmp_path):
    """A spec inside a plan keeps the rules of specs: units' names become files."""
    problem = refusal(resealed(json.loads(json.dumps(document).replace("river", "../river"))), tmp_path / "plan.json")

    assert (problem.rule[:4], problem.path) == ("S209", "spec.name")


def test_a_loaded_plan_deploys_what_was_planned(spec_file, tmp_path):
    """Rendered from the spec, from its plan, and from that again: the same bytes in three folders."""
    plan = tmp_path / "plan.yaml"  # whatever it is called
    assert main(["plan", str(spec_file()), "-o", str(plan)]) == 0
    for folder, path in {"a": spec_file(), "b": plan, "c": plan}.items():
        assert main(["render", str(path), "-o", str(tmp_path / folder)]) == 0
    first, second, third = (_files(tmp_path / each) for each in ("a", "b", "c"))

    assert first == second == third


def test_a_loaded_plan_has_the_day_that_was_planned(plan_of, spec_text, tmp_path):
    """Units, times, and what ways in and out take: whoever follows it does the same with either."""
    plan = plan_of(spec_text.replace("  units: 1\n", "") + SCHEDULE)

    assert plan.timetable is not None
    assert loaded(plan.as_json(), tmp_path / "plan.json").timetable == plan.timetable


def test_render_stays_near_the_previous_plan(spec_file, spec_text, tmp_path):
    """With one more prefill unit, the manifests of the units that run are the same files."""
    text = spec_text.replace("  nodes: 3\n", "  nodes: 4\n")
    before, after = (
        spec_file(text, "before.yaml"),
        spec_file(text.replace("prefill:\n", "prefill:\n  units: 2\n"), "after.yaml"),
    )
    main(["plan", str(before), "-o", str(tmp_path / "before.json")])
    main(["render", str(before), "-o", str(tmp_path / "a")])
    assert main(["render", str(after), "--previous", str(tmp_path / "before.json"), "-o", str(tmp_path / "b")]) == 0
    old, new = _files(tmp_path / "a"), _files(tmp_path / "b")
    changed = {name for name, content in new.items() if old.get(name) != content}

    assert {name for name in changed if "prefill-1" not in name} == {"kustomization.yaml", "plan/plan.yaml"}


def _files(folder):
    """File name -> content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_plan_is_not_planned_again(document, tmp_path, capsys):
    """S911: a previous plan beside a plan would have no effect."""
    (tmp_path / "plan.json").write_text(pretty_json(document))
    words = ["render", str(tmp_path / "plan.json"), "--previous", str(tmp_path / "plan.json")]
    status = main([*words, "-o", str(tmp_path / "out"), "--format", "json"])
    (error,) = json.loads(capsys.readouterr().out)["errors"]

    assert (status, error["rule"][:4], error["path"]) == (2, "S911", "--previous")


def test_a_plan_that_cannot_run_is_refused_with_its_reasons(estimated, tmp_path, capsys):
    """Exit 3, the same refusals as for its spec, and no folder."""
    (tmp_path / "plan.json").write_text(pretty_json(estimated))
    status = main(["render", str(tmp_path / "plan.json"), "-o", str(tmp_path / "out"), "--format", "json"])
    errors = json.loads(capsys.readouterr().out)["errors"]

    assert status == 3
    assert [error["message"] for error in errors] == estimated["why_not"]
    assert [error["rule"] for error in errors] == [each["rule"] for each in estimated["refusals"]]
    assert not (tmp_path / "out").exists()


def test_a_map_is_written_once(document):
    """Launch documents name it by its digest; each of two phases has its own here."""
    rows = [keys for keys in leaves(document) if "physical_to_logical" in keys]

    assert {keys[0] for keys in rows} == {"expert_maps"}
    assert len(document["expert_maps"]) == 2


def test_a_spec_written_in_json_is_a_spec(spec_folder, document):
    """What a file is says its content; JSON alone does not make it a plan."""
    path = spec_folder / "spec_in.json"
    path.write_text(json.dumps(document["spec"]))
    (spec_folder / "plan_in.yaml").write_text(pretty_json(document))

    assert isinstance(read_input(path), ResolvedSpec)
    assert isinstance(read_input(spec_folder / "plan_in.yaml"), Plan)


def test_the_spec_in_a_plan_plans_to_the_same_plan(spec_folder, document, capsys):
    """Defaults filled in and numbers for `auto` are what was planned; another file of it, the same digest."""
    (spec_folder / "again.json").write_text(json.dumps(document["spec"]))
    main(["plan", str(spec_folder / "again.json"), "--format", "json"])
    again = json.loads(capsys.readouterr().out)

    assert again["digest"] == document["digest"]
    assert again["spec"] == document["spec"]
    assert document["spec"]["kubernetes"]["ready_timeout"] == "30min"


def test_auto_is_decided_in_the_spec_of_a_plan(plan_of, with_line):
    """The number that it became stands there."""
    spec = plan_of(with_line(20, "  ep_size: auto")).as_json()["spec"]

    assert spec["decode"]["ep_size"] == 2


def test_inputs_are_the_files_that_the_spec_names(plan_of, spec_text, spec_folder):
    """By the names that they have there, with the sha256 of their bytes; the spec itself is no input."""
    text = spec_text.replace("  alpha: 1.01\n  seed: 0\n", "  file: loads.json\n")
    digests = {
        name: f"sha256:{hashlib.sha256((spec_folder / name).read_bytes()).hexdigest()}"
        for name in ("config.json", "loads.json")
    }

    assert plan_of(text).as_json()["inputs"] == digests
    assert plan_of(spec_text).as_json()["inputs"] == {"config.json": digests["config.json"]}


@pytest.fixture(scope="module")
def vllm(plan_of):
    """The JSON of a plan that vLLM runs."""
    text = (SPECS / "h200-single-node.yaml").read_text()
    return json.loads(pretty_json(plan_of(text.replace("\nname: ", "\nengine: vllm\nname: ")).as_json()))


FOR_VLLM = [
    (("memory",), lambda _: {}, "memory"),
    (("model", "model_type"), lambda _: "kimi_k9", "model.model_type"),
    (("spec", "model", "checkpoint"), lambda _: None, "spec.model.checkpoint"),
]


@pytest.mark.parametrize(("keys", "change", "where"), FOR_VLLM, ids=[where for *_, where in FOR_VLLM])
def test_what_containers_of_another_engine_are_made_from_is_there(vllm, keys, change, where, tmp_path):
    """S908: the plan says that vLLM runs it, and its containers cannot be made again without these."""
    problem = refusal(resealed(edited(vllm, keys, change)), tmp_path / "plan.json")

    assert (problem.rule[:4], problem.path) == ("S908", where)


NO_JSON = [
    "1e31", "-1" + "0" * 31,
    "NaN", "Infinity", "-Infinity", "1e400", "9" * 5000, "[" * 100 + "]" * 100, '{"a":' * 50 + "1" + "}" * 50, '"', "",
    "[" * 100_000, '"\\ud800"', '"\\uDFFF\\uD800"',
]  # fmt: skip


@pytest.mark.parametrize("text", NO_JSON, ids=lambda text: text[:12] or "nothing")
def test_values_that_no_json_has_are_refused(document, text, tmp_path):
    """S906: numbers that are none, numbers without end, nesting without end."""
    torn = pretty_json(document).replace('"why": ', f'"beside": {text},\n   "why": ', 1)
    with pytest.raises(CallError) as error:
        load_plan(torn.encode(), tmp_path / "plan.json")

    assert error.value.findings[0].rule.startswith("S906")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-32-be"])
def test_a_plan_is_read_as_utf_8(document, encoding, tmp_path):
    """S906: Python would take any encoding that JSON once had."""
    with pytest.raises(CallError) as error:
        load_plan(pretty_json(document).encode(encoding), tmp_path / "plan.json")

    assert error.value.findings[0].rule.startswith("S906")


def test_half_a_character_in_bytes_is_refused(document, tmp_path):
    """S906: UTF-8 has no surrogates, written out or not."""
    with pytest.raises(CallError) as error:
        load_plan(pretty_json(document).encode().replace(b'"default"', b'"\xed\xa0\x80"'), tmp_path / "plan.json")

    assert error.value.findings[0].rule.startswith("S906")


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_a_phase_without_a_unit_is_refused(of_the_catalog, phase, tmp_path):
    """S908: the spec says how many units a phase has, and no launch document tells of one that is gone."""
    units = [each for each in of_the_catalog["units"] if each["phase"] != phase]
    documents = {name: each for name, each in of_the_catalog["launch_documents"].items() if f"-{phase}-" not in name}
    after = of_the_catalog | {"units": units, "launch_documents": documents}
    problem = refusal(resealed(after), tmp_path / "plan.json")

    assert (problem.rule[:4], problem.path) == ("S908", "units")


ODD = [None, [], {}, "", "x", "\ud800", -1, 0, 2**63, 10**30, 1.5, 1e308, True, [[]], {"": None}, ["x"] * 3]


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_edit_is_a_traceback(document, data, tmp_path):
    """Any value in any place, sealed again where that can be done: a plan, or one problem."""
    inner = [keys[:length] for keys in every_leaf(document) for length in range(1, len(keys) + 1)]
    keys, odd = data.draw(st.sampled_from(inner)), data.draw(st.sampled_from(ODD))
    beside = data.draw(st.sampled_from(["", "expert_map", "schedule", "kind", "x"]))
    after = edited(document, keys, lambda each: each | {beside: odd} if beside and isinstance(each, dict) else odd)
    with contextlib.suppress(TypeError, KeyError, AttributeError, ValueError):  # what cannot be sealed is read as it is
        after = resealed(after)
    problem = refusal(after, tmp_path / "plan.json")

    assert problem is None or (problem.reason and str(problem.fix))


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_torn_plan_is_a_traceback(document, data, tmp_path):
    """Bytes changed, cut and repeated: a plan that says the same, or a mistake in a plan or a spec."""
    content = bytearray(pretty_json(document).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(start, min(len(content), start + 8)) | st.just(len(content)))
        content[start:end] = data.draw(st.binary(max_size=6) | st.sampled_from([b"[", b"{", b'"', b"9" * 30, b"NaN"]))
    (tmp_path / "torn.json").write_bytes(bytes(content))
    with contextlib.suppress(CallError, SpecError):
        assert read_input(tmp_path / "torn.json").digest == document["digest"]


def test_a_plan_that_is_not_there_is_refused(tmp_path):
    """S905: as a previous plan; where a spec would do as well it is S101, as of specs."""
    with pytest.raises(CallError) as error:
        read_plan(tmp_path / "none.json")
    with pytest.raises(SpecError) as other_error:
        read_input(tmp_path / "none.json")

    assert error.value.findings[0].rule.startswith("S905")
    assert other_error.value.findings[0].rule.startswith("S101")


@pytest.mark.parametrize("command", ["validate", "plan"])
def test_a_plan_in_place_of_a_spec_is_called_one(document, tmp_path, capsys, command):
    """S912: and not told as a spec with twenty mistakes."""
    (tmp_path / "plan.json").write_text(pretty_json(document))
    status = main([command, str(tmp_path / "plan.json"), "--format", "json"])
    (error,) = json.loads(capsys.readouterr().out)["errors"]

    assert (status, error["rule"][:4]) == (2, "S912")
