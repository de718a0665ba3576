"""The stack's configuration: it names a spec, which is planned, or a plan, which is deployed as it is.

    tidemill:spec      path of a spec            tidemill:overlays   list of paths, laid over the spec in this order
    tidemill:plan      path of a plan, instead   tidemill:previous   path of a plan that the spec's plan stays near
    tidemill:context   of the kubeconfig; without it, the current one

Paths are absolute, or from the program's folder. Pulumi hands over a list as JSON.
"""

import json
from pathlib import Path

from planner.compiler import plan_from
from planner.plan.load import read_plan
from planner.plan.plan import Plan
from planner.problems.errors import CallError
from planner.problems.finding import Finding

__all__ = ["configured_plan"]


def configured_plan(
    spec: str | None, plan: str | None, previous: str | None = None, overlays: str | None = None
) -> Plan:
    """Return the plan of a stack with these values. Raises CallError if they name none."""
    match spec, plan:
        case str(), None:
            return plan_from(Path(spec), Path(previous) if previous else None, overlays=_read_overlays(overlays))
        case None, str():
            for key, value in (("previous", previous), ("overlays", overlays)):
                if value is not None:
                    rule = f"R302 tidemill:{key} must come with tidemill:spec"
                    fix = f"pulumi config rm tidemill:{key}"
                    raise _configuration_error(rule, "a plan is not planned again", fix)
            return _planned(Path(plan))
    found = "neither is set" if spec is None else "both are set"
    fix = "pulumi config set tidemill:plan PLAN.json, or tidemill:spec SPEC"
    raise _configuration_error("R301 exactly one of tidemill:spec and tidemill:plan must be set", found, fix)


def _read_overlays(text: str | None) -> list[Path]:
    """Return the paths of overlays. Raises CallError for anything but a list of texts."""
    try:
        names = json.loads(text) if text is not None else []
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(each, str) and each for each in names):
        rule, fix = "R303 tidemill:overlays must be a list of paths", "pulumi config set --path 'overlays[0]' prod.yaml"
        raise _configuration_error(rule, "later overlays are laid over earlier ones", fix)
    return [Path(each) for each in names]


def _planned(path: Path) -> Plan:
    """Return the plan at `path`, or of the rendered folder there. Raises CallError for a spec."""
    return plan_from(path) if path.is_dir() else read_plan(path)


def _configuration_error(rule: str, reason: str, fix: str) -> CallError:
    return CallError([Finding("", None, rule, reason, fix).at("Pulumi configuration")])
