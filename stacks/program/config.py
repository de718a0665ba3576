"""The stack's configuration: it names a spec, which is planned, or a plan, which is deployed as it is.

    tidemill:spec      path of a spec            tidemill:previous   path of a plan that the spec's plan stays near
    tidemill:plan      path of a plan, instead   tidemill:context    of the kubeconfig; without it, the current one

Paths are absolute, or from the program's folder.
"""

from pathlib import Path

from planner.compiler import plan_from
from planner.plan.load import read_plan
from planner.plan.plan import Plan
from planner.problems.errors import CallError
from planner.problems.finding import Finding

__all__ = ["configured_plan"]


def configured_plan(spec: str | None, plan: str | None, previous: str | None) -> Plan:
    """Return the plan of a stack with these values. Raises CallError if they name none."""
    match spec, plan:
        case str(), None:
            return plan_from(Path(spec), Path(previous) if previous else None)
        case None, str() if previous is None:
            return _planned(Path(plan))
        case None, str():
            rule = "R302 tidemill:previous must come with tidemill:spec"
            raise _configuration_error(rule, "a plan is not planned again", "pulumi config rm tidemill:previous")
    found = "neither is set" if spec is None else "both are set"
    fix = "pulumi config set tidemill:plan PLAN.json, or tidemill:spec SPEC"
    raise _configuration_error("R301 exactly one of tidemill:spec and tidemill:plan must be set", found, fix)


def _planned(path: Path) -> Plan:
    """Return the plan at `path`, or of the rendered folder there. Raises CallError for a spec."""
    return plan_from(path) if path.is_dir() else read_plan(path)


def _configuration_error(rule: str, reason: str, fix: str) -> CallError:
    return CallError([Finding("", None, rule, reason, fix).at("Pulumi configuration")])
