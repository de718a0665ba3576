"""The record of what runs on this machine: a folder for each deployment, with a record that its supervisor keeps true.

    $XDG_STATE_HOME/tidemill/NAME/   deployment.json   the record, replaced as a whole at every change
                                     launch/           the plan's launch files
                                     *.log             what each process said on stderr

The folder itself is locked: by the `up` that writes these files and starts the supervisor, then by the supervisor for
as long as it lives. A file could be removed while it is held, and a second supervisor would lock its successor. The
lock says whether a supervisor lives. A process number would not do: the kernel may have given it away again. So the
record has when the supervisor began as well, and a lock that anybody else holds says nothing.

A supervisor that is stopped, or hangs, holds its lock and corrects nothing. So it writes every few seconds when it
looked last, and from a record that is older nobody learns a state.

The folder is its user's alone: whoever can open it can lock it, and whoever can write the record says which process
`down` ends. Root, too, takes no folder that belongs to somebody else.
"""

import errno
import fcntl
import json
import os
import pwd
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from planner.facts.files import read_file
from stacks.local.errors import LocalError
from stacks.local.layout import SERVED_WEIGHTS
from stacks.local.played_day import DayRecord
from stacks.local.processes import GONE, STOPPED, began_at, has_ended, state_of

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = [
    "FULL",
    "ORDER",
    "GatewayRecord",
    "Record",
    "RunFolder",
    "UnitRecord",
    "killed_deployments",
    "recorded_deployments",
    "running_deployments",
    "state_root",
    "unusable",
]

ONE_AT_A_TIME = ("a deployment has one supervisor", "see tidemill status")
FOLDER = os.O_RDONLY | os.O_DIRECTORY
SILENT_S = 15.0  # assumed: a look takes seconds where gateways are slow to answer or a unit's processes to end
PROBE_GRACE_S = 1.0  # `is_running` holds the lock for a moment when nobody else does
ORDER = ("starting", "loading", "joining", "ready")  # of the states of a unit that comes up
FULL = (errno.ENOSPC, errno.EDQUOT)  # what a full disk, or a full share of it, answers
NO_FILE = (errno.EISDIR, errno.EFBIG, errno.EPIPE, errno.ELOOP)  # what reading says of what is no record's file
CUT_OFF = "ended without a word (killed, a full disk, or this machine was restarted): nothing of it runs"
READABLE_NAME = re.compile(r"[a-z0-9-]+")


@dataclass(frozen=True)
class UnitRecord:
    """One unit as its supervisor last saw it. A unit is off while the day that is played does not want it.

    `loaded` is the share of tensors that its slowest rank has loaded; `reason` says why it ended or failed,
    also while it starts again, and `starts_at` when it is started again, by time.monotonic.
    """

    name: str
    phase: str
    state: str  # starting | loading | joining | ready | draining | ended | failed | off | unknown
    ranks: int
    reason: str | None = None
    loaded: float = 0.0
    restarts: int = 0
    starts_at: float | None = None


@dataclass(frozen=True)
class GatewayRecord:
    """One of the gateways side by side. It is starting until it has ranks of every phase; `reason` says why it is down.

    `endpoint` is its address, without `/v1`; `starts_at` as a unit's.
    """

    name: str
    endpoint: str
    state: str = "starting"  # starting | ready | failed | ended | unknown
    reason: str | None = None
    restarts: int = 0
    starts_at: float | None = None


