"""Every rule: what breaks it, where that is said, and the fix. `messages.txt` has the sentences."""

import json
import re
from pathlib import Path

import pytest

import planner
from planner.cli import main
from planner.facts.catalog import GPUS
from planner.families import MODELS
from planner.problems.errors import InfeasibleError
from planner.spec.schema import Spec
from tests.planner.spec.brought_about import facts_of, plan_or_problems, problems_of_case
from tests.planner.spec.messages import MESSAGES, OTHERS, messages_page
from tests.planner.spec.wrong_specs import CASES, changed, with_load_file

FEWEST_RULES = 60
OTHER_STATUS = {"S903": 1, "S904": 1}  # of calls that failed at run time


def numbered(group):
    """Each case of `group` with its number, for one test each."""
    return pytest.mark.parametrize(("index", "case"), list(enumerate(CASES[group])), ids=name_of)


def name_of(value):
    """A case by its rule and the first words of what is wrong; its number says which of several."""
    if isinstance(value, int):
        return str(value)
    wrong = next(value[key] for key in ("text", "change", "file", "words") if key in value)
    return f"{value['rule']} {str(wrong)[:40]}"


def expected(case):
    """What a program reads of the case's problems."""
    return case.get("problems") or [{"path": case.get("path", ""), "changes": case.get("changes", [])}]


@numbered("fields")
def test_a_broken_rule_has_a_line_and_changes(index, case, spec_folder):
    """One wrong line gives one problem, on that line, with exactly these changes."""
    found = problems_of_case(spec_folder, "fields", index)

    assert facts_of(found) == expected(case)
    assert found[0].line == case.get("at", case["line"])


@numbered("changed")
def test_wrong_sections_have_their_fixes(index, case, spec_folder):
    """The same for whole sections."""
    assert facts_of(problems_of_case(spec_folder, "changed", index)) == expected(case)


@numbered("load_files")
def test_a_wrong_load_file_has_the_line_that_names_it(index, case, spec_folder):
    """A load file is read when the spec is checked."""
    found = problems_of_case(spec_folder, "load_files", index)

    assert (facts_of(found), found[0].line) == (expected(case), 26)


@numbered("infeasible")
def test_an_infeasible_spec_gets_fixes(index, case, spec_folder):
    """A valid spec that no plan can meet gets one message, with up to three changes."""
    found = problems_of_case(spec_folder, "infeasible", index)

    assert facts_of(found) == expected(case)
    assert len(plan_or_problems(spec_folder, changed(case))[1]) == 1


@numbered("refused")
def test_what_the_runtime_cannot_run_says_so(index, case, spec_folder):
    """It plans; `why_not` has the message, and launch files are refused."""
    found = problems_of_case(spec_folder, "refused", index)
    plan, _ = plan_or_problems(spec_folder, changed(case))

    assert facts_of(found[:1]) == expected(case)
    assert found[0].message in plan.as_json()["why_not"]
    with pytest.raises(InfeasibleError, match=case["rule"]):
        plan.launch_files()


@numbered("engines")
def test_what_an_engine_does_not_do_with_a_model_says_so(index, case, spec_folder):
    """Nothing is planned for this: the spec alone says it."""
    assert facts_of(problems_of_case(spec_folder, "engines", index)) == expected(case)


@pytest.mark.slow
@numbered("warned")
def test_what_is_hardly_meant_is_said_and_planned(index, case, spec_folder, spec_file, capsys):
    """`validate` and `plan` exit with 0, and each has the warning; only `validate` knows where it stands."""
    (found,) = problems_of_case(spec_folder, "warned", index)
    path = str(spec_file(changed(case), "warned.yaml"))
    validated, planned = (answer(capsys, command, path) for command in ("validate", "plan"))
    (warning,) = (each for each in validated["warnings"] if each["rule"].startswith(case["rule"]))
    placed = {"file", "line", "column"}

    assert facts_of([found]) == expected(case)
    assert (validated["valid"], validated["errors"], warning["message"]) == (True, [], found.message)
    assert warning["file"] == path
    assert warning["line"] > 0
    assert {key: value for key, value in warning.items() if key not in placed} in planned["warnings"]


def answer(capsys, command, path):
    """What a command that does its work says as JSON."""
    assert main([command, path, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@numbered("calls")
def test_a_wrong_call_says_what_is_wrong_with_it(index, case, spec_folder):
    """One JSON document with one problem of the rule, and an exit status of the contract."""
    found = problems_of_case(spec_folder, "calls", index)

    assert facts_of(found) == expected(case)
    assert found[0].status == OTHER_STATUS.get(case["rule"], 2)


@pytest.mark.slow
def test_the_page_of_messages_is_up_to_date(spec_folder):
    """Whoever rewords a message reads it among all others: `python -m tests.docs` writes the page again."""
    assert MESSAGES.read_text() == messages_page(spec_folder), "write it again with python -m tests.docs"


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
    tested = {case["rule"] for group in CASES.values() for case in group} | OTHERS.keys()

    assert declared == tested
    assert len(declared) >= FEWEST_RULES


def test_a_wrong_field_silences_only_rules_that_read_it(with_line, problems_of):
    """A wrong ep_size does not hide a wrong port, and is reported only once."""
    text = with_line(29, "  port: 9400", with_line(20, "  ep_size: many"))

    assert [problem.path for problem in problems_of(text)] == ["decode.ep_size", "gateway.port"]


def test_every_wrong_item_of_a_list_is_named(with_line, problems_of):
    """Two nodes with wrong names, and a third that stands there twice: three mistakes."""
    text = with_line(8, "  nodes: [{name: A_1}, {name: b}, {name: A_2}, {name: b}]")

    assert [problem.path for problem in problems_of(text)] == [f"cluster.nodes.{index}.name" for index in (0, 2, 3)]


def test_editors_complete_the_catalogs_names():
    """Models and GPUs are listed beside their inline form; a node may have the GPU that the spec describes."""
    schema = Spec.model_json_schema()
    nodes_gpu = schema["$defs"]["NodeSpec"]["properties"]["gpu"]["anyOf"]

    assert schema["properties"]["model"]["oneOf"][0]["enum"] == list(MODELS)
    assert schema["$defs"]["ClusterSpec"]["properties"]["gpu"]["oneOf"][0]["enum"] == list(GPUS)
    assert [each.get("enum") for each in nodes_gpu] == [list(GPUS), None, None]


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
