"""Reading a file that a user names: whole, and never without end.

A pipe is a file too: `tidemill plan <(helm template ...)` waits for as long as somebody has it open to write. A pipe
that nobody opens is an error, and so is what is too long: `/dev/zero` has no end.
"""

import errno
import os
import select
import stat
from pathlib import Path

__all__ = ["MAX_FILE_BYTES", "read_file"]

MAX_FILE_BYTES = 2**26  # a plan of 10,000 nodes is a tenth of it
CHUNK_BYTES = 2**20
WRITER_GRACE_S = 5.0  # assumed: whoever starts a writer beside us has started it by then


def read_file(path: Path, most_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the file's content.

    Raises OSError when it cannot be read, has more than `most_bytes`, or is a pipe that nobody writes to.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else opening a pipe waits for its writer, for ever
    try:
        content = _read(descriptor, most_bytes + 1)
    finally:
        os.close(descriptor)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes / 2**20:g} MiB")
    return content


def _read(descriptor: int, most_bytes: int) -> bytes:
    """Read until the end, and no more than `most_bytes`."""
    writer = select.poll()
    writer.register(descriptor, select.POLLIN)
    may_wait = is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    content = bytearray()
    while len(content) < most_bytes:
        try:
            chunk = os.read(descriptor, min(CHUNK_BYTES, most_bytes - len(content)))
        except BlockingIOError:  # somebody has it open, and has yet to write
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
