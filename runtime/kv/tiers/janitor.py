"""Keeps the folder of cached blocks within its bound: counts the bytes used, and chooses which blocks to remove.

    charge    what a file costs: its bytes, and at least MAX_BYTES / MAX_FILES, so one bound holds both
    used      the sum of charges, in the file `usage`: a writer adds to it before it writes, under the file's lock
    writing   a file that writers share a lock on from that sum until their block is there
    owner     one tenant's blocks of one block_digest
    janitor   whoever has the lock on the file `janitor`; the kernel takes it back from a dead process

A rank that starts scans nothing: it reads `usage`. Only a janitor walks the folder, when more than HIGH of the bound is
used, and removes blocks until LOW is. It also counts anew what is used, for writers that were killed between their sum
and their file. Until then `usage` is too high by a block for each of them. A block between its sum and its file would
be missed, so a count begins when there is none; if there always is one, the next walk counts. Blocks written during a
walk may be counted twice until the next.

Which blocks go: those that nobody used for a day, the oldest first, whoever owns them: a model's that was replaced, a
tenant's who left. If that is not enough, the oldest of whoever owns most, until owners who have more than the others
have equally much. So nobody can fill the folder with his own and drive out the others'. Age is the time that reading
renews (`folder.py`), so this is LRU to within half a minute. A time before 1970 or of the day after tomorrow is not one
that reading gave: such a block counts as the oldest.

A walk also removes what has a name of ours and cannot be ours, since no block can be written there: a link, which it
never follows, a socket, a folder where a block belongs, a file larger than any block. Other names stay.

Worked example: of 100 GB, A has 64, B 30 and C 5. To come from 99 down to 95, A is left with 60, B with 30, C with 5.

Locks are flock's. Linux makes them work between NFS clients, but not where a mount has `nolock`. There, two nodes may
clean up at a time and sums get lost, so more goes than must, or less until the next walk. Nobody reads a wrong block.
"""

import errno
import fcntl
import os
import shutil
import stat
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from runtime.kv.tiers.folder import PARTIAL, BlockFolder, is_hex, open_below

__all__ = ["Bound", "Janitor", "Usage"]

HIGH, LOW = 0.98, 0.95  # assumed: a walk for each 3 % of the bound that is written
UNUSED_S = 86_400.0  # assumed: tenants who come back at all do so within a day
COUNT_AGAIN_S = 3_600.0  # assumed
TELL_EVERY = 64  # removals between updates, so that a killed janitor leaves `usage` nearly right
LOCK_WAIT_S, LOCK_TRY_S = 1.0, 0.001  # the lock on `usage` is held for one addition
USED_BYTES, MOST_USED = 8, 2**62
LARGEST_FILE = 2**30  # assumed: a block of DeepSeek-V3 has 4.5 MB

Owner = tuple[str, str]  # block_digest, tenant
Ages = tuple[NDArray[np.int64], NDArray[np.int64]]  # times of use and charges of one owner's blocks, oldest first


