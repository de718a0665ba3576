"""When processes are started again, and what ends with what, without a deployment."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from stacks.local.layout import NodeProcess
from stacks.local.processes import GONE, ProcessGroup, process_state
from stacks.local.record import UnitRecord
from stacks.local.reports import RankReport, has_hung_rank, is_refused, update_unit
from stacks.local.restarts import MOST_S, SOUND_S, Backoff
from stacks.local.watched_group import WatchedGroup
from tests.stacks.deployments import wait_until

UNIT = UnitRecord("demo-decode-0", "decode", "ready", 2)
WAITS = [1, 2, 4, 8, 16, 32, 60, 60]


def program(name, code):
    return NodeProcess(name, "unit", (sys.executable, "-c", code))


SLEEPS = "import time; time.sleep(600)"
NOTICES = "import sys; sys.exit(75)"


def test_the_wait_doubles_up_to_a_minute():
    """A group that never serves for long waits twice as long each time."""
    backoff, waits = Backoff(), []
    for now in range(len(WAITS)):
        backoff = backoff.note_serving(now).note_end(now + SOUND_S / 2)
        waits.append(backoff.wait_s)

    assert waits == WAITS


@given(st.lists(st.integers(0, int(3 * SOUND_S)), min_size=1, max_size=12))
def test_a_group_that_served_for_a_while_begins_anew(served):
    """Whatever came before: after sound times the wait is the first one, after others twice the last or the most."""
    backoff, now, last = Backoff(), 0.0, 0.0
    for seconds in served:
        backoff = backoff.note_serving(now)
        now += seconds
        backoff = backoff.note_end(now)
        assert backoff.wait_s == (1 if seconds >= SOUND_S else min(2 * last or 1, MOST_S))
        last = backoff.wait_s


def test_a_group_ends_as_a_whole(tmp_path):
    """One is killed: its end explains the other's, which only noticed; a stopped third goes with them."""
    group = ProcessGroup("unit", [program("a", NOTICES), program("b", SLEEPS), program("c", SLEEPS)], tmp_path)
    group.start()
    _, killed, stopped = group.pids
    os.kill(stopped, signal.SIGSTOP)
    wait_until(group.is_stopped)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: (group.find_first_failure() or (0,))[0] == -signal.SIGKILL)
    status, reason = group.find_first_failure()
    group.kill()

    assert status == -signal.SIGKILL
    assert reason == f"b was killed by SIGKILL; see {tmp_path / 'b.log'}"
    assert [process_state(pid) for pid in group.pids] == [GONE] * 3


CHILD = """
import os, time
from runtime.worker.children import die_with_parent
die_with_parent(os.getppid())
print(os.getpid(), flush=True)
time.sleep(600)
"""


def test_the_children_of_a_process_are_gone_with_it(tmp_path):
    """So that what is started next finds their ports free."""
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {CHILD!r}]); time.sleep(600)"
    group = ProcessGroup("unit", [program("a", parent)], tmp_path)
    group.start()
    wait_until(lambda: (tmp_path / "a.log").read_text().endswith("\n"))
    group.kill()

    assert process_state(int((tmp_path / "a.log").read_text())) == GONE


def test_a_stopped_process_does_not_keep_a_unit_from_leaving(tmp_path, monkeypatch):
    """Its SIGTERM waits with it. Being told to leave again gives no more time."""
    monkeypatch.setattr("stacks.local.watched_group.HANGS_S", 0.1)
    watched = WatchedGroup(ProcessGroup("unit", [program("a", SLEEPS)], tmp_path))
    watched.group.start()
    os.kill(watched.group.pids[0], signal.SIGSTOP)
    wait_until(watched.group.is_stopped)

    watched.leave(600)
    first = watched.leaves_by
    watched.leave(1200)
    again = watched.leaves_by
    ended = []
    wait_until(lambda: ended.append(watched.has_left()) or ended[-1][0])

    assert again == first
    assert ended[-1] == (True, "unit did not end by itself")
    assert watched.is_off


