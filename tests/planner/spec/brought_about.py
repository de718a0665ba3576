"""What the cases of `wrong_specs.yaml` bring about: the problems of each, as the commands would say them.

A case is brought about once a process, since the tests of its rule, path and changes and the page of all messages
look at the same problems.
"""

import contextlib
import io
import json
from functools import cache

from planner.cli import main
from planner.compiler import compile_plan
from planner.plan.fit import check_fit
from planner.problems.errors import InfeasibleError, SpecError
from planner.rules.check import check_spec
from planner.spec.yaml import parse_document
from tests.planner.conftest import SPEC
from tests.planner.engines.deployments import engine_refusals
from tests.planner.spec.wrong_specs import CASES, changed, with_load_file

__all__ = ["answers", "facts_of", "plan_or_problems", "problems_of_case"]


@cache
def problems_of_case(folder, group, index):
    """Return the problems of the case's rule, in the order of their lines; `folder` is a `spec_folder`."""
    case = CASES[group][index]
    found = BROUGHT_ABOUT[group](folder, case)
    return [each for each in found if each.rule.startswith(case["rule"])]


def facts_of(problems):
    """Return what programs read of `problems`: paths and changes, as the cases have them."""
    return [{"path": each.path, "changes": [dict(change) for change in each.changes]} for each in problems]


@cache
def plan_or_problems(folder, text):
    """Return (plan, its refusals), or (None, the problems) of a right spec that no plan can meet."""
    try:
        plan = compile_plan(check_spec(_written(folder, text)))
    except InfeasibleError as error:
        return None, error.findings
    return plan, plan.refusals


def _of_spec(folder, text):
    try:
        check_spec(_written(folder, text))
    except SpecError as error:
        return error.findings
    return ()


def _of_line(folder, case):
    lines = SPEC.splitlines()
    lines[case["line"] - 1] = case["text"]
    return _of_spec(folder, "\n".join(lines) + "\n")


def _of_file(_, case):
    try:
        parse_document(case["text"], "spec.yaml")
    except SpecError as error:
        return error.findings
    return ()


def answers(folder, *words):
    """Return the problems of a call in `folder`, from the JSON that a program reads on stdout."""
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as out:
        status = main([*words, "--format", "json"])
    return [Answered(error, status) for error in json.loads(out.getvalue())["errors"]]


def _of_call(folder, case):
    _written(folder, SPEC, "spec.yaml")
    return answers(folder, *case["words"].split())


class Answered:
    """An entry of `errors`, with the exit status of its call."""

    def __init__(self, error, status):
        self.path, self.rule, self.message, self.status = error["path"], error["rule"], error["message"], status
        self.changes = error.get("changes", [])


def _written(folder, text, name="brought_about.yaml"):
    path = folder / name
    path.write_text(text)
    return path


BROUGHT_ABOUT = {
    "fields": _of_line,
    "changed": lambda folder, case: _of_spec(folder, changed(case)),
    "load_files": lambda folder, case: _of_spec(folder, with_load_file(case["file"])),
    "files": _of_file,
    "infeasible": lambda folder, case: plan_or_problems(folder, changed(case))[1],
    "refused": lambda folder, case: plan_or_problems(folder, changed(case))[1],
    "engines": lambda folder, case: list(engine_refusals(check_spec(_written(folder, changed(case))))),
    "warned": lambda folder, case: check_fit(check_spec(_written(folder, changed(case)))).warnings,
    "calls": _of_call,
}
