"""Daemons end with the tests, however those end, and say what happened when they do not start."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.processes import Daemons, NotReady

ROOT = Path(__file__).parents[2]
OWNER = """
import pathlib, sys, time
from tests.cluster.processes import Daemons
Daemons(pathlib.Path(sys.argv[1])).start("sleeper", "sleep", "600")
print("started", flush=True)
time.sleep(600)
"""


def lives(pid):
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(happened):
    """Poll; a failed assert after ten seconds."""
    deadline = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_killing_the_owner_kills_its_daemons(tmp_path):
    """After a SIGKILL nobody can clean up, so the kernel does."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout.readline() == "started\n"
    pid = int((tmp_path / "sleeper.pid").read_text())
    wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")  # setpriv has done its part

    owner.send_signal(signal.SIGKILL)
    owner.communicate()

    wait_until(lambda: not lives(pid))


def test_daemons_are_gone_after_use(tmp_path):
    """Also when the test fails meanwhile; only the logs remain."""
    daemons = Daemons(tmp_path)
    pids = []

    def fail_meanwhile():
        with daemons.running():
            daemons.start("sleeper", "sleep", "600")
            pids.append(daemons.started[0].process.pid)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_meanwhile()

    assert not any(map(lives, pids))
    assert [path.name for path in tmp_path.iterdir()] == ["sleeper.log"]


def test_a_daemon_that_ends_is_reported_at_once(tmp_path):
    """With its exit status and last words, long before the deadline."""
    with Daemons(tmp_path).running() as daemons:
        daemons.start("wrong", "sh", "-c", "echo no such flag; exit 3")
        with pytest.raises(NotReady) as error:
            daemons.wait_until(lambda: False, "it is ready", timeout_s=60)

    assert str(error.value).startswith("a daemon ended before it is ready\n--- wrong, ended with status 3, ")
    assert str(error.value).endswith("no such flag")


def test_a_deadline_prints_every_log(tmp_path):
    """What was waited for, for how long, and what each daemon said last."""
    with Daemons(tmp_path).running() as daemons:
        daemons.start("slow", "sh", "-c", "echo still loading; exec sleep 600")
        daemons.wait_until(lambda: "loading" in (tmp_path / "slow.log").read_text(), "it has spoken", timeout_s=30)
        with pytest.raises(NotReady) as error:
            daemons.wait_until(lambda: False, "it is ready", timeout_s=0.1)

    assert str(error.value).startswith("not within 0.1 s: it is ready\n--- slow, running, ")
    assert str(error.value).endswith("still loading")
