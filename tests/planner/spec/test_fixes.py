"""What a message offers is right: every printed fix of every case is applied, and the mistake is gone."""

import json
import re

import pytest

from planner.cli import main
from planner.compiler import compile_plan
from planner.plan.fit import check_fit
from planner.problems.errors import InfeasibleError, SpecError
from planner.problems.fix import applied
from planner.spec.check import check_spec
from planner.spec.yaml import parse_document
from tests.planner.conftest import SPEC
from tests.planner.spec.any_spec import EVERYTHING, OWN_GPU
from tests.planner.spec.wrong_specs import CASES, changed, data_of, with_load_file

BASE = data_of(SPEC)

# Rules whose fix takes what only the user knows, in every case; the cases of others say so in `user_knows`.
NEEDS_KNOWLEDGE = {
    "S211": "what the checkpoint's weights are in",
    "S302": "where the checkpoint's own config is",
    "S303": "what the model's shapes are",
    "S306": "the figures of that GPU",
    "S307": "the shapes of that model",
    "S308": "whether the config or the manifest is the right one",
    "S312": "what the weights are in",
    "S313": "which other checkpoint there is",
    "S314": "what the file was to say",
    "S406": "where the weights are",
    "S417": "how fast the links are",
    "S463": "which folder is on the nodes' own disks",
    "S514": "how many units are on",
    "S516": "where the nodes stand",
    "S530": "which nodes have which GPUs",
    "S602": "what was measured on this model",
    "S603": "where the measured loads are",
    "S604": "what was measured",
    "S605": "what was measured",
    "S606": "what was measured",
    "S611": "how many tokens a day has",
    "S613": "how many nodes there are",
    "S617": "where the past days are",
    "S618": "what was measured",
    "S619": "what was measured",
    "S702": "where the weights are",
    "S703": "where the weights are",
    "S704": "which other GPUs there are",
    "S709": "which other model would do",
    "S731": "which other checkpoint there is",
    "S809": "where to write",
    "S813": "how many nodes a rack has",
    "S815": "how large an expert is",
    "S806": "which map is in service",
    "S807": "which map is in service",
    "S824": "which windows are of one model",
    "S900": "what was meant to be called",
    "S901": "which folder may be written",
    "S902": "which folder may be written",
    "S903": "which folder may be written",
    "S904": "which file may be written",
    "S905": "where the previous plan is",
    "S906": "where the previous plan is",
    "S907": "what the previous spec was",
    "W104": "where the nodes stand",
    "W105": "which other checkpoint there is",
    "S744": "where the weights are",
    "S750": "what other checkpoints there are",
    "S752": "which other GPUs there are",
}

# A file that cannot be read as a spec has no fields to change. What its fix says, done to its text at the place.
DONE_TO_TEXT = {
    "remove the character": lambda before, after: before + after[1:],
    "put each spec into its own file": lambda before, after: before,
    "start with `version: 1`": lambda before, after: "version: 1\n",
    "write a plain key": lambda before, after: f"{before}key{after.removeprefix('[1]')}",
    "write the value": lambda before, after: before.removesuffix("{") + "1" + after.partition("}}")[2],
    "remove one of the two": lambda before, after: before + after.partition("\n")[2],
    "write the value itself": lambda before, after: before + re.sub(r"[&!]\S+ ", "", after).replace("*x", "1"),
    "use fewer levels": lambda before, after: before[: before.index("[")] + "1\n",
    "indent with spaces": lambda before, after: before + re.sub(r"[\t\u00a0]+", "  ", after, count=1),
    "put it in quotes": lambda before, after: before + re.sub(r"(.*)", r'"\1"', after, count=1),
    "close it": lambda before, after: before + after.replace("\n", '"\n', 1),
    "write , or ]": lambda before, after: f"{before}{',' if ']' in after else ']'}{after}",
    "write , or }": lambda before, after: f"{before}{',' if '}' in after else '}'}{after}",
    "give the list a key of its own": lambda before, after: (
        before.replace("- b", "e: [b]") + after.replace("- ", "e: ")
    ),
    "remove the rest of the line": lambda before, after: before + after[after.index("\n") :],
    "do not indent it": lambda before, after: before.rstrip(" ") + after,
}


