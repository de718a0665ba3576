"""Reading a file that a user names: whole, and never without end. A pipe is a file too, and `/dev/zero` has no end."""

import errno
from pathlib import Path

__all__ = ["MAX_FILE_BYTES", "read_file"]

MAX_FILE_BYTES = 2**26  # a plan of 10,000 nodes is a tenth of it


def read_file(path: Path, most_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the file's content. Raises OSError when it cannot be read, or has more than `most_bytes`."""
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes / 2**20:g} MiB")
    return content
