"""Read a file that a user named, as a whole, up to a size limit.

The file may be a pipe: `tidemill plan <(helm template ...)` waits as long as a writer has it open. A pipe without a
writer is an error, and so is endless input such as `/dev/zero`.

A spec from an untrusted author, such as a pull request, is read `only_within` the folders that its author may read. All
files that a user names are opened here, so this limit holds for every field, and for links too.
"""

import errno
import os
import select
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

MAX_FILE_BYTES = 2**26  # a plan of 10,000 nodes has a tenth of that
CHUNK_BYTES = 2**20
WRITER_GRACE_S = 5.0  # assumed: a writer started together with us has opened the pipe by then

_bounds: ContextVar[tuple[Path, ...] | None] = ContextVar("bounds", default=None)  # None: any file may be read


class _OutOfBounds(PermissionError):
    """A file lies outside the folders that may be read. The error does not tell whether the file exists."""


@contextmanager
def only_within(folders: Sequence[Path]) -> Iterator[None]:
    """Let `read_file` open only files inside the checkouts at `folders`, links resolved, while the context lasts."""
    token = _bounds.set(tuple(Path(os.path.realpath(each)) for each in folders))
    try:
        yield
    finally:
        _bounds.reset(token)


def read_file(path: Path, most_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the content of a file that a user named.

    Raises OSError if the file cannot be read, has more than `most_bytes`, is a pipe without a writer, or is outside
    the allowed folders (`only_within`).
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "no path has a null character")
    _require_within_bounds(path)
    descriptor = os.open(
        path, os.O_RDONLY | os.O_NONBLOCK
    )  # otherwise opening a pipe would wait for a writer, for ever
    try:
        content = _read_descriptor(descriptor, most_bytes + 1)
    finally:
        os.close(descriptor)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes / 2**20:g} MiB")
    return content


def read_optional_file(path: Path, most_bytes: int = MAX_FILE_BYTES) -> bytes | None:
    """Return the content of a file; None if there is neither a file nor a link at the path.

    Raises OSError as `read_file` does, and for anything that is not a file: reading a pipe would wait for a writer. A
    path that leads outside the allowed folders gets the same error whether or not something is there.
    """
    _require_within_bounds(path)
    if not os.path.lexists(path):
        return None
    if not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file")
    return read_file(path, most_bytes)


def explain_unreadable(error: OSError, base: str = "this file's folder") -> tuple[str, str]:
    """Return (reason, fix) for a file that a user named and that cannot be read. Paths are relative to `base`."""
    fix = f"give the path relative to {base}"
    if isinstance(error, _OutOfBounds):
        fix = "keep the file in the repository, and write its path here"
    return error.strerror or str(error), fix


def _require_within_bounds(path: Path) -> None:
    bounds, real = _bounds.get(), Path(os.path.realpath(path))
    if bounds is not None and not any(_is_file_of(real, each) for each in bounds):
        raise _OutOfBounds(errno.EACCES, "it is not among the checkout's files, and no others are read")


def _is_file_of(path: Path, checkout: Path) -> bool:
    """Return whether `path` is in the checkout, but not in Git's own folder, where CI keeps tokens.

    Some file systems read `.GIT` as that folder.
    """
    if not path.is_relative_to(checkout):
        return False
    return ".git" not in (part.casefold() for part in path.relative_to(checkout).parts)


def _read_descriptor(descriptor: int, most_bytes: int) -> bytes:
    """Return the content up to its end or `most_bytes`. Raises OSError for a pipe that nobody writes to."""
    writer = select.poll()
    writer.register(descriptor, select.POLLIN)
    may_wait = is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    content = bytearray()
    while len(content) < most_bytes:
        try:
            chunk = os.read(descriptor, min(CHUNK_BYTES, most_bytes - len(content)))
        except BlockingIOError:  # a writer has it open and has not written yet
            writer.poll()
            continue
        content += chunk
        if not chunk and may_wait and not content:
            writer.poll(1000 * WRITER_GRACE_S)
            may_wait = False
        elif not chunk:
            break
    if is_pipe and not content:
        raise OSError(errno.EPIPE, "nobody writes to this pipe")
    return bytes(content)