def done_to_text(fix, before, after):
    """Fixes that say what to write, or how many spaces, and those above."""
    if written := re.fullmatch(r"write `(\w+: [\w:]+)`", fix):
        return before + written[1] + after[after.index("\n") :]
    if spaces := re.fullmatch(r"indent it by (\d+) spaces?", fix):
        return before.rstrip(" ") + " " * int(spaces[1]) + after
    if point := re.match(r"write `(\w+: )(\d+\.\d+)`", fix):
        return before[: before.rindex(point[1])] + point[1] + point[2] + after[re.match(r"\d+", after).end() :]
    if quoted := re.search(r'`((\w+): ".*?")`', fix):
        return (
            before[: before.rindex(f"{quoted[2]}: ")]
            + quoted[1]
            + after[re.match(r"[^:}]*(?=, \w+:|})", after).end() :]
        )
    if null := re.match(r"write `((\w+): null)`", fix):
        return before + null[1] + after.removeprefix(null[2])
    return DONE_TO_TEXT[fix](before, after)


@pytest.mark.parametrize("case", CASES["fields"], ids=lambda case: f"{case['rule']} {case['text'][:40]}")
def test_every_fix_of_a_field_mends_it(case, with_line, problems_of):
    """Each change that the message offers, by itself."""
    assert_mended(with_line(case["line"], case["text"]), case, problems_of)


@pytest.mark.parametrize("case", CASES["changed"], ids=lambda case: f"{case['rule']} {case['change']}")
def test_every_fix_of_a_section_mends_it(case, problems_of):
    """The same for whole sections."""
    assert_mended(changed(case), case, problems_of)


NUMBERS = [path for path, kind in EVERYTHING if kind == "most" and "[]" not in path and path.partition(".")[0] in BASE]


@pytest.mark.slow
@pytest.mark.parametrize("number", [10**17, 10**30, -(10**30), str(10**30), "9" * 5000], ids=lambda each: str(each)[:5])
@pytest.mark.parametrize("path", NUMBERS)
def test_the_fix_of_a_huge_number_mends_it(path, number, problems_of):
    """Whatever field it stands in: the end of its range, or what the rules about it take."""
    text = json.dumps(applied(BASE | {"cluster": BASE["cluster"] | {"gpu": OWN_GPU}}, {path: number}))
    rules = {problem.rule[:4] for problem in problems_of(text) if problem.path == path}
    for rule in rules:
        # another field has to follow, or the phase takes no drafts at all, or there is no schedule to control
        follow = ["S503", "S505", "S554", "S469"]
        assert_mended(text, {"rule": rule, "then": follow}, problems_of)

    assert rules or number == 10**17  # which some fields take


@pytest.mark.parametrize("case", CASES["load_files"], ids=lambda case: case["file"])
def test_load_files_are_mended_by_who_measured(case, problems_of):
    """None of their fixes is a change of the spec."""
    assert_mended(with_load_file(case["file"]), case, problems_of)


@pytest.mark.parametrize("case", CASES["files"], ids=lambda case: f"{case['rule']} {case['text'][:20]!r}")
def test_every_fix_of_a_text_mends_it(case):
    """What could not be read as YAML can, once it is done."""
    (problem,) = problems_of_text(case["text"])
    line, column = case["place"]
    start = sum(len(each) for each in case["text"].splitlines(keepends=True)[: line - 1]) + column - 1
    mended = done_to_text(str(problem.fix), case["text"][:start], case["text"][start:])

    assert problems_of_text(mended) == ()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES["infeasible"], ids=lambda case: f"{case['rule']} {case['change']}")
def test_every_change_of_what_cannot_be_had_makes_it_plan(case, plan_of):
    """One to three changes, and with each of them there is a plan."""
    with pytest.raises(InfeasibleError) as error:
        plan_of(changed(case))

    changes = error.value.problems[0].changes
    assert 1 <= len(changes) <= 3
    for change in changes:
        plan_of(json.dumps(applied(data_of(changed(case)), change), indent=1))


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: case["rule"])
def test_every_fix_of_what_the_runtime_cannot_run_mends_it(case, spec_file):
    """Once it is applied the plan does not refuse for this reason, and for no other than before."""

    def refusals(text):
        plan = compile_plan(check_spec(spec_file(text, "refused.yaml")))
        return {(problem.path, problem.rule[:4]): problem for problem in plan.refusals}

    before = refusals(changed(case))
    problem = next(each for each in before.values() if each.rule.startswith(case["rule"]))
    assert bool(problem.changes) == can_be_applied(case)
    for change in problem.changes:
        after = refusals(json.dumps(applied(data_of(changed(case)), change), indent=1))
        assert after.keys() <= before.keys() - {(problem.path, problem.rule[:4])}


