"""One rank of the demo's decode unit is slow, as on a machine that does something else besides: `status` names it."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.benchmarks.faults import Load, expected_texts
from tests.stacks.deployments import Tidemill, get_json, wait_until

STOPPED_S, RUNNING_S = 0.03, 0.015


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """A process that has a third of the time."""
    is_over = threading.Event()

    def stop_and_go() -> None:
        while not is_over.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STOPPED_S)
            os.kill(pid, signal.SIGCONT)
            time.sleep(RUNNING_S)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.mark.whole
def test_a_slow_rank_is_named_while_it_is_slow(demo: Tidemill):
    """With its node, as long as it is slow; its unit stays ready and its texts stay right."""
    report = get_json(f"http://{demo.host}:8000/readyz")
    (decode,) = [unit for unit in report["units"] if unit["phase"] == "decode"]
    rank = decode["ranks"][2]

    def reason() -> str:
        (unit,) = [unit for unit in demo.status()["units"] if unit["phase"] == "decode"]
        assert unit["state"] == "ready"
        return unit.get("reason", "")

    with Load([demo.host], expected_texts(demo.host, 2)) as load:
        with slowed(rank["pid"]):
            wait_until(lambda: reason().startswith(f"rank 2 on {rank['node']} takes "), timeout_s=60)
        wait_until(lambda: not reason(), timeout_s=60)

    assert load.findings.wrong == []