@dataclass(frozen=True)
class Record:
    """One deployment. `stages` says for each stage how many seconds after the supervisor's start it was reached."""

    name: str
    plan_digest: str
    gateways: tuple[GatewayRecord, ...]
    model: str
    units: tuple[UnitRecord, ...]
    supervisor: int = 0  # its process; 0 before there is one
    supervisor_began: int = 0  # as `began_at` has it
    stages: dict[str, float] = field(default_factory=dict)
    looked_at: float | None = field(default=None, compare=False)  # when the supervisor looked last, by time.monotonic
    trouble: str | None = None  # what the supervisor itself cannot do now
    failure: str | None = None  # why the whole deployment ended, once it has
    stopped_by: str | None = None  # the signal by which somebody ended it
    is_stopping: bool = False  # nothing new is begun; what runs may take `drain_s` to end
    drain_s: float = 0.0  # the most that its answers may take to end, once it is told to
    switches_units: bool = False  # as the plan's schedule says, though no day of it is played
    day: DayRecord | None = None  # that is played
    keys: str | None = None  # the gateways' file of API keys; None: they ask for no key
    started_in: str = ""  # the folder in which `up` was called
    weights_before: str | None = None  # with which this plan served here last; None where that is not known

    @property
    def endpoint(self) -> str:
        """The first gateway's address, without `/v1`."""
        return self.gateways[0].endpoint

    @property
    def host(self) -> str:
        """The first gateway's address alone, as `--host` has it."""
        return self.endpoint.removeprefix("http://").partition(":")[0]

    @property
    def parts(self) -> tuple[GatewayRecord | UnitRecord, ...]:
        """Whatever is started again when it ends."""
        return (*self.gateways, *self.units)

    @property
    def is_ready(self) -> bool:
        """True if every gateway has ranks, and every unit answers that is not off."""
        return all(gateway.state == "ready" for gateway in self.gateways) and all(
            unit.state in ("ready", "off") for unit in self.units
        )

    @property
    def has_failed(self) -> bool:
        """Whether a gateway, or a unit that nobody told to end, is down, or may be; or the whole deployment."""
        return self.failure is not None or any(part.state in ("failed", "unknown") for part in self.parts)

    @property
    def is_closed(self) -> bool:
        """Whether these are the supervisor's last words: it was ending everything, and nothing is left that runs."""
        return self.is_stopping and all(part.state in ("ended", "failed", "off") for part in self.parts)

    def with_gateway(self, gateway: GatewayRecord) -> "Record":
        """Return the record with one gateway replaced."""
        gateways = tuple(gateway if known.name == gateway.name else known for known in self.gateways)
        return replace(self, gateways=gateways)

    def with_unit(self, unit: UnitRecord) -> "Record":
        """Return the record with one unit replaced."""
        units = tuple(unit if known.name == unit.name else known for known in self.units)
        return replace(self, units=units)

    def with_all(self, state: str, reason: str | None = None) -> "Record":
        """Return the record with each part in that state, apart from those that are off or have failed."""
        record = self
        for gateway in self.gateways:
            if gateway.state != "failed":
                record = record.with_gateway(replace(gateway, state=state, reason=reason))
        for unit in self.units:
            if unit.state not in ("failed", "off"):
                record = record.with_unit(replace(unit, state=state, reason=reason))
        return record


