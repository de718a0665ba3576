"""Write the folder of a rendered plan: all its files, no stale ones, and nobody else's.

A folder whose `kustomization.yaml` begins with our stamp may be rewritten; any other folder that is not empty is
refused. Each of our files begins with the stamp (`facts/stamp.py`), so files that are no longer rendered are found.
Manifests have no digests, so that two branches can change the same one, an image here and an expert map there, and be
merged. So a file that was edited by hand looks like one that was merged, and is replaced; `find_edits` finds it.

The folder keeps its plan too, which no tool applies (`plan/spread.py`): the next run plans near it. The kept plan is
rewritten only if something that is deployed differs, so that a new price changes no file.

Each file is written as a whole or not at all, so an interrupted run can be repeated. One run at a time writes into a
folder, because it locks the folder itself. That leaves no lock file behind, and the lock ends with the process.
"""

import errno
import fcntl
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from planner.facts.files import read_file
from planner.facts.stamp import add_stamp, is_stamped
from planner.manifests.render import KUSTOMIZATION, render_files
from planner.plan.plan import Plan
from planner.plan.spread import PLAN_FOLDER, join_plan, spread_plan
from planner.problems.errors import CallError, OutputError
from planner.problems.finding import Finding

ATTRIBUTES = ".gitattributes"
FOLDED = "* linguist-generated gitlab-generated\n"  # makes GitHub and GitLab fold the files in pull requests
PARTIAL = ".partial"  # name of a file while it is being written
OTHER_NAME = (
    "give the -f of its environment. If you renamed it, that is a second deployment: keep the old spec and this folder"
    " as they are, render the new spec into a folder of its own, on nodes that the old one does not have, and remove"
    " the old one in a later change, once clients use the new one"
)
NOT_OURS = "S902 must be empty or written by tidemill render"


def kept_plan(folder: Path) -> Plan | None:
    """Return the plan that the rendered folder keeps; None if nothing was rendered into the folder yet.

    Raises CallError if the kept plan is wrong or missing: planning as if nothing ran would move units that run.
    """
    with _as_output_errors(folder):
        return join_plan(folder) if _is_rendered(folder) else None


def require_same_name(folder: Path, kept: Plan | None, plan: Plan) -> None:
    """Raise CallError if `kept`, the folder's plan, has another name or namespace than `plan`.

    Applying the folder would then end all pods of the plan `kept`.
    """
    if kept is None:
        return
    old, new = (f"{each.name} in namespace {each.kubernetes.namespace}" for each in (kept, plan))
    if old != new:
        rule, reason = f"S902 must be the folder of {new}", f"it is that of {old}"
        raise _refused(folder, rule, reason, OTHER_NAME)


def files_of(plan: Plan, kept: Plan | None) -> dict[str, str]:
    """Return name -> text of all files of the folder for `plan`.

    If `kept`, the plan that the folder has at present, deploys the same, its plan files stay as they are.

    Raises InfeasibleError if the plan cannot be rendered.
    """
    return _manifests(plan) | spread_plan(kept if kept is not None and kept.digest == plan.digest else plan)


def find_edits(folder: Path, plan: Plan) -> dict[str, str | None]:
    """Return name -> text in `folder` (None if it is missing) of each manifest that is not as the plan renders it.

    Somebody edited these manifests, a merge joined them, or another version of tidemill wrote them.
    """
    rendered = _manifests(plan)
    standing = {name: _text_of(folder / name) if (folder / name).is_file() else None for name in rendered}
    return {name: text for name, text in standing.items() if text != rendered[name]}


def require_rendered(folder: Path, plan: Plan) -> None:
    """Raise CallError if manifests in `folder` are not as its plan renders them.

    A tool that carries out the plan must do what reviewers saw, and reviewers saw the manifests.
    """
    reason = "it was edited, merged from two branches or written by another version"
    rule, fix = "S908 must agree with the plan beside it", "render its spec into the folder again"
    if wrong := [Finding("", None, rule, reason, fix).at(str(folder / name)) for name in find_edits(folder, plan)]:
        raise CallError(wrong)


def _manifests(plan: Plan) -> dict[str, str]:
    """Return name -> text of the folder's files, except the files of the plan itself."""
    return {name: add_stamp(text) for name, text in {ATTRIBUTES: FOLDED, **render_files(plan)}.items()}


def stale_files(folder: Path, files: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the files that `write_folder` would write, change or remove in `folder`.

    Raises CallError if the folder, or a file with one of the names, is not ours; OutputError if it cannot be read.
    """
    with _as_output_errors(folder):
        _refuse_what_is_no_folder(folder)
        ours = _files_that_are_ours(folder, files) if folder.is_dir() else {}
        return tuple(sorted(name for name in files.keys() | ours if ours.get(name) != files.get(name)))


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write `files` into `folder`, and remove all other files that earlier runs wrote. Other people's files stay.

    Raises CallError if the folder, or a file with one of the names, is not ours; OutputError if it cannot be
    written, or another run writes into it.
    """
    with _as_output_errors(folder):
        _refuse_what_is_no_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder):
            _replace_files(folder, files)


@contextmanager
def _as_output_errors(folder: Path) -> Iterator[None]:
    """Turn, in the `with` block, an OSError about the folder or its files into an OutputError."""
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
def _lock(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder against other runs, in a `with` block. Raises OSError if another run holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(errno.EBUSY, "another tidemill render is writing into it") from None
        except OSError:  # NFS and others cannot lock folders: there, runs are not kept apart
            pass
        yield
    finally:
        os.close(descriptor)


def _replace_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write `files` into the existing folder, and remove other files of the last run.

    Raises CallError if a file is not ours, OSError if a file cannot be written.
    """
    ours = _files_that_are_ours(folder, files)
    _write_file(folder, KUSTOMIZATION, files[KUSTOMIZATION])  # first: the folder is ours from then on
    for name in sorted(files.keys() - {KUSTOMIZATION}):
        _write_file(folder, name, files[name])
    for stale in sorted(ours.keys() - files.keys()):
        (folder / stale).unlink(missing_ok=True)


def _is_rendered(folder: Path) -> bool:
    path = folder / KUSTOMIZATION
    return (path.is_symlink() or path.is_file()) and is_stamped(_text_of(path))


def _files_that_are_ours(folder: Path, files: Mapping[str, str]) -> dict[str, str]:
    """Return name -> text, with LF line ends, of the files that the last run wrote.

    Raises CallError if the folder, or a file with one of the names in `files`, is not ours.
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
    """Return a file's text with LF line ends, since Git may have changed them. Raises CallError if it is unreadable."""
    try:
        return read_file(path).decode(errors="replace").replace("\r\n", "\n")
    except OSError as error:
        raise _refused(path, NOT_OURS, error.strerror or str(error)) from None


def _write_file(folder: Path, name: str, text: str) -> None:
    """Write a file as a whole or not at all. A link of that name is replaced, not the file that it points to."""
    partial = folder / PARTIAL
    partial.unlink(missing_ok=True)
    with partial.open("x", encoding="utf-8", newline="\n") as file:
        file.write(text)
    (folder / name).parent.mkdir(exist_ok=True)
    partial.replace(folder / name)


def _refused(path: Path, rule: str, reason: str, fix: str = "choose another folder") -> CallError:
    return CallError([Finding("", None, rule, reason, fix).at(str(path))])
