"""Every rule of a spec: what breaks it, the exact message, and the fix that it prints."""

import re
from pathlib import Path

import pytest
import yaml

import planner

CASES = yaml.safe_load((Path(__file__).parent / "wrong_specs.yaml").read_text())
FIELDS = [(c["rule"], c["line"], c["text"], c["message"], c.get("at", c["line"])) for c in CASES["fields"]]
LOAD_FILES = [tuple(case.values()) for case in CASES["load_files"]]

# Ids that other tests of this folder have a case for, and what those are about.
ELSEWHERE = {
    "test_rules.py": {"S207"},
    "test_source.py": {"S101", "S102", "S108"},
    "test_compiler.py": {"S304", "S701", "S702", "S703", "S704", "S709"},
    "test_memory.py": {"S707"},
    "test_coverage.py": {"S720", "S721", "S722"},
    "test_placement.py": {"S905", "S906"},
    "test_experts.py": {f"S8{number:02}" for number in range(1, 18)},
    "test_cli.py": {"S900", "S901", "S902", "S903", "S904"},
}


@pytest.mark.parametrize(("rule_id", "line", "text", "message", "at"), FIELDS)
def test_a_broken_rule_says_what_where_why_and_what_instead(rule_id, line, text, message, at, with_line, problems_of):
    """One wrong line gives one problem, on that line, with exactly this message."""
    problems = [problem for problem in problems_of(with_line(line, text)) if problem.rule.startswith(rule_id)]

    assert [problem.message for problem in problems] == [message]
    assert problems[0].line == at


@pytest.mark.parametrize(("rule_id", "file", "message"), LOAD_FILES)
def test_wrong_load_files_are_described(rule_id, file, message, spec_text, problems_of):
    """A load file is read when the spec is checked, and its mistake has the line that names it."""
    (problem,) = problems_of(_with_load_file(spec_text, file))

    assert (problem.rule[:4], problem.line, problem.message) == (rule_id, 26, message)


@pytest.mark.parametrize(
    ("rule_id", "line", "text", "message"), [case[:4] for case in FIELDS if "nearest: " in case[3]]
)
def test_the_nearest_value_repairs_it(rule_id, line, text, message, with_line, problems_of):
    """Writing the first value that a message offers makes the rule hold."""
    nearest = message.rpartition("nearest: ")[2].split(" or ")[0]
    written = re.search(r"\((.*?)\)", message)[1]
    repaired = text.replace(f": {written}", f": {nearest}") if "{" in text else f"{text.partition(':')[0]}: {nearest}"

    assert not [problem for problem in problems_of(with_line(line, repaired)) if problem.rule.startswith(rule_id)]


def test_a_name_too_long_to_show_is_cut(with_line, problems_of):
    """S207: a value that would drown its message is cut in it."""
    (problem,) = problems_of(with_line(5, f"  name: {'x' * 201}"))

    assert problem.message == f"model.name ({'x' * 57}...) must have at most 200 characters; it has 201; shorten it"


def test_a_right_spec_has_no_problems(problems_of, spec_text):
    """The spec that all cases break is right itself."""
    assert problems_of(spec_text) == ()


def test_measured_loads_are_taken(spec_text, problems_of):
    """A load file of the model's shape is right."""
    assert problems_of(_with_load_file(spec_text, "loads.json")) == ()


def test_every_rule_has_a_case():
    """A rule id in the planner's sources without a wrong spec in the tests fails here."""
    sources = "".join(path.read_text() for path in Path(planner.__file__).parent.rglob("*.py"))
    declared = set(re.findall(r'"(S\d{3})\b', sources))
    tested = {case["rule"] for group in CASES.values() for case in group}.union(*ELSEWHERE.values())

    assert declared == tested


@pytest.mark.parametrize(("file", "rule_ids"), ELSEWHERE.items())
def test_cases_elsewhere_are_there(file, rule_ids):
    """The other test files do name the ids that this one counts on them for."""
    text = (Path(__file__).parent / file).read_text()

    assert sorted(rule_id for rule_id in rule_ids if rule_id not in text) == []


def test_a_field_that_is_wrong_silences_only_the_rules_that_read_it(with_line, problems_of):
    """A broken ep_size does not hide a broken port, and is not judged twice."""
    text = with_line(29, "  port: 9400", with_line(20, "  ep_size: many"))

    assert [problem.path for problem in problems_of(text)] == ["decode.ep_size", "gateway.port"]


def _with_load_file(text, file):
    return text.replace("  alpha: 1.01\n  seed: 0\n", f"  file: {file}\n")
