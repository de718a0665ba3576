"""Runs scripts whose processes are the ranks of a unit and meet over gloo.

A script imports torch once and forks, which is most of the time that starting eight ranks would take.
"""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_ranks(script, size, port, *arguments, timeout_s=100):
    """Run `script SIZE PORT ARGUMENTS...`, which calls `fork_ranks`, and check that it succeeds."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name(script), *map(str, (size, port, *arguments))],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def fork_ranks(rank_main, size, *arguments):
    """Run `rank_main(rank, size, *arguments)` in a process for each rank. Exit with the first failure's status."""
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=rank_main, args=(rank, size, *arguments), daemon=True) for rank in range(size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit(max(abs(rank.exitcode) for rank in ranks))