@dataclass(frozen=True)
class Bound:
    """How many bytes and files the folder may hold."""

    max_bytes: int
    max_files: int

    def charge(self, num_bytes: int) -> int:
        """Return what a file of `num_bytes` costs: its bytes, but at least `max_bytes / max_files`.

        A bound on the sum of charges thus keeps both bounds, on bytes and on files.
        """
        return max(num_bytes, -(-self.max_bytes // self.max_files))


class Usage:
    """The sum of the charges of all files, shared by all processes. Every method raises OSError if the disk fails."""

    def __init__(self, folder: BlockFolder, bound: Bound) -> None:
        self._folder, self._bound = folder, bound

    def take(self, charge: int) -> int | None:
        """Add the charge of a file to be written. Return the new sum; None if there is no room."""
        with self._lock_file() as file:
            used = _read_usage(file) + charge
            if used > self._bound.max_bytes:
                return None
            _write(file, used)
        return used

    def change(self, charge: int) -> int:
        """Add a charge, which may be negative. Return the new sum."""
        with self._lock_file() as file:
            used = max(0, _read_usage(file) + charge)
            _write(file, used)
        return used

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold this context from a file's `take` until the file exists: it marks a write under way."""
        with self._lock_file("writing", fcntl.LOCK_SH):
            yield

    def settled(self) -> int | None:
        """Return the sum at a moment without writes under way; None if there is no such moment."""
        try:
            with self._lock_file("writing"):
                return self.change(0)
        except BlockingIOError:
            return None

    @contextmanager
    def _lock_file(self, name: str = "usage", kind: int = fcntl.LOCK_EX) -> Iterator[int]:
        with self._folder.root(create=True) as root, _opened_to_write(root, name) as file:
            until = time.monotonic() + LOCK_WAIT_S
            while not _lock(file, kind):
                if time.monotonic() > until:
                    raise BlockingIOError(errno.EAGAIN, f"somebody has locked it for {LOCK_WAIT_S:g} s", name)
                time.sleep(LOCK_TRY_S)
            yield file


class Janitor:
    """Cleans the folder up, if no other janitor does."""

    def __init__(self, folder: BlockFolder, bound: Bound, usage: Usage) -> None:
        self._folder, self._bound, self._usage = folder, bound, usage

    def clean(self, *, disk_is_full: bool = False) -> int | None:
        """Remove blocks until the folder is within its bound.

        Return how many blocks were removed; None if another janitor is at work. If the disk is full, the bound is
        lowered to the bytes in use now. Raises OSError if the disk fails.
        """
        with self._folder.root(create=True) as root, _opened_to_write(root, "janitor") as lock:
            if not _lock(lock):
                return None
            _remove_partial(root)
            used = self._usage.change(0)
            if not (disk_is_full or used > HIGH * self._bound.max_bytes or _is_due(lock)):
                return 0
            owners = self._count(root)
            num_removed = self._remove(root, self._choose(owners, disk_is_full=disk_is_full))
            os.pwrite(lock, b"\n", 0)  # the file's time is that of the last full count
            return num_removed

    def _count(self, root: int) -> dict[Owner, "_Owned"]:
        """Walk the folder and correct the sum of charges. Return each owner's files."""
        used_before = self._usage.settled()
        owners: dict[Owner, _Owned] = {}
        for owner, _, _, found in _walk_files(root):
            owned = owners.setdefault(owner, _Owned())
            owned.used_ns.append(_used_ns(found))
            owned.charges.append(self._bound.charge(found.st_size))
        if used_before is not None:
            self._usage.change(sum(sum(owned.charges) for owned in owners.values()) - used_before)
        return owners

    def _choose(self, owners: dict[Owner, "_Owned"], *, disk_is_full: bool) -> dict[Owner, int]:
        """Return owner -> time in ns: blocks last used at or before it are to be removed. Empty if there is room."""
        used = sum(sum(owned.charges) for owned in owners.values())
        limit = min(self._bound.max_bytes, used) if disk_is_full else self._bound.max_bytes
        if used <= HIGH * limit:
            return {}
        ages = {owner: _sorted(owned) for owner, owned in owners.items()}
        return choose_removals(ages, int(LOW * limit), int((time.time() - UNUSED_S) * 1e9))

    def _remove(self, root: int, until_ns: dict[Owner, int]) -> int:
        """Remove each owner's blocks last used at or before its `until_ns`. Return how many blocks were removed.

        Files that cannot be removed are skipped. Raises OSError if none could be removed.
        """
        num_removed = untold = 0
        failure = None
        for owner, folder, name, found in _walk_files(root, set(until_ns)):
            if _used_ns(found) > until_ns[owner]:
                continue
            try:
                os.unlink(name, dir_fd=folder)
            except OSError as error:
                failure = error
                continue
            num_removed += 1
            untold += self._bound.charge(found.st_size)
            if num_removed % TELL_EVERY == 0:
                self._usage.change(-untold)
                untold = 0
        self._usage.change(-untold)
        if failure is not None and not num_removed:
            raise failure
        return num_removed


def choose_removals(ages: dict[Owner, Ages], keep: int, unused_since_ns: int) -> dict[Owner, int]:
    """Return owner -> time in ns: each owner gives up its blocks last used by that time.

    Afterwards the charges sum to at most `keep`. Blocks that nobody has used since `unused_since_ns` are given up
    first, whoever owns them. Then the owners with the largest sums of charges give up their oldest blocks. Owners that
    give up nothing are left out.
    """
    excess = int(sum(charges.sum() for _, charges in ages.values())) - keep
    oldest_ns = _unused_until(ages, excess, unused_since_ns)
    num_unused = {owner: int(np.searchsorted(used_ns, oldest_ns, "right")) for owner, (used_ns, _) in ages.items()}
    left = {owner: int(charges[num_unused[owner] :].sum()) for owner, (_, charges) in ages.items()}
    level = _fair_level(list(left.values()), keep)
    until_ns = {}
    for owner, (used_ns, charges) in ages.items():
        gone = int(charges.sum()) - min(left[owner], level)
        if gone:
            until_ns[owner] = int(used_ns[np.searchsorted(np.cumsum(charges), gone)])
    return until_ns


@dataclass
class _Owned:
    """The times of use and the charges of an owner's files, in the order of the walk. Takes 16 bytes a file."""

    used_ns: "array[int]" = field(default_factory=lambda: array("q"))
    charges: "array[int]" = field(default_factory=lambda: array("q"))


def _sorted(owned: _Owned) -> Ages:
    used_ns, charges = np.array(owned.used_ns, np.int64), np.array(owned.charges, np.int64)
    order = np.argsort(used_ns, kind="stable")
    return used_ns[order], charges[order]


def _unused_until(ages: dict[Owner, Ages], excess: int, unused_since_ns: int) -> int:
    """Return the time in ns by which blocks must have been used last to be removed, so that `excess` is freed.

    Return 0 if no block is to be removed. `excess` is a sum of charges. Only blocks that nobody has used since
    `unused_since_ns` count, the oldest first, whoever owns them. If they are too few, less is freed.
    """
    if excess <= 0:
        return 0
    used_ns = np.concatenate([each for each, _ in ages.values()])
    charges = np.concatenate([each for _, each in ages.values()])
    order = np.argsort(used_ns, kind="stable")
    num_unused = int(np.searchsorted(used_ns[order], unused_since_ns))
    num_gone = min(num_unused, int(np.searchsorted(np.cumsum(charges[order]), excess)) + 1)
    return int(used_ns[order][num_gone - 1]) if num_gone else 0


def _fair_level(amounts: list[int], keep: int) -> int:
    """Return the highest level for which the `amounts`, each cut to at most that level, sum to at most `keep`."""
    for number, amount in enumerate(sorted(amounts)):
        share = keep // (len(amounts) - number)
        if amount > share:
            return share
        keep -= amount
    return max(amounts)


def _walk_files(root: int, only: set[Owner] | None = None) -> Iterator[tuple[Owner, int, str, os.stat_result]]:
    """Yield (owner, open folder, name, stat result) of every block's file, of the owners `only` if they are given.

    Folders that are empty after their files were yielded are removed.
    """
    for digest, digest_folder in _walk_folders(root):
        for tenant, tenant_folder in _walk_folders(digest_folder):
            if only is not None and (digest, tenant) not in only:
                continue
            for _, folder in _walk_folders(tenant_folder):
                for name, found in _files_in(folder):
                    yield (digest, tenant), folder, name, found


def _files_in(folder: int) -> Iterator[tuple[str, os.stat_result]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not is_hex(entry.name):
                continue
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # a reader removed it
                continue
            if stat.S_ISREG(found.st_mode) and found.st_size <= LARGEST_FILE:
                yield entry.name, found
            else:
                _remove_foreign(folder, entry.name)


def _walk_folders(folder: int) -> Iterator[tuple[str, int]]:
    """Yield (name, descriptor) of each of our folders in `folder`. A folder that is empty afterwards is removed.

    A folder that cannot be read is left out, since the others still need cleaning.
    """
    names = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if is_hex(entry.name):
                if entry.is_dir(follow_symlinks=False):
                    names.append(entry.name)
                else:
                    _remove_foreign(folder, entry.name)
    for name in names:
        with suppress(OSError), open_below(folder, name) as deeper:
            yield name, deeper
        with suppress(OSError):
            os.rmdir(name, dir_fd=folder)


def _remove_foreign(folder: int, name: str) -> None:
    """Remove what has a name of ours and is not ours, a folder with all that is in it. What cannot be removed stays."""
    with suppress(OSError, RecursionError):  # the latter from a folder a thousand levels deep
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            shutil.rmtree(name, dir_fd=folder)


def _used_ns(found: os.stat_result) -> int:
    """Return when a block was used last, in ns; 0 if its file has a time that cannot be true."""
    latest_ns = time.time_ns() + int(UNUSED_S * 1e9)  # the clocks of nodes differ
    return found.st_mtime_ns if 0 <= found.st_mtime_ns <= latest_ns else 0


def _remove_partial(root: int) -> None:
    """Remove the partial files of dead writers; a live writer holds a lock. Skip files that cannot be removed."""
    with suppress(OSError), open_below(root, PARTIAL) as folder:
        for name in os.listdir(folder):
            with suppress(OSError), _opened_to_write(folder, name) as file:
                if _lock(file):
                    os.unlink(name, dir_fd=folder)


def _is_due(lock: int) -> bool:
    """Return whether a full count is due: the lock file's time is over `COUNT_AGAIN_S` from now, or there was none."""
    found = os.fstat(lock)
    return not found.st_size or abs(time.time() - found.st_mtime) > COUNT_AGAIN_S


@contextmanager
def _opened_to_write(folder: int, name: str) -> Iterator[int]:
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    try:
        yield file
    finally:
        os.close(file)


def _lock(file: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file until it is closed, by default for this process alone. Never waits.

    Return False if another process has locked it.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_usage(usage: int) -> int:
    """Return the sum of charges in the file `usage`; 0 if the file is new or was removed."""
    return min(int.from_bytes(os.pread(usage, USED_BYTES, 0), "little"), MOST_USED)


def _write(usage: int, used: int) -> None:
    os.pwrite(usage, used.to_bytes(USED_BYTES, "little"), 0)