def test_an_echo_waits_for_its_cause(tmp_path, monkeypatch):
    """A process that lost a peer is no reason yet; when no other ends in a moment, it is the reason."""
    group = ProcessGroup("unit", [program("a", NOTICES), program("b", SLEEPS)], tmp_path)
    group.start()
    wait_until(lambda: process_state(group.pids[0]) == GONE)
    at_first = group.find_first_failure()
    monkeypatch.setattr("stacks.local.processes.CAUSE_GRACE_S", 0)
    later = group.find_first_failure()
    group.kill()

    assert at_first is None
    assert later == (75, f"a ended with status 75; see {tmp_path / 'a.log'}")


def test_the_last_words_are_of_the_last_start(tmp_path):
    """The log goes on, so that the first failure can be read; its words are not taken for the next one's."""
    once = "import os; print('tidemill: broken' * (not os.path.exists('{0}'))); open('{0}', 'w'); raise SystemExit(1)"
    group = ProcessGroup("unit", [program("a", once.format(tmp_path / "was-here"))], tmp_path)
    reasons = []
    for _ in range(2):
        group.start()
        wait_until(lambda: group.find_first_failure() is not None)
        reasons.append(group.find_first_failure()[1])

    assert reasons == ["broken", f"a ended with status 1; see {tmp_path / 'a.log'}"]
    assert "tidemill: broken" in (tmp_path / "a.log").read_text()


def test_a_rank_that_was_lost_and_lives_is_told_from_one_that_is_gone():
    """The first hangs, so its unit is to be ended; the second has ended."""
    living = subprocess.Popen(["sleep", "600"])
    gone = subprocess.Popen(["true"])
    gone.wait()

    found = [
        has_hung_rank({"unit": [RankReport(state, 1.0, process.pid)]}, "unit")
        for state, process in (("lost", living), ("lost", gone), ("ready", living))
    ]
    living.kill()
    living.wait()

    assert found == [True, False, False]
    assert not has_hung_rank({}, "unit")


def test_a_unit_that_is_down_stays_so_until_every_rank_of_its_next_start_has_called():
    """The gateway shows the lost ranks of the start before until then. The reason stays until it is ready."""
    down = UnitRecord("demo-decode-0", "decode", "failed", 2, "rank 1 was killed")
    lost, loading = RankReport("lost", 1.0, 1), RankReport("loading", 0.5, 2)

    assert update_unit(down, [lost, lost]) == update_unit(down, [loading, lost]) == down
    assert update_unit(down, [loading, loading]) == UnitRecord(down.name, down.phase, "loading", 2, down.reason, 0.5)
    assert update_unit(down, [RankReport("ready", 1.0, 2)] * 2).reason is None


def test_a_unit_with_a_slow_rank_is_ready_and_says_which():
    """Nobody ends it: whether its machine is to be replaced is for people to decide."""
    slow = "rank 1 on node-0 takes 3 times as long a step as its peers"
    ranks = [RankReport("ready", 1.0, 1), RankReport("ready", 1.0, 2, slow)]

    assert update_unit(UNIT, ranks) == replace(UNIT, loaded=1.0, reason=slow)
    assert update_unit(replace(UNIT, reason=slow), ranks[:1] * 2).reason is None


def test_a_unit_that_gets_no_requests_has_failed_and_says_why():
    """Its processes go on: the gateways refuse what they loaded."""
    refused, ready = RankReport("refused", 1.0, 1, None, "it loaded other weights"), RankReport("ready", 1.0, 2)
    failed = update_unit(UNIT, [ready, refused])

    assert (failed.state, failed.reason) == ("failed", "demo-decode-0 gets no requests: it loaded other weights")
    assert is_refused({UNIT.name: [ready, refused]}, UNIT.name)
    assert not is_refused({UNIT.name: [ready, ready]}, UNIT.name)
    assert update_unit(failed, [ready, ready]).reason is None


def test_a_unit_whose_rank_is_lost_has_failed_and_is_ready_when_the_rank_calls_again():
    """A rank may be given up by mistake."""
    lost, ready = RankReport("lost", 1.0, 1), RankReport("ready", 1.0, 2)
    failed = update_unit(UNIT, [ready, lost])

    assert (failed.state, failed.reason) == ("failed", "demo-decode-0 lost 1 of its 2 ranks")
    assert update_unit(failed, [ready, ready]).state == "ready"
