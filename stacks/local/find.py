"""Find deployments on this machine: by name, by spec or plan, or by the folder in which they were started.

A deployment whose supervisor was killed is found as if it ran, so that `status` can say so, and `down` close it.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from planner.plan.user_input import read_input, refuse_option
from planner.problems.errors import CallError, SpecError
from planner.problems.finding import Finding
from planner.spec.resolved import ResolvedSpec
from stacks.local.errors import LocalError
from stacks.local.run_folder import RunFolder, unusable_error

__all__ = [
    "DEMO",
    "current_folder",
    "deployment_folder",
    "find_all",
    "find_deployment",
    "find_running",
    "find_started_here",
    "nothing_runs_message",
    "running_deployments",
]

DEMO = Path(__file__).parents[1] / "specs" / "demo.yaml"  # for commands without a spec
READABLE_NAME = re.compile(r"[a-z0-9-]+")


def find_deployment(given: Path | None, overlays: Sequence[Path] = ()) -> RunFolder | None:
    """Return the running deployment of the spec, plan or name `given`.

    If `given` is None, return the only deployment that runs. Return None if there is no such deployment. Raises
    LocalError if there are several.
    """
    found = find_all(given, overlays)
    if len(found) > 1:
        rule = f"R103 several deployments run here ({', '.join(folder.name for folder in found)})"
        raise LocalError(rule, "which one is meant is not clear", "give its name, its spec or its plan")
    return found[0] if found else None


def find_all(given: Path | None, overlays: Sequence[Path] = ()) -> list[RunFolder]:
    """Return the running deployments that `given` names: a spec, a plan or a name. If `given` is None, return all.

    Overlays without a spec apply to the demo, as in `up`.
    """
    name = _deployment_name(given or DEMO, overlays) if given or overlays else None
    return sorted(running_deployments(name) + _killed_deployments(name), key=lambda folder: folder.name)


def find_started_here() -> RunFolder | None:
    """Return the only deployment that was started in the working directory; None if nothing runs on this machine.

    Raises CallError if no deployment or several were started there: to stop another one, the user must name it.
    """
    running = find_all(None)
    started_in = {folder.name: _read_start_folder(folder) for folder in running}
    here = [folder for folder in running if started_in[folder.name] == current_folder()]
    if len(here) == 1 or not running:
        return here[0] if here else None
    rule = "R127 tidemill down must be told what to stop"
    where = ", ".join(
        f"{folder.name} was started in {started_in[folder.name] or 'an unknown folder'}" for folder in running
    )
    raise CallError([Finding("", None, rule, where, f"name it: tidemill down {running[0].name}").at("tidemill down")])


def find_running(name: str) -> RunFolder | None:
    """Return the running deployment `name`; None if it does not run."""
    return next(iter(running_deployments(name)), None)


def running_deployments(name: str | None = None) -> list[RunFolder]:
    """Return this user's deployments (or only `name`) whose supervisor lives, sorted by name.

    A damaged record does not hide its deployment. Raises LocalError if the folder of records is missing or unreadable.
    """
    return [folder for folder in _folders(name) if _runs_or_is_damaged(folder)]


def deployment_folder(name: str) -> RunFolder:
    """Return the folder where the deployment `name` is recorded."""
    return RunFolder(_state_root() / name)


def current_folder() -> str:
    """Return the working directory; an empty text if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def nothing_runs_message() -> str:
    """Return the message that the requested deployment does not run. It names the deployments that do run."""
    others = _running_names()
    return f"it is not running here; running: {', '.join(others)}" if others else "nothing is running here"


def _running_names() -> list[str]:
    """Return the names of all deployments that run on this machine."""
    return [folder.name for folder in running_deployments()]


def _killed_deployments(name: str | None = None) -> list[RunFolder]:
    """Return the deployments (or only `name`) whose supervisor was killed.

    Deployments that `down` has ended since, or that run again, are left out. Raises LocalError if the folder of records
    is missing or unreadable.
    """
    return [folder for folder in _folders(name) if folder.was_killed()]


def _recorded_deployments(name: str) -> list[RunFolder]:
    """Return a list with the folder of the deployment `name`; an empty list if it never ran here.

    Raises LocalError if the folder of records is missing or unreadable.
    """
    return [folder for folder in _folders(name) if folder.has_record()]


def _folders(name: str | None) -> list[RunFolder]:
    """Return the folder of each deployment that may be recorded on this machine, or only the folder of `name`.

    Raises LocalError if the folder of records is missing or unreadable.
    """
    root = _state_root()
    try:
        paths = sorted(root.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unusable_error(root, error) from None
    return [RunFolder(path) for path in paths if READABLE_NAME.fullmatch(path.name) and name in (None, path.name)]


def _runs_or_is_damaged(folder: RunFolder) -> bool:
    try:
        return folder.is_running()
    except LocalError:  # its lock is held; reading its record raises the error
        return True


def _state_root() -> Path:
    """Return the folder where deployments are recorded. Raises LocalError if the user has no home folder.

    A relative path in the environment is ignored (XDG Base Directory Specification 0.8): with one, each working folder
    would have deployments of its own.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.local/state")  # which stays as it is where nobody knows a home folder
    if not os.path.isabs(base):
        raise unusable_error(Path(base), OSError("this user has no home folder"))
    return Path(base) / "tidemill"


def _read_start_folder(folder: RunFolder) -> str | None:
    """Return the folder in which `up` was called.

    Return None if the deployment's record does not name a folder, or is unreadable.
    """
    try:
        record = folder.read()
    except LocalError:
        return None
    return (record.started_in or None) if record else None


def _deployment_name(given: Path, overlays: Sequence[Path]) -> str:
    """Return the name of the deployment that the user means by `given`, a name or the path of a spec or plan.

    If a deployment named `given` ran here and there are no overlays, `given` is the name, even if a file is called so
    too. Otherwise the name is read from the file, without planning it. Raises SpecError if there is no readable file,
    and CallError if the file is a plan and overlays are given.
    """
    if not overlays and _recorded_deployments(str(given)):
        return str(given)
    if os.path.exists(given) and not os.path.isdir(given):
        found = read_input(given, overlays)
        if isinstance(found, ResolvedSpec):
            return found.written.name
        if overlays:
            raise refuse_option("-f", overlays[0], given)
        return found.name
    others = _running_names()
    what = "it is a folder" if os.path.isdir(given) else "there is no such file"
    reason = f"{what}, and nothing of that name is running here"
    fix = f"name what is running: {' or '.join(others)}" if others else "check the path"
    raise SpecError([Finding("", None, "S101 must be a readable file", reason, fix).at(str(given))])
