"""What a stack's configuration deploys."""

import runpy
from pathlib import Path

import numba
import pulumi
import pytest

import stacks
from planner.cli import main
from planner.problems.errors import CallError
from stacks.program import config
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

    assert configured_plan(spec, None, None) == configured_plan(None, plan, None)
    assert configured_plan(spec, None, plan).digest == configured_plan(spec, None, None).digest


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
    ],
)
def test_settings_that_exclude_each_other_are_refused(values, message):
    """R301, R302: in one line, before any file is read."""
    with pytest.raises(CallError) as error:
        configured_plan(*values)

    assert [problem.message for problem in error.value.problems] == [message]


def test_a_spec_is_no_plan(plan):
    """S906: who sets tidemill:plan does not want to plan."""
    with pytest.raises(CallError) as error:
        configured_plan(None, str(DEMO_SPEC), None)

    assert error.value.problems[0].rule.startswith("S906")


def test_the_program_tells_who_waits_for_compilation(monkeypatch, capsys):
    """`pulumi up` shows what the program says on stderr: half a minute of silence looks like a hang."""

    def compile_something(*_):
        numba.njit(lambda number: number + 1)(1)
        raise CallError([])

    monkeypatch.setattr(config, "configured_plan", compile_something)
    with pytest.raises(pulumi.RunError):
        runpy.run_path(str(Path(stacks.__file__).parent / "__main__.py"))

    assert "compiling" in capsys.readouterr().err
