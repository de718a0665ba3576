"""What a message offers is right: every change of every case is applied, and one mistake is gone and no other there."""

import json
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cli import main
from planner.compiler import compile_plan
from planner.plan.fit import check_fit
from planner.problems.errors import InfeasibleError
from planner.problems.fix import apply_change
from planner.rules.check import check_spec
from planner.spec.fields import check_fields
from planner.spec.unknown_keys import read_table
from tests.planner.conftest import SPEC
from tests.planner.spec.any_spec import EVERYTHING, OWN_GPU
from tests.planner.spec.spec_schema import SCHEMA, options, property_schemas
from tests.planner.spec.wrong_specs import CASES, changed, data_of

BASE = data_of(SPEC)


@pytest.mark.parametrize("case", CASES["fields"], ids=lambda case: f"{case['rule']} {case['text'][:40]}")
def test_every_fix_of_a_field_mends_it(case, with_line, problems_of):
    """Each change that the message offers, by itself."""
    assert_mended(with_line(case["line"], case["text"]), problems_of)


@pytest.mark.parametrize("case", CASES["changed"], ids=lambda case: f"{case['rule']} {case['change']}")
def test_every_fix_of_a_section_mends_it(case, problems_of):
    """The same for whole sections."""
    assert_mended(changed(case), problems_of)


NUMBERS = [path for path, kind in EVERYTHING if kind == "most" and "[]" not in path and path.partition(".")[0] in BASE]


@pytest.mark.slow
@pytest.mark.parametrize("number", [10**17, 10**30, -(10**30), str(10**30), "9" * 5000], ids=lambda each: str(each)[:5])
@pytest.mark.parametrize("path", NUMBERS)
def test_the_fix_of_a_huge_number_mends_it(path, number, problems_of):
    """Whatever field it stands in, and whichever rules are about it."""
    own_gpu = BASE | {"cluster": BASE["cluster"] | {"gpu": OWN_GPU}}

    assert_mended(json.dumps(apply_change(own_gpu, {path: number})), problems_of)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES["infeasible"], ids=lambda case: f"{case['rule']} {case['change']}")
def test_every_change_of_what_cannot_be_had_makes_it_plan(case, plan_of):
    """One to three changes, and with each of them there is a plan."""
    with pytest.raises(InfeasibleError) as error:
        plan_of(changed(case))

    changes = error.value.findings[0].changes
    assert 1 <= len(changes) <= 3
    for change in changes:
        plan_of(json.dumps(apply_change(data_of(changed(case)), change), indent=1))


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: case["rule"])
def test_every_fix_of_what_the_runtime_cannot_run_mends_it(case, spec_file):
    """Once it is applied the plan does not refuse for this reason, and for no other than before."""

    def refusals(text):
        plan = compile_plan(check_spec(spec_file(text, "refused.yaml")))
        return {(problem.path, problem.rule[:4]): problem for problem in plan.refusals}

    before = refusals(changed(case))
    problem = next(each for each in before.values() if each.rule.startswith(case["rule"]))
    for change in problem.changes:
        after = refusals(json.dumps(apply_change(data_of(changed(case)), change), indent=1))
        assert after.keys() <= before.keys() - {(problem.path, problem.rule[:4])}


@pytest.mark.parametrize("case", CASES["warned"], ids=lambda case: f"{case['rule']} {case['change']}")
def test_every_fix_of_a_warning_ends_it(case, spec_file):
    """What is written instead plans, without this warning and without another."""

    def warnings(text):
        spec = check_spec(spec_file(text, "warned.yaml"))
        return {(warning.path, warning.rule[:4]): warning for warning in check_fit(spec).warnings}

    before = warnings(changed(case))
    (warning,) = (each for each in before.values() if each.rule.startswith(case["rule"]))
    for change in warning.changes:
        after = warnings(json.dumps(apply_change(data_of(changed(case)), change), indent=1))
        assert after.keys() == before.keys() - {(warning.path, case["rule"])}


@pytest.mark.parametrize("case", CASES["calls"], ids=lambda case: f"{case['rule']} {case['words']}")
def test_every_fix_of_a_call_mends_it(case, spec_folder, spec_file, monkeypatch, capsys, tmp_path):
    """The option with the offered value: nothing is wrong any more, and the work begins."""

    def begin_work(*_):
        raise WorkBegins

    spec_file()
    monkeypatch.chdir(spec_folder)
    main([*case["words"].split(), "--format", "json"])
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    changes = error.get("changes", [])

    monkeypatch.setattr("planner.experts.experts.make_map", begin_work)
    monkeypatch.setattr("planner.compiler.compile_plan", begin_work)
    for change in changes:
        words = case["words"].split()
        for option, value in change.items():
            written = str(tmp_path / value) if option == "-o" else str(value)
            words = with_option(words, option, written)
        with pytest.raises(WorkBegins):
            main(words)


@pytest.mark.parametrize("size", [5, 7, 70])
def test_the_fix_of_an_ep_size_fits_the_cluster(size, with_line, problems_of, plan_of):
    """Of three nodes with two GPUs prefill takes one: 6 or 36 would divide evenly, but there are too few nodes."""
    text = with_line(20, f"  ep_size: {size}")
    (fix,) = {str(problem.fix) for problem in problems_of(text)}
    plan = plan_of(with_line(20, f"  ep_size: {fix.removeprefix('nearest: ')}"))

    assert len(plan.phases) == 2