class RunFolder:
    """A deployment's folder; as that of one `supervisor`, if given, whose end is the deployment's."""

    def __init__(self, path: Path, supervisor: int | None = None) -> None:
        self.path, self.supervisor = path, supervisor
        self._lock: int | None = None  # a descriptor of the folder, while it is ours

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
        """The file with the digest of the weights that this deployment serves with, or served with to its end."""
        return self.launch_folder / SERVED_WEIGHTS

    @property
    def certificates(self) -> Path:
        """The folder of the processes' certificates and keys."""
        return self.path / "tls"

    def make(self) -> None:
        """Make the folder, or take what there is, so that no other user reads it. Raise OSError and LocalError."""
        self.path.mkdir(parents=True, exist_ok=True)
        for path in (self.path.parent, self.path):
            _require_own(path)
            path.chmod(0o700)

    def read(self) -> Record | None:
        """Return the record, as far as it is still true; None where there is none of ours.

        Of a supervisor that was killed, everything has ended: the kernel ends its processes with it. Raise LocalError
        where something else stands there.
        """
        record = self._recorded()
        if record is None:
            return None
        if _was_cut_off(record):
            failure = f"its supervisor, process {record.supervisor}, {CUT_OFF}"
            return replace(record.with_all("ended"), failure=failure)
        why = _why_unknown(record)
        return record if why is None else record.with_all("unknown", why)

    def was_killed(self) -> bool:
        """Return whether the supervisor is gone, and had no time to record its end; False where that cannot be read."""
        try:
            if _strangers(self.path.parent) or _strangers(self.path):
                return False
            record = self._recorded()
        except (LocalError, OSError):
            return False
        return record is not None and _was_cut_off(record)

    def close(self) -> None:
        """Record that a killed deployment was taken down. Raise OSError and LocalError."""
        with self.locked():
            record = self.read()
            if record is not None:
                self.write(replace(record.with_all("ended"), is_stopping=True, failure=None))

    def _recorded(self) -> Record | None:
        """Return what the record says; None where there is none of ours. Raise LocalError.

        The supervisor may end between our reading and our look at it, so the last words of one that is gone are read
        again.
        """
        record = self._parsed()
        return self._parsed() if record is not None and _was_cut_off(record) else record

    def _parsed(self) -> Record | None:
        path = self.path / "deployment.json"
        try:
            record = _reader().validate_json(read_file(path))
            if not record.gateways:
                raise ValueError("a deployment has a gateway")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno not in NO_FILE:
                raise unusable(self.path, error) from None
            raise _damaged(path, error) from None
        return record if self.supervisor in (None, record.supervisor) else None

    def has_record(self) -> bool:
        """Return whether there is a record, in the folder that we hold if we hold one."""
        is_ours = self._lock is None or _is_at(self.path, self._lock)
        return is_ours and os.path.exists(self.path / "deployment.json")

    def write(self, record: Record) -> None:
        """Replace the record; a reader sees the old one or the new one. Raise OSError.

        Where the folder that we hold was removed or moved, make and hold another one.
        """
        if self._lock is not None and not _is_at(self.path, self._lock):
            self._hold_anew(self._lock)
        partial = self.path / "deployment.json.partial"
        partial.write_text(json.dumps(asdict(record), indent=1))
        partial.replace(self.path / "deployment.json")

    def is_running(self) -> bool:
        """Return whether the supervisor lives: our child, if given, or the recorded one, which holds the lock.

        Never for a folder of another user. Raise LocalError where that cannot be told.
        """
        if self.supervisor is not None:
            return not has_ended(self.supervisor)
        try:
            if _strangers(self.path.parent) or _strangers(self.path):
                return False
            with _opened(self.path) as lock:
                is_held = not _try_lock(lock)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise unusable(self.path, error) from None
        record = self.read() if is_held else None
        return record is not None and began_at(record.supervisor) == record.supervisor_began

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock, for whom we fork as well. Raise OSError, and LocalError where another process holds it."""
        deadline = time.monotonic() + PROBE_GRACE_S
        while True:
            with _opened(self.path) as lock:
                if _try_lock(lock) and _is_at(self.path, lock):
                    self._lock = lock
                    try:
                        yield
                    finally:
                        self._lock = None
                    return
            if time.monotonic() > deadline:
                raise LocalError(f"R101 {self.name} is being started or run by another process", *ONE_AT_A_TIME)
            time.sleep(PROBE_GRACE_S / 100)

    def _hold_anew(self, lock: int) -> None:
        """Make the folder again, and lock it under the same descriptor. Raise OSError where another process has it."""
        try:
            self.make()
        except LocalError as error:
            raise PermissionError(errno.EACCES, str(error)) from None
        with _opened(self.path) as new:
            if not _try_lock(new):
                raise BlockingIOError(errno.EAGAIN, f"another process holds {self.path}")
            os.dup2(new, lock, inheritable=False)


def state_root() -> Path:
    """Return the folder where deployments are recorded. Raise LocalError where nobody knows a home folder.

    A relative path does not count (XDG Base Directory Specification 0.8): every folder would have deployments of its
    own.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.local/state")  # which stays as it is where nobody knows a home folder
    if not os.path.isabs(base):
        raise unusable(Path(base), OSError("this user has no home folder"))
    return Path(base) / "tidemill"


