"""Pipes between the ranks of a node. They carry the smallest possible message: one number from each rank to each.

There is a pipe from each rank to each other one. Its reader makes it. Its writer opens it under the reader's files in
/proc, and recognises it by its inode number. So the ranks must be on one machine, like ranks that share memory
(`memory.py`).

A pipe closes when its writer's process ends, however it ends, and the reader notices: a lost peer shows as in the
group's own collectives. The group's collectives pass every message through threads, for which two ranks on two cores
have no core to spare.

Each number comes with the time when it was sent, by the machine's clock (CLOCK_MONOTONIC).

Sources: pipe(7), proc_pid_fd(5).
"""

import os
import select
import struct
import time
import weakref
from contextlib import suppress

import torch

from runtime.errors import PeerLost
from runtime.expert_parallel.group import STEP_TIMEOUT, Group

__all__ = ["Pipes", "common_pipes"]

MESSAGE = struct.Struct("=qq")  # the number, and the time


def common_pipes(group: Group) -> "Pipes | None":
    """Return this rank's pipes; None on every rank if one of them cannot have them.

    A collective of ranks on one machine. A rank cannot have pipes if it does not see another rank's process.
    """
    mine = {rank: _new_reader() for rank in range(group.size) if rank != group.rank}
    own = torch.tensor([[os.getpid(), *_identify_file(mine.get(rank, -1))] for rank in range(group.size)])
    one_each = [1] * group.size
    theirs = group.all_to_all(own, one_each, one_each).tolist()
    pipes = Pipes(mine, {rank: _open_writer(*theirs[rank]) for rank in mine})
    return None if group.any(-1 in pipes.writers.values()) else pipes


class Pipes:
    """The pipes to and from each other rank; -1 for a missing one."""

    def __init__(self, readers: dict[int, int], writers: dict[int, int]) -> None:
        self.readers, self.writers = readers, writers
        self._polls = {rank: select.poll() for rank in readers}
        for rank, poll in self._polls.items():
            poll.register(readers[rank], select.POLLIN)
        weakref.finalize(self, _close, [*readers.values(), *writers.values()])

    def signal(self, number: int) -> int:
        """Send `number` to every other rank. Return the time of sending in ns. Raises PeerLost if a rank is gone."""
        now_ns = time.monotonic_ns()
        for rank, writer in self.writers.items():
            try:
                os.write(writer, MESSAGE.pack(number, now_ns))
            except BrokenPipeError:
                raise _peer_lost(rank, "has ended") from None
        return now_ns

    def wait(self) -> tuple[int, int]:
        """Await a number from every other rank. Return (the largest number, the latest time of sending in ns).

        Raises PeerLost if a rank is gone or sends none in time.
        """
        numbers, moments_ns = zip(*map(self._next, self.readers), strict=True)
        return max(numbers), max(moments_ns)

    def _next(self, rank: int) -> tuple[int, int]:
        if not self._polls[rank].poll(STEP_TIMEOUT.total_seconds() * 1000):
            raise _peer_lost(rank, f"has said nothing for {STEP_TIMEOUT.total_seconds():g} s")
        message = os.read(self.readers[rank], MESSAGE.size)
        if not message:
            raise _peer_lost(rank, "has ended")
        number, moment_ns = MESSAGE.unpack(message)
        return number, moment_ns


def _new_reader() -> int:
    """Make a pipe, and return its reading end. Another rank opens the writing end."""
    reader, writer = os.pipe()
    os.close(writer)
    return reader


def _identify_file(descriptor: int) -> tuple[int, int]:
    """Return a descriptor and its file's inode number."""
    return descriptor, -1 if descriptor < 0 else os.fstat(descriptor).st_ino


def _open_writer(pid: int, descriptor: int, number: int) -> int:
    """Return the writing end of another rank's pipe; -1 if this rank cannot open it, or finds another file there."""
    with suppress(OSError):
        path = f"/proc/{pid}/fd/{descriptor}"
        if os.readlink(path) == f"pipe:[{number}]":
            return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    return -1


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)


def _peer_lost(rank: int, reason: str) -> PeerLost:
    return PeerLost(f"a rank of this unit is gone (rank {rank} {reason})")