@pytest.mark.parametrize("case", CASES["warned"], ids=lambda case: f"{case['rule']} {case['change']}")
def test_every_fix_of_a_warning_ends_it(case, spec_file):
    """What is written instead plans, without this warning and without another."""

    def warnings(text):
        spec = check_spec(spec_file(text, "warned.yaml"))
        return {(warning.path, warning.rule[:4]): warning for warning in check_fit(spec).warnings}

    before = warnings(changed(case))
    (warning,) = (each for each in before.values() if each.rule.startswith(case["rule"]))
    assert bool(warning.changes) == can_be_applied(case)
    for change in warning.changes:
        after = warnings(json.dumps(applied(data_of(changed(case)), change), indent=1))
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

    assert bool(changes) == can_be_applied(case)
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
def test_the_fix_of_an_ep_size_fits_the_nodes_that_there_are(size, with_line, problems_of, plan_of):
    """Three nodes of two GPUs, of which prefill takes one: 6 or 36 would spread evenly, and could not be had."""
    text = with_line(20, f"  ep_size: {size}")
    (fix,) = {str(problem.fix) for problem in problems_of(text)}
    plan = plan_of(with_line(20, f"  ep_size: {fix.removeprefix('nearest: ')}"))

    assert len(plan.layouts) == 2


@pytest.mark.parametrize(("num_nodes", "offered"), [(4, "nearest: 4"), (5, "nearest: 4 or 6")])
def test_the_fix_of_an_ep_size_leaves_spares_alone(num_nodes, offered, with_line, problems_of):
    """Prefill takes one node of two GPUs, and one is a spare: the others are decode's."""
    nodes = f"  nodes: {num_nodes}\n  spares: [node-0]\n"
    text = with_line(20, "  ep_size: 5").replace("  nodes: 3\n", nodes)

    assert {str(problem.fix) for problem in problems_of(text)} == {offered}


def test_mistakes_of_one_kind_come_up_together():
    """Three holes of a template, or three characters from a chat, are three problems at once, and no others follow."""
    holes = "a: {{ a }}\nb: {c: {{ .Values.c }}, d: 1}  # {{ not this }}\ne: '{{ e }}'\n"
    filled = problems_of_text(re.sub(r"{{.*?}}", "1", holes))
    alike = "a： 1\nb: 1\nc:\u00a02\nd: {e： 3}\nf: 'g： h'\n"

    assert [(each.line, each.column) for each in problems_of_text(holes)] == [(1, 5), (2, 9), (3, 6)]
    assert [(each.line, str(each.fix)) for each in problems_of_text(alike)] == [
        *((1, "write `a: 1`"), (3, "write `c: 2`"), (4, "write `d: {e: 3}`"))
    ]
    assert filled == ()


def test_what_needs_knowledge_is_little():
    """Two of three mistakes have a fix that a program can apply; and no rule is listed that has no case."""
    fields = [case for group in ("fields", "changed", "infeasible", "warned") for case in CASES[group]]
    rules = {case["rule"] for group in CASES.values() for case in group}

    assert rules > NEEDS_KNOWLEDGE.keys()
    assert sum(map(can_be_applied, fields)) > len(fields) * 2 / 3


def test_a_change_is_made_in_a_copy():
    """Sections are created, list items found by index, null removes, keys may have dots."""
    data = {"a": {"b.c": 1, "d": 2}, "e": [{"f": 1}, {"f": 2}]}
    changed_data = applied(data, {"a.b.c": None, "a.d": 3, "e.1.f": 4, "e.0": None, "g.h": 5})

    assert changed_data == {"a": {"d": 3}, "e": [{"f": 4}], "g": {"h": 5}}
    assert data == {"a": {"b.c": 1, "d": 2}, "e": [{"f": 1}, {"f": 2}]}


class WorkBegins(Exception):
    """The call was right."""


def can_be_applied(case):
    """Whether the fix takes nothing that only the user knows, of any case of the rule or of this one."""
    return case["rule"] not in NEEDS_KNOWLEDGE and "user_knows" not in case


def assert_mended(text, case, problems_of):
    """Every change of the case's problem in `text` removes it, and makes no new one but what follows by design."""
    rule_id, then = case["rule"], case.get("then", [])
    problems = problems_of(text)
    before = {(problem.path, problem.rule[:4]) for problem in problems}
    problem = next(each for each in problems if each.rule.startswith(rule_id))
    assert bool(problem.changes) == can_be_applied(case)
    for change in problem.changes:
        after = problems_of(json.dumps(applied(data_of(text), change), indent=1))
        found = {(each.path, each.rule[:4]) for each in after if each.rule[:4] not in then}
        assert found <= before - {(problem.path, rule_id)}, change


def problems_of_text(text):
    try:
        parse_document(text, "spec.yaml")
    except SpecError as error:
        return error.problems
    return ()


def with_option(words, option, value):
    """A command line with `value` for `option`; without it where that is null."""
    if value == "None":
        index = words.index(option)
        return [*words[:index], *words[index + 2 :]]
    if option not in words:
        return [*words, option, value]
    index = words.index(option)
    return [*words[: index + 1], value, *words[index + 2 :]]
