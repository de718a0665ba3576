"""The folder that `render` writes: only its own files, all of them, no stale ones, and none that somebody changed.

`kustomization.yaml` lists what a run wrote, with the digest of each file, and starts with a line that says so: a folder
with such a file is ours to renew, any other that is not empty is refused. A file that differs from its digest was
changed since, by hand or by a merge, and is replaced only when that is asked for.

The folder keeps its plan too, which no tool applies: the next run plans near it. While nothing that is deployed differs
it stays as it is, so that a price changes no file.

The list is written first, without digests, so that an interrupted run can be repeated; and last, with them. One run at
a time writes into a folder: it locks the folder itself. That leaves no file behind, and the lock ends with the process.
"""

import errno
import fcntl
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from planner.facts.digest import digest_of_text, pretty_json
from planner.facts.files import read_file
from planner.manifests.render import KUSTOMIZATION, MARK, render_files
from planner.plan.load import PLAN_FILE, read_plan
from planner.plan.plan import Plan
from planner.plan.user_input import is_plan
from planner.problems.errors import CallError, OutputError, SpecError
from planner.problems.finding import Finding
from planner.spec.yaml import parse_document

__all__ = ["files_of", "kept_plan", "stale_files", "write_folder"]

DIGEST = r"sha256:[0-9a-f]{64}"
OF_LIST = re.compile(rf" \(({DIGEST})\)")  # in the first line
OF_FILE = re.compile(rf'^  - "(\S+)"  # ({DIGEST})$', re.M)
ANEW = "put back the file that tidemill render wrote, or render with --anew to plan as if nothing ran"
NOT_OURS = "S902 must be empty or written by tidemill render"


def kept_plan(folder: Path) -> Plan | None:
    """Return the plan that a rendered folder keeps, or None. Raises CallError for one that is wrong."""
    try:
        return read_plan(folder) if (folder / PLAN_FILE).is_file() else None
    except CallError as error:
        raise CallError([replace(each, fix=ANEW) for each in error.findings]) from None


def files_of(plan: Plan, kept: Plan | None) -> dict[str, str]:
    """Return all files of the plan's folder, which keeps a plan until now. Raises InfeasibleError as rendering does."""
    keeps = kept if kept is not None and kept.digest == plan.digest else plan.without_estimates()
    return render_files(plan) | {PLAN_FILE: pretty_json(keeps.as_json())}


