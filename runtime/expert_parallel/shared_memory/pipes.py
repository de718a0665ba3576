"""Pipes between the ranks of a node, which carry one number from each to each: the smallest possible message.

A pipe leads from each rank to each other. Its reader makes it; its writer opens it under the reader's files in /proc,
and recognises it by its inode number. So the ranks have to be on one machine, as those that share memory are
(`memory.py`).

A pipe ends with the process that writes to it, whichever way that ends, and its reader is told so: a lost peer is
noticed as in the group's own collectives. Those hand every message through threads, and two ranks on two cores have no
core to spare for them.

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

    A collective, of ranks on one machine. A rank cannot have them if another's process is out of its sight.
    """
    mine = {rank: _new_reader() for rank in range(group.size) if rank != group.rank}
    own = torch.tensor([[os.getpid(), *_identify_file(mine.get(rank, -1))] for rank in range(group.size)])
    one_each = [1] * group.size
    theirs = group.all_to_all(own, one_each, one_each).tolist()
    pipes = Pipes(mine, {rank: _open_writer(*theirs[rank]) for rank in mine})
    return None if group.any(-1 in pipes.writers.values()) else pipes


class Pipes:
    """The pipes to and from each other rank; -1 where there is none."""

    def __init__(self, readers: dict[int, int], writers: dict[int, int]) -> None:
        self.readers, self.writers = readers, writers
        self._polls = {rank: select.poll() for rank in readers}
        for rank, poll in self._polls.items():
            poll.register(readers[rank], select.POLLIN)
        weakref.finalize(self, _close, [*readers.values(), *writers.values()])

    def signal(self, number: int) -> int:
        """Send `number` to every other rank, and return the time in ns. Raise PeerLost."""
        now_ns = time.monotonic_ns()
        for rank, writer in self.writers.items():
            try:
                os.write(writer, MESSAGE.pack(number, now_ns))
            except BrokenPipeError:
                raise _peer_lost(rank, "has ended") from None
        return now_ns

    def wait(self) -> tuple[int, int]:
        """Return the largest of the numbers that the others sent next, and the time of the last. Raise PeerLost."""
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
    """Return a pipe's end for reading; another rank opens the one for writing."""
    reader, writer = os.pipe()
    os.close(writer)
    return reader


def _identify_file(descriptor: int) -> tuple[int, int]:
    """Return a descriptor, and the number of its file."""
    return descriptor, -1 if descriptor < 0 else os.fstat(descriptor).st_ino


def _open_writer(pid: int, descriptor: int, number: int) -> int:
    """Return the writing end of another rank's pipe; -1 if it is out of reach, or another file has its place."""
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
