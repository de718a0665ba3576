"""A checkpoint's folder and its small files. Nothing in the folder can make a rank wait, or fill its memory.

Links are followed, because in Hugging Face's cache every file of a checkpoint is one.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from runtime.errors import CheckpointError

__all__ = [
    "MAX_READ_BYTES",
    "OpenFile",
    "UnchangedFiles",
    "bytes_digest",
    "check_config_digest",
    "config_digest",
    "open_file",
    "read_bytes",
    "read_json",
    "resolve",
]

BUNDLED = "bundled:"
MAX_READ_BYTES = 100 * 2**20  # the largest file that is read whole; DeepSeek-V3's is its index, 9 MB


class OpenFile:
    """A file that stays open while it is read in parts, so that all parts come from the same file."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises CheckpointError for a FIFO, a device or a folder, and OSError if it cannot be opened.
        """
        self.path = path
        self._file = open_file(path)
        self._began = _stamp(os.fstat(self._file.fileno()))

    @property
    def num_bytes(self) -> int:
        """The size of the file when it was opened."""
        return self._began[2]

    def read_into(self, buffer: memoryview | bytearray, start: int) -> None:
        """Fill the buffer with the bytes from `start` on.

        Raises CheckpointError if there are too few or they are unreadable.
        """
        try:
            num_read = os.preadv(self._file.fileno(), [buffer], start)
        except OSError as error:
            raise CheckpointError(f"cannot read {self.path}: {error.strerror}") from None
        if num_read != memoryview(buffer).nbytes:
            raise CheckpointError(f"{self.path} became shorter while it was read")

    def first_hole(self) -> int:
        """Return the offset of the first hole in the file; its size if there is none, or if the system cannot tell."""
        with suppress(OSError):
            return os.lseek(self._file.fileno(), 0, os.SEEK_HOLE)
        return self.num_bytes

    def require_unchanged(self) -> None:
        """Raises CheckpointError if the file was written to, moved or replaced since it was opened."""
        _require_same(self.path, self._began)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class UnchangedFiles:
    """Small files that are read more than once while a rank loads, and must not change meanwhile."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Remember the files as they are now. A missing file must stay missing."""
        self._began = {path: _read_stamp(path) for path in paths}

    def require(self) -> None:
        """Raises CheckpointError if a file has changed since this object was made."""
        for path, began in self._began.items():
            _require_same(path, began)


def resolve(uri: str) -> Path:
    """Return the checkpoint's folder: `bundled:NAME` in this package, else an absolute path.

    Raises CheckpointError if there is no such folder.
    """
    package = Path(__file__).parents[1]
    folder = package / uri.removeprefix(BUNDLED) if uri.startswith(BUNDLED) else Path(uri)
    if not os.path.isdir(folder):  # unlike `Path.is_dir`, it raises no error for impossible names
        named = f" ({uri})" if uri.startswith(BUNDLED) else ""
        raise CheckpointError(f"there is no checkpoint folder {folder}{named}")
    return folder


def check_config_digest(folder: Path, digest: str | None) -> None:
    """Raises CheckpointError if the plan names a digest and the config has another."""
    found = config_digest(folder)
    if digest is not None and found != digest:
        raise CheckpointError(f"{folder / 'config.json'} is {found}, the plan was made for {digest}: plan again")


def config_digest(folder: Path) -> str:
    """Return the sha256 of the bytes of `config.json`. Raises CheckpointError if it cannot be read."""
    return file_digest(folder / "config.json")


def file_digest(path: Path) -> str:
    """Return the sha256 of all bytes of a small file. Raises CheckpointError if it cannot be read."""
    return bytes_digest(read_bytes(path))


def bytes_digest(content: bytes) -> str:
    """Return `sha256:DIGEST` of these bytes, as plans and manifests write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a checkpoint's file. Raises CheckpointError if it is unreadable or no object."""
    try:
        value = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return value


def read_bytes(path: Path) -> bytes:
    """Return all bytes of a small file. Raises CheckpointError if it is unreadable or too large."""
    try:
        with open_file(path) as file:
            content = file.read(MAX_READ_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    if len(content) > MAX_READ_BYTES:
        raise CheckpointError(f"{path} is larger than the {MAX_READ_BYTES:,} bytes that are read of such a file")
    return content


def open_file(path: Path) -> BinaryIO:
    """Open a regular file, and return it.

    Raises CheckpointError for a FIFO, a device or a folder, and OSError if it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else opening a FIFO would block
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path} is not a regular file, nor a link to one")
    return os.fdopen(descriptor, "rb")


_Stamp = tuple[int, int, int, int]  # a file's device, inode, size, and the time of its last change


def _stamp(found: os.stat_result) -> _Stamp:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read_stamp(path: Path) -> _Stamp | None:
    """Return the stamp of the file with this name; None if there is none."""
    with suppress(OSError):
        return _stamp(os.stat(path))
    return None


def _require_same(path: Path, began: _Stamp | None) -> None:
    if _read_stamp(path) != began:
        raise CheckpointError(f"{path} changed while it was read: start again once the checkpoint is whole")
