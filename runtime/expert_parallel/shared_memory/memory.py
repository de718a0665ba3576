"""Memory that the ranks of one node share.

The first rank makes a file in memory (memfd), and tells the others its process and descriptor. They open it under
/proc, where Linux shows a process's files, and recognise it by its random name. So the memory is freed when the last
rank ends, however it ends, and the limit of /dev/shm (64 MB in a container) does not apply. A page takes memory when it
is first written.

Shared memory alone gives no order: ranks signal through pipes (`pipes.py`) that they have written.

Sources: memfd_create(2), proc_pid_fd(5).
"""

import mmap
import os
import secrets
from contextlib import suppress

import torch
from torch import Tensor

from runtime.expert_parallel.group import Group

__all__ = ["common_memory"]

NONCE_BITS = 63  # fits in one integer of a message


def common_memory(group: Group, num_bytes: int) -> Tensor | None:
    """Return `num_bytes` zero bytes that all ranks share; None on every rank if one of them cannot have them.

    A collective. A rank cannot have them if it does not see the first rank's process, because that is in another
    container. No rank can if the first rank gets no such file: the system is not Linux, forbids it, or allows none of
    this size.
    """
    nonce = secrets.randbits(NONCE_BITS)
    made = _create_file(nonce, num_bytes) if group.rank == 0 else -1
    pid, descriptor, nonce = _broadcast(group, [os.getpid(), made, nonce])
    memory = _open_memory(pid, descriptor, nonce, num_bytes)
    is_missing = group.any(memory is None)  # afterwards the first rank knows that all have opened it
    if made >= 0:
        os.close(made)
    return None if is_missing else memory


def _create_file(nonce: int, num_bytes: int) -> int:
    """Return a descriptor of a new file in memory, whose name has the group's `nonce`; -1 if the system gives none."""
    try:
        made = os.memfd_create(_unique_name(nonce))
    except (AttributeError, OSError):  # not Linux, or forbidden here
        return -1
    try:
        os.ftruncate(made, num_bytes)
    except OSError:  # larger than this process's files may be (RLIMIT_FSIZE)
        os.close(made)
        return -1
    return made


def _unique_name(nonce: int) -> str:
    """Return a unique name, even among processes with the same number on other machines."""
    return f"tidemill-{nonce:016x}"


def _broadcast(group: Group, values: list[int]) -> list[int]:
    """Return rank 0's `values` on every rank."""
    one_each = [1] * group.size
    gathered: list[list[int]] = group.all_to_all(torch.tensor([values] * group.size), one_each, one_each).tolist()
    return gathered[0]


def _open_memory(pid: int, descriptor: int, nonce: int, num_bytes: int) -> Tensor | None:
    """Return the file's memory; None if this rank cannot open it, or finds another file there."""
    with suppress(OSError):
        mine = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.readlink(f"/proc/self/fd/{mine}").startswith(f"/memfd:{_unique_name(nonce)}"):
                with torch.inference_mode(False):  # the memory outlives the step that makes it
                    return torch.frombuffer(mmap.mmap(mine, num_bytes), dtype=torch.uint8)
        finally:
            os.close(mine)
    return None
