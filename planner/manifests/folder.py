"""The folder that `render` writes: only its own files, all of them, and no stale ones.

`kustomization.yaml` lists what a run wrote and starts with a line that says so: a folder with such a file is ours to
renew, any other that is not empty is refused. It is written first, so that an interrupted run can be repeated.
"""

from pathlib import Path

import yaml

from planner.manifests.render import KUSTOMIZATION
from planner.problems.errors import CallError, OutputError, Violation

__all__ = ["write_folder"]

MARK = "# Written by tidemill render"


def write_folder(folder: Path, files: dict[str, str]) -> None:
    """Make `folder` hold `files` and no file of an earlier run besides; files of others that we do not name stay.

    Raises CallError when the folder, or a file in the way, is not ours; OutputError when it cannot be written.
    """
    try:
        ours = _files_of_last_run(folder)
        _refuse_foreign_files(folder, files, ours)
        folder.mkdir(parents=True, exist_ok=True)
        for stale in sorted(ours - files.keys()):
            (folder / stale).unlink(missing_ok=True)
        for name in sorted(files, key=lambda name: (name != KUSTOMIZATION, name)):
            (folder / name).write_text(files[name], encoding="utf-8", newline="\n")
    except OSError as error:
        violation = Violation(
            "", None, "S903 must be a writable folder", error.strerror or str(error), "choose another"
        )
        raise OutputError([violation.at(str(folder))]) from None


def _files_of_last_run(folder: Path) -> set[str]:
    """The names in the folder's kustomization.yaml, if we wrote that; none for a folder that is empty or new."""
    if folder.exists() and not folder.is_dir():
        raise _refused(folder, "S901 must be a folder", "a file has that name")
    kustomization = folder / KUSTOMIZATION
    text = kustomization.read_text(encoding="utf-8", errors="replace") if kustomization.is_file() else ""
    if text.startswith(MARK):
        return {name for name in _resources(text) if Path(name).name == name} | {KUSTOMIZATION}
    if folder.exists() and any(folder.iterdir()):
        raise _refused(folder, "S902 must be empty or written by tidemill render", "files of others could be lost")
    return set()


def _resources(text: str) -> list[str]:
    try:
        resources = yaml.load(text, Loader=yaml.CSafeLoader).get("resources", [])
    except (yaml.YAMLError, AttributeError):
        return []
    return [name for name in resources if isinstance(name, str)]


def _refuse_foreign_files(folder: Path, files: dict[str, str], ours: set[str]) -> None:
    for name in sorted(files.keys() - ours):
        if (folder / name).exists():
            raise _refused(
                folder / name, "S902 must be empty or written by tidemill render", "files of others could be lost"
            )


def _refused(path: Path, rule: str, reason: str) -> CallError:
    return CallError([Violation("", None, rule, reason, "choose another folder").at(str(path))])
