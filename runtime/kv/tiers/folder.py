"""The folder of cached blocks on a disk: the path of each block, atomic writes, and permissions.

    PATH/blocks/                            0700; all of this belongs to the tier, PATH to the operator
        usage, janitor                      see janitor.py
        partial/                            files being written, where a file system knows none without a name
        BLOCK_DIGEST/TENANT/NN/NNN...       one block a file, 0600; by its name in hex, fanned out by two digits

Names are our own hashes, in hex, so no path comes from outside. Each folder on the way is opened by itself and never
through a symbolic link, so nothing here leads out of it.

A file appears whole or not at all. It is written without a name (O_TMPFILE) and then linked, so a killed writer leaves
nothing. Some file systems have no such files, NFS for one. There it is written to `partial/` and renamed, and its
writer holds a lock on it meanwhile: what nobody holds is a dead writer's. Nothing is synced. After a power failure a
file may lack bytes; its checksum says so.

It does not know what is in a file (`block_file.py`) or which ones must go (`janitor.py`).
"""

import errno
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runtime.kv.tiers.block_file import write_parts

__all__ = ["BlockFolder", "is_hex", "open_below"]

ROOT, PARTIAL = "blocks", "partial"
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
BLOCK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # or opening a FIFO would never return
OTHERS = 0o077  # no bit of these is set
USED_AGAIN_S = 30.0  # assumed: a finer time of use is not needed, and each update is a write to the disk
NO_NAMELESS_FILES = {errno.EOPNOTSUPP, errno.EISDIR}  # EISDIR from a kernel without O_TMPFILE
HEX = re.compile(r"[0-9a-f]+")


class BlockFolder:
    """The blocks of one `block_digest` under `path`.

    Every method works on the disk, and raises OSError if that fails.
    """

    def __init__(self, path: Path, block_digest: bytes) -> None:
        self._path, self._digest = path, block_digest.hex()
        self._device: int | None = None  # device of `path` when it was first seen

    @contextmanager
    def root(self, *, create: bool = False) -> Iterator[int]:
        """Open the folder `blocks` and yield its descriptor. Raises PermissionError if other users can look into it."""
        with _close_after(os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)) as path:
            device = os.fstat(path).st_dev
            self._device = self._device or device
            may_create = create and device == self._device  # not in a mount point whose disk is absent
            with open_below(path, ROOT, create=may_create) as root:
                found = os.fstat(root)
                if found.st_uid != os.geteuid() or found.st_mode & OTHERS:
                    raise PermissionError(errno.EPERM, f"it must be user {os.geteuid()}'s alone (chmod 700)", ROOT)
                yield root

    def has(self, tenant: bytes, hashes: Sequence[bytes]) -> int:
        """Return how many of a tenant's blocks exist, up to the first that does not."""
        number = 0
        try:
            with self.root() as root, open_below(root, *self._owner(tenant)) as folder:
                for number, block_hash in enumerate(hashes):  # noqa: B007
                    os.stat("/".join(_hex_path(block_hash)), dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return number
        return len(hashes)

    @contextmanager
    def block(self, tenant: bytes, block_hash: bytes) -> Iterator[int]:
        """Open a block's file and yield its descriptor, and note that the block was used."""
        fan, leaf = _hex_path(block_hash)
        with (
            self.root() as root,
            open_below(root, *self._owner(tenant), fan) as folder,
            _close_after(os.open(leaf, BLOCK, dir_fd=folder)) as file,
        ):
            yield file
            _note_use(file)

    def publish(self, tenant: bytes, block_hash: bytes, parts: Sequence[bytes | memoryview]) -> bool:
        """Write a block's file. Return False if it exists already.

        A file system without nameless files replaces it and returns True.
        """
        try:
            return self._publish(tenant, block_hash, parts)
        except (FileNotFoundError, BlockingIOError):  # the janitor took an empty folder, or a file just before its lock
            return self._publish(tenant, block_hash, parts)

    def remove(self, tenant: bytes, block_hash: bytes) -> int | None:
        """Remove a block's file. Return its size in bytes; None if there was none."""
        fan, leaf = _hex_path(block_hash)
        try:
            with self.root() as root, open_below(root, *self._owner(tenant), fan) as folder:
                num_bytes = os.stat(leaf, dir_fd=folder, follow_symlinks=False).st_size
                os.unlink(leaf, dir_fd=folder)
        except FileNotFoundError:
            return None
        return num_bytes

    def _owner(self, tenant: bytes) -> tuple[str, str]:
        assert tenant
        return self._digest, tenant.hex()

    def _publish(self, tenant: bytes, block_hash: bytes, parts: Sequence[bytes | memoryview]) -> bool:
        fan, leaf = _hex_path(block_hash)
        with self.root(create=True) as root, open_below(root, *self._owner(tenant), fan, create=True) as folder:
            file = _open_nameless(folder)
            if file is None:
                return _write_and_rename(root, folder, leaf, parts)
            with _close_after(file):
                write_parts(file, parts)
                try:
                    os.link(f"/proc/self/fd/{file}", leaf, dst_dir_fd=folder)
                except FileExistsError:
                    return False
            return True


@contextmanager
def open_below(folder: int, *names: str, create: bool = False) -> Iterator[int]:
    """Open a folder below an open one, step by step and never through a link. With `create`, create missing ones."""
    at = os.dup(folder)
    try:
        for name in names:
            if create:
                _make(name, at)
            deeper = os.open(name, FOLDER, dir_fd=at)
            os.close(at)
            at = deeper
        yield at
    finally:
        os.close(at)


def is_hex(name: str) -> bool:
    """Return whether `name` is hexadecimal, as the names of our files and folders are."""
    return HEX.fullmatch(name) is not None


def _hex_path(block_hash: bytes) -> tuple[str, str]:
    return block_hash.hex()[:2], block_hash.hex()[2:]


def _make(name: str, folder: int) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        return


def _note_use(file: int) -> None:
    """Set a file's time of use to now, unless it is recent or may not be set.

    Raises OSError if that fails otherwise.
    """
    if time.time() - os.fstat(file).st_mtime > USED_AGAIN_S:
        try:
            os.utime(file)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EPERM, errno.EACCES):
                raise


def _open_nameless(folder: int) -> int | None:
    """Open an unnamed file (O_TMPFILE). Return None if the file system has none. Raises OSError for other failures."""
    try:
        return os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno in NO_NAMELESS_FILES:
            return None
        if not os.fstat(folder).st_nlink:  # the folder was removed: ext4 reports that as EPERM
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), ".") from error
        raise


def _write_and_rename(root: int, folder: int, leaf: str, parts: Sequence[bytes | memoryview]) -> bool:
    """Write a file in `partial/` and rename it to `leaf`. Always return True, since a file of that name is replaced."""
    partial = secrets.token_hex(16)
    with open_below(root, PARTIAL, create=True) as partials:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with _close_after(os.open(partial, flags, 0o600, dir_fd=partials)) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                write_parts(file, parts)
                os.rename(partial, leaf, src_dir_fd=partials, dst_dir_fd=folder)
            except OSError:
                _remove_partial(partials, partial)
                raise
    return True


def _remove_partial(partials: int, partial: str) -> None:
    try:
        os.unlink(partial, dir_fd=partials)
    except OSError:
        return  # the janitor removes it


@contextmanager
def _close_after(file: int) -> Iterator[int]:
    try:
        yield file
    finally:
        os.close(file)
