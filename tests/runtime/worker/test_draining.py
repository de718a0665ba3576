"""A node's drain ends early when its unit has lost a node."""

import signal
import subprocess
import sys

import pytest

from runtime.errors import PeerLost
from runtime.worker import draining
from runtime.worker.draining import BROKEN_S, Drain


class Unit:
    """A unit as its node sees it, with a clock that the test sets."""

    def __init__(self):
        self.is_whole = True
        self.now = 1000.0


@pytest.fixture
def unit():
    return Unit()


@pytest.fixture
def drain(unit, monkeypatch):
    """Return a drain without ranks, and restore this process's signals and timers afterwards."""
    monkeypatch.setattr(draining.signal, "signal", lambda *_: None)
    monkeypatch.setattr(draining.signal, "setitimer", lambda *_: None)
    return Drain([], 30, lambda: unit.is_whole, lambda: unit.now)


def test_a_unit_that_has_all_its_nodes_drains_however_long_a_step_takes(unit, drain):
    """While the unit has all its nodes, only the drain's timer ends it."""
    drain.begin(signal.SIGTERM, None)
    for _ in range(20):
        unit.now += 60
        drain.check()


def test_a_node_that_was_gone_before_the_signal_ends_the_drain_at_once(unit, drain):
    """If a node is gone before the signal, the drain ends at once; without a signal nothing ends."""
    drain.check()
    unit.is_whole = False
    unit.now += BROKEN_S
    drain.check()
    drain.begin(signal.SIGTERM, None)

    with pytest.raises(PeerLost, match="lost a node"):
        drain.check()


def test_a_broken_connection_that_is_made_again_costs_nothing(unit, drain):
    """A connection that is made again in time does not end the drain, however often it breaks."""
    drain.begin(signal.SIGTERM, None)
    for _ in range(5):
        unit.is_whole = True
        drain.check()
        unit.is_whole = False
        unit.now += BROKEN_S - 0.1
        drain.check()
    unit.now += 0.2

    with pytest.raises(PeerLost):
        drain.check()


NODE = """
import signal, subprocess, sys
from runtime.worker import draining
from runtime.worker.children import wait_together

class Rank:
    "A rank in a collective: it hears no SIGTERM."
    name = "rank"
    stuck = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1); time.sleep(600)"
    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "-uc", self.stuck], stdout=subprocess.PIPE)
        self.process.stdout.readline()

rank, told = Rank(), []
draining.BROKEN_S = 0.2
drain = draining.Drain([rank], 600, lambda: not told)
signal.signal(signal.SIGTERM, lambda *both: (drain.begin(*both), told.append(True)))
print("up", flush=True)
try:
    wait_together([rank], drain.check)
except Exception as error:
    print(error, rank.process.returncode, flush=True)
"""


def test_a_rank_that_hears_no_signal_is_killed_when_its_unit_lost_a_node():
    """A real rank that hears no signal is killed soon after its unit has lost a node, long before the drain's end."""
    node = subprocess.Popen([sys.executable, "-c", NODE], stdout=subprocess.PIPE, text=True)
    assert node.stdout.readline() == "up\n"
    node.terminate()
    said, _ = node.communicate(timeout=300)

    assert said == "the unit has lost a node, so its requests cannot be answered; the drain ends here -9\n"


ENDING = """
import signal
from runtime.worker.draining import Drain, end_at_once
signal.signal(signal.SIGTERM, end_at_once)
drain = Drain([], 0.01, lambda: True)
{then}
signal.pause()
"""


@pytest.mark.parametrize(
    ("then", "status", "why"),
    [
        ("drain.begin(signal.SIGTERM, None)", 128 + signal.SIGALRM, "the drain's time is over"),
        ("signal.raise_signal(signal.SIGTERM)", 128 + signal.SIGTERM, "told by SIGTERM to end at once"),
    ],
)
def test_a_node_that_ends_at_once_says_why(then, status, why):
    """A node that ends at once says why, so that no earlier log line is taken for the reason."""
    node = subprocess.run([sys.executable, "-c", ENDING.format(then=then)], capture_output=True, text=True, timeout=60)

    assert node.returncode == status
    assert node.stderr.startswith("tidemill: ")
    assert why in node.stderr
    assert len(node.stderr.splitlines()) == 1
