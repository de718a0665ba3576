"""What runs here of what a command was given: a spec, a plan, or the name of what runs.

A deployment whose supervisor was killed is found as if it ran, so that `status` can say so, and `down` close it.
"""

import os
from pathlib import Path

from planner.plan.given import read_given
from planner.problems.errors import CallError, SpecError
from planner.problems.finding import Finding
from planner.spec.check import ResolvedSpec
from stacks.local.deployment import current_folder, running_names
from stacks.local.errors import LocalError
from stacks.local.record import RunFolder, killed_deployments, recorded_deployments, running_deployments

__all__ = ["DEMO", "find_all", "find_given", "find_started_here", "nothing_runs"]

DEMO = Path(__file__).parents[1] / "specs" / "demo.yaml"  # for commands that are given nothing


def find_given(given: Path | None) -> RunFolder | None:
    """Return what runs of the spec or plan `given`, or under that name; without it, the only deployment that runs."""
    found = find_all(given)
    if len(found) > 1:
        rule = f"R103 several deployments run here ({', '.join(folder.name for folder in found)})"
        raise LocalError(rule, "which one is meant is not clear", "give its name, its spec or its plan")
    return found[0] if found else None


def find_all(given: Path | None) -> list[RunFolder]:
    """Return what runs of the spec or plan `given`, or under that name; without it, every deployment that runs."""
    name = _name_of(given) if given else None
    return sorted(running_deployments(name) + killed_deployments(name), key=lambda folder: folder.name)


def find_started_here() -> RunFolder | None:
    """Return the only deployment that was started in this folder; None where nothing runs at all.

    Raise CallError where none or several were: nobody ends what somebody else started without naming it.
    """
    running = find_all(None)
    started_in = {folder.name: _started_in(folder) for folder in running}
    here = [folder for folder in running if started_in[folder.name] == current_folder()]
    if len(here) == 1 or not running:
        return here[0] if here else None
    rule = "R127 tidemill down must be told what to stop"
    where = ", ".join(
        f"{folder.name} was started in {started_in[folder.name] or 'an unknown folder'}" for folder in running
    )
    raise CallError([Finding("", None, rule, where, f"name it: tidemill down {running[0].name}").at("tidemill down")])


def nothing_runs() -> str:
    """Return what is said where nothing runs of what was asked for."""
    others = running_names()
    return f"it is not running here; running: {', '.join(others)}" if others else "nothing is running here"


def _started_in(folder: RunFolder) -> str | None:
    """Return in which folder `up` was called; None of a record that does not say it, or cannot be read."""
    try:
        record = folder.read()
    except LocalError:
        return None
    return (record.started_in or None) if record else None


def _name_of(given: Path) -> str:
    """Return the name of what ran here if it is one, also beside a file or a folder that is called so.

    Otherwise return the name in a spec or a plan, for which nothing is planned. Raise SpecError.
    """
    if recorded_deployments(str(given)):
        return str(given)
    if os.path.exists(given) and not os.path.isdir(given):
        found = read_given(given)
        return found.written.name if isinstance(found, ResolvedSpec) else found.name
    others = running_names()
    what = "it is a folder" if os.path.isdir(given) else "there is no such file"
    reason = f"{what}, and nothing of that name is running here"
    fix = f"name what is running: {' or '.join(others)}" if others else "check the path"
    raise SpecError([Finding("", None, "S101 must be a readable file", reason, fix).at(str(given))])
