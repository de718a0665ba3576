"""Every rule: what breaks it, and the exact message, value, rule, reason and fix."""

import json
import re
from pathlib import Path

import pytest

import planner
from planner.cli import main
from planner.facts.catalog import GPUS
from planner.families import MODELS
from planner.problems.errors import InfeasibleError
from planner.problems.fix import applied
from planner.spec.schema import Spec
from tests.planner.spec.wrong_specs import CASES, changed, data_of, with_load_file

FEWEST_RULES = 60
OTHER_STATUS = {"S816": 3, "S817": 3, "S903": 1, "S904": 1}  # of calls: infeasible, or failed at run time

# Ids whose case is no text: a file that is not there or in another encoding, a search that finds no map,
# what validate leaves to plan, and plans that were changed after they were written.
ELSEWHERE = {
    "test_yaml.py": {"S101", "S102"},
    "test_many_mistakes.py": {"S109"},
    "../estimate/test_coverage.py": {"S722", "S723"},
    "../estimate/throughput/test_calibration.py": {"S914", "S915"},
    "../engines/test_documents.py": {"S753"},
    "../engines/test_models.py": {"S755", "S756", "S757", "S758", "S760"},
    "../engines/test_map_size.py": {"S754"},
    "../manifests/test_folder.py": {"S913"},
    "../plan/test_loaded.py": {"S908", "S909", "S910", "S911", "S912"},
}


@pytest.mark.parametrize("case", CASES["fields"], ids=lambda case: f"{case['rule']} {case['text'][:40]}")
def test_a_broken_rule_says_what_where_why_and_what_instead(case, with_line, problems_of):
    """One wrong line gives one problem, on that line, with exactly this message."""
    found = [each for each in problems_of(with_line(case["line"], case["text"])) if each.rule.startswith(case["rule"])]

    assert [problem.message for problem in found] == [case["message"]]
    assert found[0].line == case.get("at", case["line"])


@pytest.mark.parametrize("case", CASES["changed"], ids=lambda case: f"{case['rule']} {case['change']}")
def test_wrong_sections_are_described(case, problems_of):
    """The same for whole sections."""
    found = [problem.message for problem in problems_of(changed(case)) if problem.rule.startswith(case["rule"])]

    assert found == (case.get("messages") or [case["message"]])


@pytest.mark.parametrize("case", CASES["load_files"], ids=lambda case: f"{case['rule']} {case['file']}")
def test_wrong_load_files_are_described(case, problems_of):
    """A load file is read when the spec is checked, and its mistake has the line that names it."""
    (problem,) = problems_of(with_load_file(case["file"]))

    assert (problem.rule[:4], problem.line, problem.message) == (case["rule"], 26, case["message"])


@pytest.mark.parametrize("case", CASES["infeasible"], ids=lambda case: f"{case['rule']} {case['change']}")
def test_what_cannot_be_had_says_what_binds_by_how_much_and_what_would_do(case, plan_of):
    """A right spec that no plan can meet: one message, with up to three changes."""
    with pytest.raises(InfeasibleError) as error:
        plan_of(changed(case))

    assert [problem.message for problem in error.value.problems] == [case["message"]]
    assert error.value.problems[0].rule.startswith(case["rule"])


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: case["rule"])
def test_what_the_runtime_cannot_run_says_so(case, plan_of):
    """It plans; `why_not` has the message, and launch files are refused."""
    plan = plan_of(changed(case))
    found = [problem.message for problem in plan.refusals if problem.rule.startswith(case["rule"])]

    assert found[:1] == [case["message"]]
    assert case["message"] in plan.as_json()["why_not"]
    with pytest.raises(InfeasibleError, match=case["rule"]):
        plan.deployable.launch_files()


@pytest.mark.parametrize("case", CASES["warned"], ids=lambda case: f"{case['rule']} {case['change']}")
def test_what_is_hardly_meant_is_said_and_planned(case, spec_file, capsys):
    """`validate` and `plan` exit with 0, and each has the warning; only `validate` knows where it stands."""
    path = str(spec_file(changed(case), "warned.yaml"))
    validated, planned = (answer(capsys, command, path) for command in ("validate", "plan"))
    (warning,) = (each for each in validated["warnings"] if each["rule"].startswith(case["rule"]))
    placed = {"file", "line", "column"}

    assert (validated["valid"], validated["errors"], warning["message"]) == (True, [], case["message"])
    assert warning["file"] == path
    assert warning["line"] > 0
    assert {key: value for key, value in warning.items() if key not in placed} in planned["warnings"]


