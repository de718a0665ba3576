"""The folder that `render` writes: only its own files, all of them, and no stale ones.

A folder whose `kustomization.yaml` begins with our stamp is ours to renew; any other that is not empty is refused. Each
of our files begins with it (`facts/stamp.py`), so a file that is rendered no more is found. Manifests have no digests:
two branches that change one, an image here and an expert map there, merge. So an edit by hand looks like a merge, and
is replaced; `altered_files` names it.

The folder keeps its plan too, which no tool applies (`plan/spread.py`): the next run plans near it. While nothing that
is deployed differs it stays as it is, so that a price changes no file.

Each file is written as a whole or not at all, so an interrupted run can be repeated. One run at a time writes into a
folder: it locks the folder itself. That leaves no file behind, and the lock ends with the process.
"""

import errno
import fcntl
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from planner.facts.files import read_file
from planner.facts.stamp import is_stamped, stamped
from planner.manifests.render import KUSTOMIZATION, render_files
from planner.plan.plan import Plan
from planner.plan.spread import PLAN_FOLDER, join_plan, spread_plan
from planner.problems.errors import CallError, OutputError
from planner.problems.finding import Finding

__all__ = [
    "altered_files",
    "files_of",
    "kept_plan",
    "require_rendered",
    "require_same_name",
    "stale_files",
    "write_folder",
]

ATTRIBUTES = ".gitattributes"
FOLDED = "* linguist-generated gitlab-generated\n"  # by GitHub and GitLab, in what a pull request shows
PARTIAL = ".partial"  # what is being written
NOT_OURS = "S902 must be empty or written by tidemill render"


def kept_plan(folder: Path) -> Plan | None:
    """Return the plan that a rendered folder keeps; None where nothing was rendered yet.

    Raises CallError for a plan that is wrong, and for a folder that keeps none: planned as if nothing ran, units that
    run would move.
    """
    with _told_as_findings(folder):
        return join_plan(folder) if _is_rendered(folder) else None


def require_same_name(folder: Path, kept: Plan | None, plan: Plan) -> None:
    """Raise CallError if `folder` is of another name or namespace than the plan: all that runs would end for it."""
    if kept is None:
        return
    old, new = (f"{each.name} in namespace {each.kubernetes.namespace}" for each in (kept, plan))
    if old != new:
        rule, reason = f"S902 must be the folder of {new}", f"it is that of {old}"
        fix = "give its spec with the -f of its environment, or another folder; render --anew replaces it"
        raise _refused(folder, rule, reason, fix)


def files_of(plan: Plan, kept: Plan | None) -> dict[str, str]:
    """Return all files of the plan's folder, which keeps a plan until now. Raises InfeasibleError as rendering does."""
    return _manifests(plan) | spread_plan(kept if kept is not None and kept.digest == plan.digest else plan)


