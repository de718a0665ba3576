"""What a stack's configuration deploys."""

import json

import pytest

from planner.cli import main
from planner.compiler import plan_from
from planner.problems.errors import CallError, SpecError
from stacks.program.config import configured_plan
from tests.stacks.deployments import DEMO_SPEC


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """The demo's plan in a file."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    assert main(["plan", str(DEMO_SPEC), "-o", str(path)]) == 0
    return str(path)


def test_a_spec_is_planned_and_a_plan_is_not(plan):
    """Both deploy the same; the spec may come with the plan before it."""
    spec = str(DEMO_SPEC)
    ways = ((spec, None, None), (None, plan, None), (spec, None, plan))

    assert len({configured_plan(*each).digest for each in ways}) == 1


def test_overlays_are_laid_over_the_spec(tmp_path):
    """In their order, and a mistake is told in the overlay's file; the plan is the one that -f makes."""
    first, second, wrong = (tmp_path / f"{name}.yaml" for name in ("first", "second", "wrong"))
    first.write_text("name: first\nkubernetes: {namespace: of-first}")
    second.write_text("name: second")
    wrong.write_text("nam: wrong")
    found = configured_plan(str(DEMO_SPEC), None, None, json.dumps([str(first), str(second)]))
    with pytest.raises(SpecError) as error:
        configured_plan(str(DEMO_SPEC), None, None, json.dumps([str(first), str(wrong)]))

    assert (found.name, found.kubernetes.namespace) == ("second", "of-first")
    assert found.digest == plan_from(DEMO_SPEC, overlays=[first, second]).digest
    assert error.value.findings[0].file == str(wrong)


@pytest.mark.parametrize("overlays", ["prod.yaml", '"prod.yaml"', "[1]", '[""]', "{}", "["])
def test_overlays_are_a_list_of_paths(overlays):
    """R303: pulumi config set without --path sets a text."""
    with pytest.raises(CallError, match="R303"):
        configured_plan(str(DEMO_SPEC), None, None, overlays)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            (None, None, None),
            "exactly one of tidemill:spec and tidemill:plan must be set; neither is set; "
            "pulumi config set tidemill:plan PLAN.json, or tidemill:spec SPEC",
        ),
        (
            ("a", "b", None),
            "exactly one of tidemill:spec and tidemill:plan must be set; both are set; "
            "pulumi config set tidemill:plan PLAN.json, or tidemill:spec SPEC",
        ),
        (
            (None, "b", "a"),
            "tidemill:previous must come with tidemill:spec; a plan is not planned again; "
            "pulumi config rm tidemill:previous",
        ),
        (
            (None, "b", None, '["a"]'),
            "tidemill:overlays must come with tidemill:spec; a plan is not planned again; "
            "pulumi config rm tidemill:overlays",
        ),
    ],
)
def test_settings_that_exclude_each_other_are_refused(values, message):
    """R301, R302: in one line, before any file is read."""
    with pytest.raises(CallError) as error:
        configured_plan(*values)

    assert [problem.message for problem in error.value.findings] == [message]


def test_a_spec_is_no_plan(plan):
    """S906: who sets tidemill:plan does not want to plan."""
    with pytest.raises(CallError) as error:
        configured_plan(None, str(DEMO_SPEC), None)

    assert error.value.findings[0].rule.startswith("S906")
