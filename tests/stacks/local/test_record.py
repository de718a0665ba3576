"""The record of a deployment and the lock that says whether it lives."""

import threading

import pytest

from stacks.local.errors import LocalError
from stacks.local.record import RunFolder


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "lock").touch()
    return RunFolder(tmp_path / "demo")


def test_a_deployment_runs_while_its_lock_is_held(folder):
    """Not before, and not after."""
    before = folder.is_running()
    with folder.locked():
        during = folder.is_running()

    assert (before, during, folder.is_running()) == (False, True, False)


def test_asking_whether_it_runs_does_not_keep_it_from_starting(folder):
    """`status` in a loop beside `up`: the question holds the lock for a moment, and the supervisor waits that long."""
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            folder.is_running()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(200):
            with folder.locked():
                pass
    finally:
        done.set()
        asking.join()


def test_a_second_supervisor_is_refused(folder):
    """A deployment has one."""
    with folder.locked(), pytest.raises(LocalError, match="demo is being run by another process"), folder.locked():
        pass
