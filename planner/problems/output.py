"""Write the files that a user asks a command for, and report those that cannot be written."""

import errno
import os
from pathlib import Path

from planner.problems.errors import OutputError
from planner.problems.finding import Finding


def require_writable(path: Path) -> None:
    """Raise OutputError if `path` certainly cannot be written. Call it before computing the content."""
    if path.is_dir():
        raise _unwritable(path, os.strerror(errno.EISDIR))
    if not path.parent.is_dir():
        raise _unwritable(path, os.strerror(errno.ENOTDIR if path.parent.exists() else errno.ENOENT))
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise _unwritable(path, os.strerror(errno.EACCES))


def write_result(path: Path, text: str) -> None:
    """Write `text` to the file at `path`. Raises OutputError if that fails."""
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from None


def _unwritable(path: Path, reason: str) -> OutputError:
    return OutputError([Finding("", None, "S904 must be a writable file", reason, "choose another").at(str(path))])
