"""What runs here of what a command was given: a spec, a plan, or the name of what runs."""

import os
from pathlib import Path

from planner.plan.given import read_given
from planner.problems.errors import SpecError, Violation
from planner.spec.check import ResolvedSpec
from stacks.local.deployment import find_running, running_names
from stacks.local.record import RunFolder, running_deployments

__all__ = ["DEMO", "find_all", "find_given", "nothing_runs"]

DEMO = Path(__file__).parents[1] / "specs" / "demo.yaml"  # for commands that are given nothing


def find_given(given: Path | None) -> RunFolder | None:
    """Return what runs of the spec or plan `given`, or under that name; without it, the only deployment that runs."""
    return find_running(_name_of(given) if given else None)


def find_all(given: Path | None) -> list[RunFolder]:
    """Return what runs of the spec or plan `given`, or under that name; without it, every deployment that runs."""
    if given is None:
        return running_deployments()
    folder = find_given(given)
    return [folder] if folder else []


def nothing_runs() -> str:
    """Return what is said where nothing runs of what was asked for."""
    others = running_names()
    return f"it is not running here; running: {', '.join(others)}" if others else "nothing is running here"


def _name_of(given: Path) -> str:
    """Return the name of what runs if it is one, also beside a file or a folder that is called so.

    Otherwise return the name in a spec or a plan, for which nothing is planned. Raise SpecError.
    """
    if find_running(str(given)):
        return str(given)
    if os.path.exists(given) and not os.path.isdir(given):
        found = read_given(given)
        return found.written.name if isinstance(found, ResolvedSpec) else found.deployable.name
    others = running_names()
    what = "it is a folder" if os.path.isdir(given) else "there is no such file"
    reason = f"{what}, and nothing of that name is running here"
    fix = f"name what is running: {' or '.join(others)}" if others else "check the path"
    raise SpecError([Violation("", None, "S101 must be a readable file", reason, fix).at(str(given))])
