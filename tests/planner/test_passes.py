"""A pass that somebody adds is noticed where it has to be named: `PASSES`, the plan's JSON and the plan's text."""

import ast
from functools import cached_property
from pathlib import Path

import pytest

from planner import compiler
from planner.candidate import candidate
from planner.compiler import Compiled
from planner.plan import decided
from planner.plan.plan import Plan
from planner.report.rows import rows_of
from tests.test_layering import PASSES

SCHEDULE = """\
schedule:
  windows: [{at: "08:00", prefill_units: 1, decode_units: 1}, {at: "20:00", prefill_units: 0, decode_units: 0}]
"""

# What `run_passes` and its helpers call besides passes.
NO_PASSES = {
    "split_of": "looks up the engine's rule",
    "apply_change": "writes values into a document",
    "change_spec": "writes values into a spec",
    "reset_spent_options": "removes what has been decided from a document",
    "kv_dtype_of": "reads the spec",
    "predict_loads": "divides demand by speed",
    "busy_stretches": "likewise, for each kind of day",
    "predict_at_load": "predicts a phase again, with fuller units",
    "predict_at_peak": "likewise, in the fullest hour",
    "most_requests": "reads memory",
    "relative_utilisation": "reads a prediction",
    "staging_bytes": "reads the layout",
    "split_memory": "reads the layout, for whoever asks about another spec",
    "resolve": "is what a file becomes before any pass",
    "change_document": "writes values into a spec",
    "lay_out": "reads the spec, for whoever asks about one phase",
    "memory_of": "reads the layout, for whoever asks about one phase",
    "gate_of": "reads the model",
    "groups_on_nodes": "reads a layout",
    "start_times": "reads layouts and their weights",
    "loaded_bytes": "reads their memory",
    "full_rates": "predicts the same layouts again, with full units",
    "is_within": "compares two levels",
    "short_gpu": "says whether a placement can be asked for",
    "refusals_of": "asks the rules that refuse",
    "findings_at": "asks the rules of a level",
    "warnings_of": "asks the rules of two levels",
}

# Sections of a plan that its report leaves out.
NOT_TOLD = {
    "version": "is of the file",
    "digest": "is above the text",
    "document_digest": "is of the file",
    "spec_digest": "is of the spec",
    "inputs": "are files of the spec",
    "written": "is told as what it gives",
    "why_not": "is told as refusals",
    "report": "is itself",
    "reads": "is told as the stages of a start",
    "diff": "stands below the text, beside another plan",
}


@pytest.fixture(scope="module")
def plan(found_of, spec_text):
    """A plan with every section: a schedule, memory and traffic of GPUs, and reasons why it does not run."""
    text = spec_text.replace("  units: 1\n", "").replace("gpu: cpu", "gpu: h800") + SCHEDULE
    text = text.replace("kubernetes:\n", "kubernetes:\n  controller: {}\n")
    return found_of(text.replace("precision: fp32", "precision: bf16"))


def called_by_the_compiler():
    """The functions of other files that make a plan: of what decides, of what a candidate is asked, of what refuses."""
    entries = [(candidate, "Candidate"), (compiler, "run_passes"), (decided, "decided_sections")]
    return set().union(*(called_from(module, entry) for module, entry in entries))


def called_from(module, entry):
    """The functions of other files that `entry` calls, itself or by functions of its own file."""
    tree = ast.parse(Path(module.__file__).read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    functions |= {node.name: node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == entry}
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("planner.")
        for alias in node.names
        if alias.name.islower()  # others are classes
    }
    waiting, seen = [entry], set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        calls = [node.func.id for node in ast.walk(functions[name]) if is_call_by_name(node)]
        waiting += [each for each in calls if each in functions and each not in seen]
        seen |= imported.intersection(calls)
    return seen & imported


def is_call_by_name(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def test_every_pass_is_named_as_one():
    """A function that the compiler calls is in `PASSES`, so that nobody else calls it, or said not to be a pass."""
    assert called_by_the_compiler() == PASSES | NO_PASSES.keys()
    assert PASSES.isdisjoint(NO_PASSES)


class Recorded:
    """What was found, with a note of which attributes are read; what its own properties read is not noted."""

    def __init__(self, found):
        self.found, self.read = found, set()

    def __getattr__(self, name):
        self.read.add(name)
        return getattr(self.found, name)


def test_all_that_a_candidate_answers_is_in_the_plan(plan):
    """So that what a pass finds is there for programs."""
    answers = {
        name for each in Compiled.__mro__ for name, value in vars(each).items() if isinstance(value, cached_property)
    }

    assert plan.plan.document_digest
    assert answers - {"resolved"} <= vars(plan).keys()


def test_every_section_of_a_plan_is_in_its_report(plan):
    """So that what a pass finds is read by people, or left out on purpose."""
    recorded = Recorded(plan.plan)
    rows_of(recorded)

    assert Plan.model_fields.keys() - recorded.read == NOT_TOLD.keys()