def answer(capsys, command, path):
    """What a command that does its work says as JSON."""
    assert main([command, path, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("case", CASES["calls"], ids=lambda case: f"{case['rule']} {case['words']}")
def test_a_wrong_call_says_what_is_wrong_with_it(case, spec_folder, spec_file, monkeypatch, capsys):
    """One JSON document with exactly this message, and an exit status of the contract."""
    spec_file()
    monkeypatch.chdir(spec_folder)
    status = main([*case["words"].split(), "--format", "json"])
    (error,) = json.loads(capsys.readouterr().out)["errors"]

    assert (error["rule"][:4], error["message"]) == (case["rule"], case["message"])
    assert status == OTHER_STATUS.get(case["rule"], 2)


def test_a_right_spec_has_no_problems(problems_of, spec_text):
    """The spec that all cases break is right itself."""
    assert problems_of(spec_text) == ()


@pytest.mark.parametrize("file", ["loads.json", "recorded.json"])
def test_measured_loads_are_taken(file, problems_of):
    """A load file of the model's shape is right, and so is one of SGLang's, which has a row for the dense layer too."""
    assert problems_of(with_load_file(file)) == ()


def test_every_rule_has_a_case():
    """A rule id in the planner's sources without a wrong spec in the tests fails here."""
    sources = "".join(path.read_text() for path in Path(planner.__file__).parent.rglob("*.py"))
    declared = set(re.findall(r'"([SW]\d{3})\b', sources))
    tested = {case["rule"] for group in CASES.values() for case in group}.union(*ELSEWHERE.values())

    assert declared == tested
    assert len(declared) >= FEWEST_RULES


@pytest.mark.parametrize(("file", "rule_ids"), ELSEWHERE.items())
def test_cases_elsewhere_are_there(file, rule_ids):
    """The other test files do name the ids that this one counts on them for."""
    text = (Path(__file__).parent / file).read_text()

    assert sorted(rule_id for rule_id in rule_ids if rule_id not in text) == []


def test_a_field_that_is_wrong_silences_only_the_rules_that_read_it(with_line, problems_of):
    """A broken ep_size does not hide a broken port, and is not judged twice."""
    text = with_line(29, "  port: 9400", with_line(20, "  ep_size: many"))

    assert [problem.path for problem in problems_of(text)] == ["decode.ep_size", "gateway.port"]


def test_every_wrong_item_of_a_list_is_named(with_line, problems_of):
    """Two nodes with wrong names, and a third that stands there twice: three mistakes."""
    text = with_line(8, "  nodes: [{name: A_1}, {name: b}, {name: A_2}, {name: b}]")

    assert [problem.path for problem in problems_of(text)] == [f"cluster.nodes.{index}.name" for index in (0, 2, 3)]


def test_each_wrong_item_of_a_list_gets_a_name_or_a_time_of_its_own(problems_of):
    """Applying all fixes of a spec together leaves no two nodes with one name and no two windows with one time."""
    counts = {"prefill_units": 1, "decode_units": 1}
    change = {
        "cluster.nodes": [{"name": "A_1"}, {"name": "A 1"}, {"name": "a-1"}, {"name": "b"}],
        "decode.units": None,
        "schedule": {
            "windows": [{"at": "08:30"} | counts, {"at": "08:30"} | counts, {"at": "08:30"} | counts, counts, counts]
        },
    }
    text = changed({"change": change})
    problems = problems_of(text)
    fixes = {path: value for each in problems if each.changes for path, value in each.changes[0].items()}
    left = problems_of(json.dumps(applied(data_of(text), fixes), indent=1))

    assert len(fixes) == 4
    assert [str(each.fix) for each in left] == ["for example at: 09:00", "for example at: 09:30"]


def test_editors_complete_the_catalogs_names():
    """Models and GPUs are listed beside their inline form; a node may have the GPU that the spec describes."""
    schema = Spec.model_json_schema()
    nodes_gpu = schema["$defs"]["NodeSpec"]["properties"]["gpu"]["anyOf"]

    assert schema["properties"]["model"]["oneOf"][0]["enum"] == list(MODELS)
    assert schema["$defs"]["ClusterSpec"]["properties"]["gpu"]["oneOf"][0]["enum"] == list(GPUS)
    assert [each.get("enum") for each in nodes_gpu] == [list(GPUS), None, None]


def test_a_time_is_offered_when_every_half_hour_is_taken(problems_of):
    """There is one for the window without a time even then."""
    counts = {"prefill_units": 1, "decode_units": 1}
    windows = [{"at": f"{half // 2:02}:{30 * (half % 2):02}"} | counts for half in range(48)]
    change = {"decode.units": None, "schedule": {"windows": [*windows, counts]}}
    (problem,) = problems_of(changed({"change": change}))

    assert (problem.path, str(problem.fix)) == ("schedule.windows.48.at", "for example at: 08:30")


def test_keys_that_are_not_indented_belong_to_the_section_above(spec_text, problems_of):
    """Each is said to be indented too little, nothing is said to be missing, and indenting them all mends the spec."""
    before, _, rest = spec_text.partition("prefill:\n")
    keys, decode, after = rest.partition("decode:")
    text = before + "prefill:\n" + keys.replace("  ", "") + decode + after
    problems = problems_of(text)
    fixes = {path: value for problem in problems for path, value in problem.changes[0].items()}

    assert [str(problem.fix) for problem in problems] == ["indent it"] * 7
    assert problems_of(json.dumps(applied(data_of(text), fixes), indent=1)) == ()


@pytest.mark.parametrize("mount_path", ["models", None, "/etc/tidemill"], ids=str)
def test_a_volume_in_a_wrong_place_is_one_mistake(problems_of, mount_path):
    """S457 does not say as well that a staged checkpoint is in no volume: the volume has to be mended first."""
    change = {
        "kubernetes.volumes": [{"host_path": "/mnt/models", "mount_path": mount_path}],
        "kubernetes.stage": {"source": "/models/r1", "host_path": "/mnt/nvme"},
        "model.checkpoint": "/checkpoint",
    }

    assert [each.path for each in problems_of(changed({"change": change}))] == ["kubernetes.volumes.0.mount_path"]


def test_a_misspelt_section_is_one_mistake(with_line, problems_of):
    """`decod` is there under a wrong name, not missing."""
    assert [problem.path for problem in problems_of(with_line(18, "decod:"))] == ["decod"]
