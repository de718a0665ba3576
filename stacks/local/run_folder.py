"""The folder of a deployment on this machine, with the record that its supervisor keeps true.

    $XDG_STATE_HOME/tidemill/NAME/   deployment.json   the record, replaced as a whole at every change
                                     launch/           the plan's launch files, and the units' epochs
                                     kv/               KV of prompts, where the plan keeps it on a disk
                                     *.log             what each process said on stderr

The folder itself is locked: by the `up` that writes these files and starts the supervisor, then by the supervisor for
as long as it lives. A lock file would not do: it could be removed while it is held, and a second supervisor would lock
its successor. Nor would a process number alone: the kernel reuses numbers. So the record also says when the supervisor
began, and a lock held by any other process means nothing.

A supervisor that is stopped, or hangs, holds its lock and updates nothing. So it writes every few seconds when it last
looked, and an older record is not trusted.

Only its user may open the folder: whoever can open it can lock it, and whoever can write the record decides which
process `down` ends. Root, too, refuses a folder that belongs to somebody else.
"""

import errno
import fcntl
import json
import os
import pwd
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from planner.facts.files import read_file
from stacks.local.errors import LocalError
from stacks.local.layout import SERVED_WEIGHTS
from stacks.local.processes import GONE, STOPPED, has_ended, process_state, start_ticks
from stacks.local.record import Record

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["RunFolder", "unusable_error"]

ONE_AT_A_TIME = ("a deployment has one supervisor", "see tidemill status")
FOLDER = os.O_RDONLY | os.O_DIRECTORY
SILENT_S = 15.0  # assumed: a look takes seconds where gateways are slow to answer or a unit's processes to end
PROBE_GRACE_S = 1.0  # `is_running` holds the lock for a moment
FULL = (errno.ENOSPC, errno.EDQUOT)  # the errors of a full disk, and of a full quota on it
NO_FILE = (errno.EISDIR, errno.EFBIG, errno.EPIPE, errno.ELOOP)  # the errors of reading something that is no file
CUT_OFF = "ended without a record of it (killed, a full disk, or this machine was restarted): nothing of it runs"


class RunFolder:
    """The folder of a deployment on this machine.

    If `supervisor` (a process id) is given, records of other supervisors in the folder are ignored.
    """

    def __init__(self, path: Path, supervisor: int | None = None) -> None:
        self.path, self.supervisor = path, supervisor
        self._lock: int | None = None  # the folder's descriptor, while we have it locked

    @property
    def name(self) -> str:
        """The name of the deployment."""
        return self.path.name

    @property
    def launch_folder(self) -> Path:
        """The folder of the plan's launch files."""
        return self.path / "launch"

    @property
    def served_weights(self) -> Path:
        """The file with the digest of the weights that this deployment serves, or served last."""
        return self.launch_folder / SERVED_WEIGHTS

    @property
    def kv_folder(self) -> Path:
        """The folder for KV on a disk. It stays when the deployment ends, so that the next deployment finds the KV."""
        return self.path / "kv"

    @property
    def certificates(self) -> Path:
        """The folder of the processes' certificates and keys."""
        return self.path / "tls"

    def make(self) -> None:
        """Create the folder if it does not exist, and close it to other users.

        Raises OSError if that fails, and LocalError if it belongs to another user.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        for path in (self.path.parent, self.path):
            _require_own(path)
            path.chmod(0o700)

    def read(self) -> Record | None:
        """Return the record, corrected if it is out of date.

        Return None if there is no record, or if another supervisor wrote it. If the supervisor was killed, the returned
        record says that everything has ended, since the kernel ends the supervisor's processes too. Raises LocalError
        if the file is no record.
        """
        record = self._read_settled()
        if record is None:
            return None
        if _was_cut_off(record):
            failure = f"its supervisor, process {record.supervisor}, {CUT_OFF}"
            return replace(record.with_all("ended"), failure=failure)
        why = _explain_unknown(record)
        return record if why is None else record.with_all("unknown", why)

    def was_killed(self) -> bool:
        """Return whether the supervisor ended without recording its end; False if the record cannot be read."""
        try:
            if _foreign_owners(self.path.parent) or _foreign_owners(self.path):
                return False
            record = self._read_settled()
        except (LocalError, OSError):
            return False
        return record is not None and _was_cut_off(record)

    def record_stopped(self) -> None:
        """Mark the deployment as stopped in the record, in place of its supervisor, which was killed.

        Raises OSError if the record cannot be written, and LocalError if another process holds the lock.
        """
        with self.hold_lock():
            record = self.read()
            if record is not None:
                self.write(replace(record.with_all("ended"), is_stopping=True, failure=None))

    def _read_settled(self) -> Record | None:
        """Return the record as the file has it.

        Return None if the file is missing, or if another supervisor wrote it. The supervisor may end between reading
        the record and checking that it lives, so if it is gone the record is read again. Raises LocalError if the file
        is no record.
        """
        record = self._parse_record()
        return self._parse_record() if record is not None and _was_cut_off(record) else record

    def _parse_record(self) -> Record | None:
        path = self.path / "deployment.json"
        try:
            record = _reader().validate_json(read_file(path))
            if not record.gateways:
                raise ValueError("a deployment has a gateway")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno not in NO_FILE:
                raise unusable_error(self.path, error) from None
            raise _damage_error(path, error) from None
        return record if self.supervisor in (None, record.supervisor) else None

    def has_record(self) -> bool:
        """Return whether the file with the record exists; False if the folder that we locked was replaced."""
        is_ours = self._lock is None or _is_same_folder(self.path, self._lock)
        return is_ours and os.path.exists(self.path / "deployment.json")

    def write(self, record: Record) -> None:
        """Replace the record atomically. Raises OSError if it cannot be written.

        If the folder that we have locked was removed or moved, create and lock it again.
        """
        if self._lock is not None and not _is_same_folder(self.path, self._lock):
            self._recreate_locked(self._lock)
        partial = self.path / "deployment.json.partial"
        partial.write_text(json.dumps(asdict(record), indent=1))
        partial.replace(self.path / "deployment.json")

    def is_running(self) -> bool:
        """Return whether the supervisor lives.

        The supervisor is our child process `supervisor`, or else the process in the record, if a process holds
        the lock. False for another user's folder. Raises LocalError if it cannot be determined.
        """
        if self.supervisor is not None:
            return not has_ended(self.supervisor)
        try:
            if _foreign_owners(self.path.parent) or _foreign_owners(self.path):
                return False
            with _open_folder(self.path) as lock:
                is_held = not _try_lock(lock)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise unusable_error(self.path, error) from None
        record = self.read() if is_held else None
        return record is not None and start_ticks(record.supervisor) == record.supervisor_began

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the folder's lock in a `with` block; processes forked there share the lock.

        Raises OSError if the folder cannot be opened, and LocalError if another process has locked it.
        """
        deadline = time.monotonic() + PROBE_GRACE_S
        while True:
            with _open_folder(self.path) as lock:
                if _try_lock(lock) and _is_same_folder(self.path, lock):
                    self._lock = lock
                    try:
                        yield
                    finally:
                        self._lock = None
                    return
            if time.monotonic() > deadline:
                raise LocalError(f"R101 {self.name} is being started or run by another process", *ONE_AT_A_TIME)
            time.sleep(PROBE_GRACE_S / 100)

    def _recreate_locked(self, lock: int) -> None:
        """Create the removed folder again, and let the descriptor `lock` hold its lock.

        Raises OSError if another process holds it.
        """
        try:
            self.make()
        except LocalError as error:
            raise PermissionError(errno.EACCES, str(error)) from None
        with _open_folder(self.path) as new:
            if not _try_lock(new):
                raise BlockingIOError(errno.EAGAIN, f"another process holds {self.path}")
            os.dup2(new, lock, inheritable=False)