def stale_files(folder: Path, files: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the files in `folder` that `write_folder` would write, change or remove.

    Raises CallError when the folder, or a file in the way, is not ours; OutputError when it cannot be read.
    """
    with _told_as_findings(folder):
        _refuse_what_is_no_folder(folder)
        ours = _files_that_are_ours(folder, files) if folder.is_dir() else set()
        return tuple(sorted(name for name in files.keys() | ours if _text_in(folder / name) != files.get(name)))


def write_folder(folder: Path, files: Mapping[str, str], *, overwrite: bool = False) -> None:
    """Make `folder` hold `files` and no file of an earlier run besides; files of others that we do not name stay.

    Raises CallError when the folder, or a file in the way, is not ours or, without `overwrite`, no longer as we wrote
    it; OutputError when it cannot be written, or another run writes into it.
    """
    with _told_as_findings(folder):
        _refuse_what_is_no_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            _renew(folder, files, overwrite=overwrite)


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


def _renew(folder: Path, files: Mapping[str, str], *, overwrite: bool) -> None:
    """Replace the last run's files in the folder, which is there. Raise CallError and OSError."""
    ours = _files_that_are_ours(folder, files)
    if not overwrite:
        _refuse_changed_files(folder, files, _list_of_last_run(folder))
    for stale in sorted(ours - files.keys()):
        (folder / stale).unlink(missing_ok=True)
    _write_list(folder, _strip_digests(files[KUSTOMIZATION]))
    for name in sorted(files.keys() - {KUSTOMIZATION}):
        _write(folder / name, files[name])
    _write_list(folder, files[KUSTOMIZATION])


def _files_that_are_ours(folder: Path, files: Mapping[str, str]) -> set[str]:
    """Return the names that the last run wrote. Raise CallError where one of `files` is in the way of another's."""
    ours = _files_in(_list_of_last_run(folder)) | _plan_in(folder)
    _refuse_foreign_files(folder, files.keys() - ours)
    return ours


def _text_in(path: Path) -> str | None:
    """Return the file's text, whatever its line ends; None where there is none."""
    return _text_of(path) if path.is_file() else None


def _list_of_last_run(folder: Path) -> str:
    """The text of the folder's kustomization.yaml, if we wrote that; empty for a folder that is empty."""
    kustomization = folder / KUSTOMIZATION
    text = _text_of(kustomization) if kustomization.is_file() else ""
    if text.startswith(MARK):
        return text
    if any(folder.iterdir()):
        raise _refused(folder, NOT_OURS, "other people's files could be overwritten")
    return ""


def _files_in(text: str) -> set[str]:
    """The names in a list of ours, its own included; what else somebody wrote there names no file of ours."""
    try:
        resources = parse_document(text, KUSTOMIZATION).data.get("resources")
    except SpecError:
        resources = None
    names = set(filter(_is_plain, resources if isinstance(resources, list) else []))
    return names | {KUSTOMIZATION} if text else set()


def _plan_in(folder: Path) -> set[str]:
    """The name of the folder's plan; of a file of that name that is none, nothing."""
    path = folder / PLAN_FILE
    return {PLAN_FILE} if path.is_file() and is_plan(_content_of(path)) else set()


def _is_plain(name: object) -> bool:
    """Whether it names a file in the folder itself."""
    return isinstance(name, str) and name not in ("", ".", "..") and Path(name).name == name and "\0" not in name


def _refuse_foreign_files(folder: Path, names: Collection[str]) -> None:
    for name in sorted(names):
        if (folder / name).exists():
            raise _refused(folder / name, NOT_OURS, "other people's files could be overwritten")


def _refuse_changed_files(folder: Path, files: Mapping[str, str], text: str) -> None:
    """Refuse what is neither as the last run wrote it nor as this one will."""
    first_line, _, rest = text.partition("\n")
    of_list = OF_LIST.search(first_line)
    changed = [KUSTOMIZATION] if of_list and of_list[1] != digest_of_text(rest) else []
    for name, digest in OF_FILE.findall(text):
        path = folder / name
        if _is_plain(name) and path.is_file():
            found = _text_of(path)
            if found != files.get(name) and digest_of_text(found) != digest:
                changed.append(name)
    if changed:
        rule, reason = (
            "S913 must be unchanged since tidemill render wrote it",
            "somebody has edited it, and the edit would be lost",
        )
        fix = "change the spec, or give --overwrite"
        raise CallError([Finding("", None, rule, reason, fix).at(str(folder / name)) for name in changed])


def _text_of(path: Path) -> str:
    """Return what a file says, whichever line ends Git or an editor gave it."""
    return _content_of(path).decode(errors="replace").replace("\r\n", "\n")


def _content_of(path: Path) -> bytes:
    """Return what is in a file. Raises CallError for one that is longer than any of ours."""
    try:
        return read_file(path)
    except OSError as error:
        raise _refused(path, NOT_OURS, error.strerror or str(error)) from None


def _strip_digests(text: str) -> str:
    return re.sub(rf"( \({DIGEST}\)|  # {DIGEST}$)", "", text, flags=re.M)


def _write_list(folder: Path, text: str) -> None:
    """Write the list as a whole or not at all: half of it would look changed by hand."""
    partial = folder / f"{KUSTOMIZATION}.partial"
    _write(partial, text)
    partial.replace(folder / KUSTOMIZATION)


def _write(path: Path, text: str) -> None:
    """Write a new file. A link of that name is replaced, and what it points to is left alone."""
    path.unlink(missing_ok=True)
    with path.open("x", encoding="utf-8", newline="\n") as file:
        file.write(text)


def _refused(path: Path, rule: str, reason: str) -> CallError:
    return CallError([Finding("", None, rule, reason, "choose another folder").at(str(path))])
