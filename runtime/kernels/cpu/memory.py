"""Keeps freed memory in the process for the next tensors.

In every step of prefill, and in every layer, large tensors of the same sizes come and go. glibc gives every block of
more than 32 MiB back to the system at once, and the system clears each page before its next use. That took longer than
the computation. torch has a cache for a GPU's memory, but none for a CPU's.

    kept      Blocks of any size lie in the heap, which never shrinks.
    aligned   torch begins a block at a multiple of 64 bytes. For that glibc trims a larger block at both ends, and
              keeps the trimmings as fragments. So a freed block is too small for a tensor of the same size, and the
              heap grows in every layer: in prefill of 4,096 tokens by 224 MB a step. If blocks begin at a page, the
              trimmings are mostly large enough to be joined with the block again.
    huge      Large pages, if the system gives them on request: 512 times fewer pages to clear and to look up.

torch does the last two for tensors of 2 MiB and more, if HUGE_PAGES is set when a process makes its first tensor.

The kept memory is limited because a step's memory is. Freed blocks do not always fit the next tensors, so the first few
tensors of a size still cost new pages.

Sources: mallopt(3), M_MMAP_MAX and M_TRIM_THRESHOLD; glibc `malloc/malloc.c`, _int_memalign and tcache; torch
`c10/core/impl/alloc_cpu.cpp`.
"""

import ctypes
import os

__all__ = ["HUGE_PAGES", "keep_freed_memory"]

HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"  # an environment variable
M_TRIM_THRESHOLD = -1  # malloc.h
M_MMAP_MAX = -4
LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> None:
    """Make this process reuse the memory that it frees. Call it before the first tensor is made.

    Without glibc it has no effect.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, LARGEST_INT)
    os.environ[HUGE_PAGES] = "1"