def unusable_error(path: Path, error: OSError) -> LocalError:
    """Return the error for deployments that cannot be recorded at `path`."""
    rule = f"R110 {path} must be a folder that can be read and written"
    fix = "set XDG_STATE_HOME to a folder of yours"
    if error.errno in FULL:
        fix = "free some space, or set XDG_STATE_HOME to a folder on another disk"
    return LocalError(rule, error.strerror or str(error), fix)


@cache
def _reader() -> "TypeAdapter[Record]":
    from pydantic import TypeAdapter  # which takes longer to load than all of this room

    return TypeAdapter(Record)


def _require_own(path: Path) -> None:
    """Raise LocalError if a folder, or the link to it, belongs to another user."""
    for owner in _foreign_owners(path):
        raise _owner_error(path, owner)


def _owner_error(path: Path, owner: str) -> LocalError:
    rule, reason = f"R120 {path} must be yours", f"it belongs to {owner}, who could put other files there"
    return LocalError(rule, reason, "set XDG_STATE_HOME to a folder of yours")


def _foreign_owners(path: Path) -> list[str]:
    """Return the names of other users who own the folder or the link to it.

    Raises OSError if the owners cannot be read.
    """
    owners = {path.lstat().st_uid, path.stat().st_uid} - {os.geteuid()}
    return sorted(map(_user_name, owners))


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _damage_error(path: Path, error: OSError | ValueError) -> LocalError:
    """Return the error for a record that cannot be read, in a folder that a process has locked."""
    rule = f"R121 {path} must be the record of a deployment"
    reason = (
        error.strerror if isinstance(error, OSError) else None
    ) or "it cannot be read as one, although a process holds its lock"
    return LocalError(rule, reason, f"end the processes of that deployment, and remove {path.parent}")


def _was_cut_off(record: Record) -> bool:
    """Return whether the record's supervisor is gone without having written a final record."""
    return record.supervisor != 0 and not record.is_closed and not _is_alive(record)


def _is_alive(record: Record) -> bool:
    """Return whether the record's supervisor lives; a zombie does not count."""
    number = record.supervisor
    return process_state(number) != GONE and start_ticks(number) == record.supervisor_began


def _explain_unknown(record: Record) -> str | None:
    """Return why the states in a record may be out of date: its supervisor is stopped, hangs or cannot write.

    None if they are up to date.
    """
    number = record.supervisor
    if not _is_alive(record):
        return None  # this is its final record
    if process_state(number) == STOPPED:
        return f"the supervisor, process {number}, is stopped; kill -CONT {number} lets it go on"
    silent_s = 0.0 if record.looked_at is None else time.monotonic() - record.looked_at
    if silent_s > SILENT_S:
        return f"the supervisor, process {number}, hangs or cannot write: its record is {silent_s:.0f} s old"
    return None


@contextmanager
def _open_folder(path: Path) -> Iterator[int]:
    """Open a folder and yield its descriptor. Raises OSError if it cannot be opened."""
    descriptor = os.open(path, FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_same_folder(path: Path, folder: int) -> bool:
    """Return whether the opened `folder` is still the folder at `path`."""
    try:
        return os.path.samestat(os.fstat(folder), path.stat())
    except OSError:
        return False


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