def altered_files(folder: Path, kept: Plan, files: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of manifests in `folder` that are neither as the `kept` plan renders nor as `files` will be.

    Somebody edited them, a merge joined them, or another version of tidemill wrote them.
    """
    return tuple(name for name, text in _differing(folder, kept) if text is not None and text != files.get(name))


def require_rendered(folder: Path, plan: Plan) -> None:
    """Raise CallError for manifests in `folder` that are not what its plan renders.

    Whoever carries out the plan must do what reviewers saw, and they saw manifests.
    """
    reason = "it was edited, merged from two branches or written by another version"
    rule, fix = "S908 must agree with the plan beside it", "render its spec into the folder again"
    if wrong := [Finding("", None, rule, reason, fix).at(str(folder / name)) for name, _ in _differing(folder, plan)]:
        raise CallError(wrong)


def _differing(folder: Path, plan: Plan) -> Iterator[tuple[str, str | None]]:
    """Yield name and present text of each manifest that is not as the plan renders it; None where there is none."""
    for name, text in _manifests(plan).items():
        found = _text_of(folder / name) if (folder / name).is_file() else None
        if found != text:
            yield name, found


def _manifests(plan: Plan) -> dict[str, str]:
    """Return name -> text of the files of which the folder's plan is no part."""
    return {name: stamped(text) for name, text in {ATTRIBUTES: FOLDED, **render_files(plan)}.items()}


def stale_files(folder: Path, files: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the files in `folder` that `write_folder` would write, change or remove.

    Raises CallError when the folder, or a file in the way, is not ours; OutputError when it cannot be read.
    """
    with _told_as_findings(folder):
        _refuse_what_is_no_folder(folder)
        ours = _files_that_are_ours(folder, files) if folder.is_dir() else {}
        return tuple(sorted(name for name in files.keys() | ours if ours.get(name) != files.get(name)))


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Make `folder` hold `files` and no file of an earlier run besides; files of others that we do not name stay.

    Raises CallError when the folder, or a file in the way, is not ours; OutputError when it cannot be written, or
    another run writes into it.
    """
    with _told_as_findings(folder):
        _refuse_what_is_no_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            _renew(folder, files)


@contextmanager
def _told_as_findings(folder: Path) -> Iterator[None]:
    """Turn what keeps us from the folder's files into an OutputError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            [Finding("", None, "S903 must be a writable folder", reason, "choose another").at(str(folder))]
        ) from None


def _refuse_what_is_no_folder(folder: Path) -> None:
    for path in (folder, *folder.parents):
        if path.is_symlink() and not path.exists():
            raise _refused(path, "S901 must be a folder", "it is a link that leads nowhere")
    if folder.exists() and not folder.is_dir():
        raise _refused(folder, "S901 must be a folder", "a file has that name")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other runs out of the folder. Raise OSError where one is in it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(errno.EBUSY, "another tidemill render is writing into it") from None
        except OSError:  # NFS and others lock files alone: there it is as if nobody else were writing
            pass
        yield
    finally:
        os.close(descriptor)


def _renew(folder: Path, files: Mapping[str, str]) -> None:
    """Replace the last run's files in the folder, which is there. Raise CallError and OSError."""
    ours = _files_that_are_ours(folder, files)
    _write(folder, KUSTOMIZATION, files[KUSTOMIZATION])  # first: the folder is ours from then on
    for name in sorted(files.keys() - {KUSTOMIZATION}):
        _write(folder, name, files[name])
    for stale in sorted(ours.keys() - files.keys()):
        (folder / stale).unlink(missing_ok=True)


def _is_rendered(folder: Path) -> bool:
    return (folder / KUSTOMIZATION).is_file() and is_stamped(_text_of(folder / KUSTOMIZATION))


def _files_that_are_ours(folder: Path, files: Mapping[str, str]) -> dict[str, str]:
    """Return name -> text of what the last run wrote. Raise CallError where one of `files` is in the way of another's.

    Line ends are ours, whichever Git or an editor gave the file.
    """
    if not _is_rendered(folder) and any(path.name != PARTIAL for path in folder.iterdir()):
        raise _refused(folder, NOT_OURS, "other people's files could be overwritten")
    _refuse_what_is_no_folder(folder / PLAN_FOLDER)
    if (folder / PLAN_FOLDER).is_symlink():
        raise _refused(folder / PLAN_FOLDER, "S901 must be a folder", "it is a link")
    found = {}
    for path in (*folder.iterdir(), *(folder / PLAN_FOLDER).glob("*")):
        if path.is_file() and not path.is_symlink() and path.name != PARTIAL and is_stamped(text := _text_of(path)):
            found[str(path.relative_to(folder))] = text
    _refuse_foreign_files(folder, files.keys() - found.keys())
    return found


def _refuse_foreign_files(folder: Path, names: Collection[str]) -> None:
    for name in sorted(names):
        if (folder / name).exists():
            raise _refused(folder / name, NOT_OURS, "other people's files could be overwritten")


def _text_of(path: Path) -> str:
    """Return what a file says, whichever line ends Git or an editor gave it."""
    try:
        return read_file(path).decode(errors="replace").replace("\r\n", "\n")
    except OSError as error:
        raise _refused(path, NOT_OURS, error.strerror or str(error)) from None


def _write(folder: Path, name: str, text: str) -> None:
    """Write a file as a whole or not at all. What a link points to is left alone."""
    partial = folder / PARTIAL
    partial.unlink(missing_ok=True)
    with partial.open("x", encoding="utf-8", newline="\n") as file:
        file.write(text)
    (folder / name).parent.mkdir(exist_ok=True)
    partial.replace(folder / name)


def _refused(path: Path, rule: str, reason: str, fix: str = "choose another folder") -> CallError:
    return CallError([Finding("", None, rule, reason, fix).at(str(path))])
