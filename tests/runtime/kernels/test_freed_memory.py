"""Memory that tensors give back stays with the process."""

import subprocess
import sys

PROGRAM = """
import resource, torch
from runtime.kernels.cpu.memory import keep_freed_memory

keep_freed_memory()
faults = []
for _ in range(20):
    rows = torch.ones(48 * 2**20, dtype=torch.uint8)
    in_page = rows.data_ptr() % resource.getpagesize()
    del rows
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[9], in_page)
"""


def test_freed_memory_is_used_again() -> None:
    """A tensor of 48 MiB that comes and goes soon takes none of its 12,288 pages from the system, and begins a page."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, check=True)
    faults, in_page = map(int, done.stdout.split())

    assert faults < 1000
    assert in_page == 0