@pytest.mark.parametrize(("num_nodes", "offered"), [(4, "nearest: 4"), (5, "nearest: 4 or 6")])
def test_the_fix_of_an_ep_size_leaves_spares_alone(num_nodes, offered, with_line, problems_of):
    """Prefill takes one node of two GPUs, and one is a spare: the others are decode's."""
    nodes = f"  nodes: {num_nodes}\n  spares: [node-0]\n"
    text = with_line(20, "  ep_size: 5").replace("  nodes: 3\n", nodes)

    assert {str(problem.fix) for problem in problems_of(text)} == {offered}


def test_a_large_spec_has_words_in_place_of_changes_that_nobody_tried(problems_of):
    """Each try checks the whole spec: all that 500 mistakes offer in 20,000 nodes would take minutes."""
    nodes = "".join(f"    - {{name: n{number}, rack: {number}}}\n" for number in range(400))
    problems = problems_of(SPEC.replace("  nodes: 3\n", f"  nodes:\n{nodes}"))
    offering = [each for each in problems if each.changes]

    assert 0 < len(offering) < 50
    assert all("did you mean" in str(each.fix) for each in problems if each.rule.startswith("S203"))


FIELDS = dict(SCHEMA["properties"]) | {
    f"{section}.{name}": field
    for section, schema in SCHEMA["properties"].items()
    if isinstance(BASE.get(section), dict)
    for name, field in property_schemas(schema).items()
}


@pytest.mark.parametrize("written", ["?!", {"?!": 1}, [{}], None, True, 0.5, ""], ids=str)
def test_no_change_is_an_example(written):
    """Whatever stands in a field, or nothing, its declared example is offered to people alone."""
    assert {path: examples for path in FIELDS if (examples := examples_offered(path, written))} == {}


@pytest.mark.parametrize("written", ["?!", {"?!": 1}, [{}], True, 0.5], ids=str)
def test_a_wrong_value_is_one_finding(written):
    """Also of a field that takes this or that: Pydantic would say of each what the value is not."""
    for path in FIELDS:
        found = [each for each in check_fields(apply_change(BASE, {path: written})).findings if each.path == path]

        assert len(found) <= 1, path


SECTIONS = ["", *(name for name, section in BASE.items() if isinstance(section, dict))]
KEYS = sorted({name for row in read_table() for name in row.names} | {path.rpartition(".")[2] for path in FIELDS})
WRITTEN = (1, 0, "1", 1.5, True, None, "auto", [], [1], ["a"], {}, {"a": 1}, [{"a": 1}], "80Gi", "yes", "bfloat16", "x")


@given(
    mistakes=st.lists(
        st.tuples(st.sampled_from(SECTIONS), st.sampled_from(KEYS), st.sampled_from(WRITTEN)), min_size=1, max_size=3
    )
)
def test_no_change_brings_another_mistake(mistakes, problems_of):
    """Whatever is written under whichever name: a rule of another field may not take what is offered for this one."""
    data = BASE
    for section, key, written in mistakes:
        held = data.get(section)
        if isinstance(held, dict) or not section:
            data = {**data, section: {**held, key: written}} if section else {**data, key: written}

    assert_mended(json.dumps(data), problems_of)


def test_a_change_is_made_in_a_copy():
    """Sections are created, list items found by index, null removes, keys may have dots."""
    data = {"a": {"b.c": 1, "d": 2}, "e": [{"f": 1}, {"f": 2}]}
    changed_data = apply_change(data, {"a.b.c": None, "a.d": 3, "e.1.f": 4, "e.0": None, "g.h": 5})

    assert changed_data == {"a": {"d": 3}, "e": [{"f": 4}], "g": {"h": 5}}
    assert data == {"a": {"b.c": 1, "d": 2}, "e": [{"f": 1}, {"f": 2}]}


class WorkBegins(Exception):
    """The call was right."""


def examples_offered(path, written):
    """The declared examples of the field at `path` that a change puts there, in place of `written`."""
    findings = check_fields(apply_change(BASE, {path: written})).findings
    offered = [change[path] for each in findings for change in each.changes if path in change]
    only = [option["const"] for option in options(FIELDS[path]) if "const" in option]
    return [value for value in offered if value in FIELDS[path]["examples"] and value not in only]


def assert_mended(text, problems_of):
    """Each change that a problem of `text` offers mends that problem, and brings no other one."""
    problems = problems_of(text)
    for problem in problems:
        for change in problem.changes:
            after = problems_of(json.dumps(apply_change(data_of(text), change), indent=1))

            assert counted(after) <= counted(problems) - counted([problem]), change


def counted(problems):
    """How often each rule is broken at each place, wherever in its list that is."""
    return Counter((re.sub(r"\.[0-9]+", "", each.path), each.rule[:4]) for each in problems)


def with_option(words, option, value):
    """A command line with `value` for `option`; without it where that is null."""
    if value == "None":
        index = words.index(option)
        return [*words[:index], *words[index + 2 :]]
    if option not in words:
        return [*words, option, value]
    index = words.index(option)
    return [*words[: index + 1], value, *words[index + 2 :]]
