"""Print or write a command's output: JSON on stdout, warnings and progress on stderr, results in files."""

import argparse
import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from planner.facts.digest import pretty_json
from planner.problems.errors import CallError, OutputError
from planner.problems.finding import Finding
from planner.problems.printable import printable, without_passwords

DEVICES = Path("/dev")  # such as /dev/stdout, which is a link
FORMATS = ("html", "png", "svg", "pdf", "json")  # endings that promise a format
RED, GREEN, PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[0m"


def warn(warnings: Sequence[Finding]) -> None:
    """Print a plan's warnings to stderr, one per line."""
    for finding in warnings:
        print(f"warning: {finding}", file=sys.stderr)


def print_json(document: Any) -> None:
    """Print `document`, the whole output of `--format json`."""
    print(pretty_json(document), end="")


def print_colored(text: str, color: str, *, red: str, green: str | None = None) -> None:
    """Print a result. Text that matches the pattern `red` or `green` gets that colour, if `color` allows colours."""
    if _wants_color(color):
        for code, pattern in ((RED, red), (GREEN, green)):
            if pattern is not None:
                text = re.sub(pattern, partial(_paint, code), text)
    print(text, end="")


def _wants_color(color: str) -> bool:
    """Return whether stdout gets colours, by `--color`. Source of NO_COLOR: no-color.org."""
    if color == "auto":
        return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return color == "always"


def _paint(code: str, match: re.Match[str]) -> str:
    """Return the matched text with each line coloured, except for the line's indentation."""
    return re.sub(r"\S.*", lambda line: f"{code}{line[0]}{PLAIN}", match[0])


def errors_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the JSON document that every command prints for mistakes."""
    return {"valid": False, "errors": [finding.as_json() for finding in findings]}


def print_line(sentence: str) -> None:
    """Print a sentence of the result, escaped and without passwords: it may quote names of files."""
    print(printable(without_passwords(sentence)))


def say(sentence: str) -> None:
    """Print a message to stderr at once, escaped and without passwords: it may quote text from users or clusters."""
    print(printable(without_passwords(sentence)), file=sys.stderr, flush=True)


@contextmanager
def show_progress(work: str) -> Iterator[Callable[[str, float], None]]:
    """Show `work` and the time it has taken on a terminal while the context lasts; without a terminal, show nothing.

    The context yields a function that takes the name of a part of the work and the fraction of the work done. Once it
    is called, the time that is left at this rate is shown as well.
    """
    if not sys.stderr.isatty():
        yield lambda _, __: None
        return
    from rich.console import Console  # takes 20 ms, which every command would wait
    from rich.progress import (
        Progress,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(printable(work), total=None)

        def report(part: str, done: float) -> None:
            if len(bars.columns) == len(columns):
                bars.columns = (
                    *columns[:2],
                    TaskProgressColumn(),
                    columns[2],
                    TextColumn("left"),
                    TimeRemainingColumn(),
                )
            bars.update(task, description=printable(f"{work}: {part}" if part else work), completed=done, total=1.0)

        yield report


def require_output(
    path: Path,
    arguments: argparse.Namespace,
    read: Iterable[Path] = (),
    *,
    form: str | None = "json",
    or_else: str = "",
) -> None:
    """Require that a call may write to `path`, and reads no input there. Call it before computing the content.

    Raises CallError for an ending of another format than `form`, for a file that `arguments` name as input, or that is
    in `read`, and as `require_writable`. `form` is None if the ending decides the format. `or_else` is added to the fix
    of a wrong ending.
    """
    ending = path.suffix.lower().removeprefix(".")
    if form is not None and ending in FORMATS and ending != form:
        rule, reason = f"S904 must not end in .{ending}", f"its content would be {form.upper()}"
        raise CallError([Finding("", None, rule, reason, f"end it in .{form}{or_else}").at(str(path))])
    named = chain.from_iterable(each if isinstance(each, list) else [each] for each in vars(arguments).values())
    for other in (*named, *read):
        if isinstance(other, Path) and other is not path and _is_same_file(path, other):
            rule, reason = "S904 must be another file", f"the call reads {other}, which would be overwritten"
            raise CallError([Finding("", None, rule, reason, "choose another").at(str(path))])
    require_writable(path)


def _is_same_file(path: Path, other: Path) -> bool:
    """Return whether both paths lead to one file. Neither is opened: the other end of a pipe would notice."""
    return os.path.exists(path) and os.path.exists(other) and os.path.samefile(path, other)


def require_writable(path: Path) -> None:
    """Raise CallError if `path` is a link, and OutputError if it certainly cannot be written."""
    if path.is_symlink() and path.parent != DEVICES:
        rule, reason = "S904 must not be a link", "what it leads to may be a file of somebody else's choice"
        raise CallError([Finding("", None, rule, reason, "name that file itself, or choose another").at(str(path))])
    if path.is_dir():
        raise _unwritable(path, os.strerror(errno.EISDIR))
    if not path.parent.is_dir():
        raise _unwritable(path, os.strerror(errno.ENOTDIR if path.parent.exists() else errno.ENOENT))
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise _unwritable(path, os.strerror(errno.EACCES))


def write_result(path: Path, content: str | bytes) -> None:
    """Write `content` to the file at `path`, never through a link. Raises CallError or OutputError if that fails."""
    require_writable(path)
    try:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from None


def _unwritable(path: Path, reason: str) -> OutputError:
    return OutputError([Finding("", None, "S904 must be a writable file", reason, "choose another").at(str(path))])
