"""What the process does with memory that tensors give back.

Between two steps of prefill, and between two layers of one, the same large tensors come and go. glibc gives every block
of more than 32 MiB back to the system at once, and the system clears each page again before its next use, which took
longer than what was computed with it: torch has no cache for a CPU's memory as it has for a GPU's.

What is kept is what a step had in use; a step's size has a limit, and so has this. Whether it fits the next tensor is
glibc's luck, so the first few of a size still cost pages.

Source: mallopt(3), M_MMAP_MAX and M_TRIM_THRESHOLD.
"""

import ctypes

__all__ = ["keep_freed_memory"]

M_TRIM_THRESHOLD = -1  # malloc.h
M_MMAP_MAX = -4
LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> None:
    """Let this process use again what it has freed. Without glibc, its C library's own ways are left alone."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, LARGEST_INT)