def running_deployments(name: str | None = None) -> list[RunFolder]:
    """Return this user's deployments that have a living supervisor, by name, or the one of that name.

    One whose record is damaged is among them: it keeps nobody from the others. Raise LocalError if there is no folder.
    """
    return [folder for folder in _folders(name) if _runs_or_is_damaged(folder)]


def killed_deployments(name: str | None = None) -> list[RunFolder]:
    """Return those whose supervisor was killed, and that nobody took down or started since. Raise LocalError."""
    return [folder for folder in _folders(name) if folder.was_killed()]


def recorded_deployments(name: str) -> list[RunFolder]:
    """Return the deployment of that name that ran here once, whatever became of it. Raise LocalError."""
    return [folder for folder in _folders(name) if folder.has_record()]


def unusable(path: Path, error: OSError) -> LocalError:
    """Return the error for deployments that cannot be recorded at `path`."""
    rule = f"R110 {path} must be a folder that can be read and written"
    fix = "set XDG_STATE_HOME to a folder of yours"
    if error.errno in FULL:
        fix = "free some space, or set XDG_STATE_HOME to a folder on another disk"
    return LocalError(rule, error.strerror or str(error), fix)


def _folders(name: str | None) -> list[RunFolder]:
    """Return every folder in which a deployment may be recorded, or that of `name`. Raise LocalError."""
    root = state_root()
    try:
        paths = sorted(root.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unusable(root, error) from None
    return [RunFolder(path) for path in paths if READABLE_NAME.fullmatch(path.name) and name in (None, path.name)]


@cache
def _reader() -> "TypeAdapter[Record]":
    from pydantic import TypeAdapter  # which takes longer to load than all of this room

    return TypeAdapter(Record)


def _runs_or_is_damaged(folder: RunFolder) -> bool:
    try:
        return folder.is_running()
    except LocalError:  # its lock is held; whoever reads the record is told
        return True


def _require_own(path: Path) -> None:
    """Raise LocalError where a folder, or the link to it, belongs to another user."""
    for owner in _strangers(path):
        raise _not_ours(path, owner)


def _not_ours(path: Path, owner: str) -> LocalError:
    rule, reason = f"R120 {path} must be yours", f"it belongs to {owner}, who could put other files there"
    return LocalError(rule, reason, "set XDG_STATE_HOME to a folder of yours")


def _strangers(path: Path) -> list[str]:
    """Return who but us owns the folder or the link to it. Raise OSError."""
    owners = {path.lstat().st_uid, path.stat().st_uid} - {os.geteuid()}
    return sorted(map(_user_name, owners))


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _damaged(path: Path, error: OSError | ValueError) -> LocalError:
    """Return the error for what is no record while somebody holds the lock."""
    rule = f"R121 {path} must be the record of a deployment"
    reason = (
        error.strerror if isinstance(error, OSError) else None
    ) or "it cannot be read as one, although a process holds its lock"
    return LocalError(rule, reason, f"end the processes of that deployment, and remove {path.parent}")


def _was_cut_off(record: Record) -> bool:
    """Return whether the supervisor is gone and these are not its last words."""
    return record.supervisor != 0 and not record.is_closed and not _lives(record)


def _lives(record: Record) -> bool:
    """Return whether the supervisor lives; one that nobody has reaped yet does not."""
    number = record.supervisor
    return state_of(number) != GONE and began_at(number) == record.supervisor_began


def _why_unknown(record: Record) -> str | None:
    """Return why a supervisor that lives cannot have kept its record true; None if it has."""
    number = record.supervisor
    if not _lives(record):
        return None  # these are its last words
    if state_of(number) == STOPPED:
        return f"the supervisor, process {number}, is stopped; kill -CONT {number} lets it go on"
    silent_s = 0.0 if record.looked_at is None else time.monotonic() - record.looked_at
    if silent_s > SILENT_S:
        return f"the supervisor, process {number}, hangs or cannot write: its record is {silent_s:.0f} s old"
    return None


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a folder. Raise OSError."""
    descriptor = os.open(path, FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_at(path: Path, folder: int) -> bool:
    """Return whether the folder that we have opened is at `path`, where it was."""
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
