"""A unit that is told to leave answers its requests, then its ranks end together."""

import queue
from concurrent.futures import ThreadPoolExecutor

import pytest

from runtime.expert_parallel.group import SoloGroup
from runtime.expert_parallel.traffic import ExchangeTime
from runtime.worker.leaving import Leaving
from runtime.worker.pulse import Pulse
from runtime.worker.step_times import StepTimes
from runtime.worker.worker import run_step_loop
from tests.runtime.joined_groups import joined_groups
from tests.runtime.one_rank import NO_SWITCH

NUM_RANKS = 3


class FakeGateway:
    """A gateway that dismisses a rank as soon as it drains, or never."""

    def __init__(self, *, answers=True):
        self.answers, self.said = answers, []
        self.dismissed, self.handing_over = False, False

    def say_draining(self):
        self.said.append("draining")
        self.dismissed = self.answers

    def is_dismissed(self):
        return self.dismissed

    def is_handing_over(self):
        return self.handing_over


class FakePhase:
    """A phase with a number of steps to do. `then` is called after each."""

    def __init__(self, steps, then=lambda left: None):
        self.left, self.then = steps, then

    def has_work(self):
        return self.left > 0

    def rest(self):
        """Do nothing: no work is left."""

    def step(self):
        self.left = max(0, self.left - 1)
        self.then(self.left)


@pytest.mark.parametrize("asked", range(NUM_RANKS))
@pytest.mark.parametrize("busy", range(NUM_RANKS))
def test_one_rank_that_is_asked_takes_all_along_when_their_work_is_done(asked, busy, free_port):
    """If any rank is told to leave, all ranks end together after their work, and each reports once that it drains."""
    inboxes = [queue.SimpleQueue() for _ in range(NUM_RANKS)]
    lines = [FakeGateway() for _ in range(NUM_RANKS)]
    leaving = [Leaving(line) for line in lines]
    phases = [FakePhase(20 if rank == busy else 0) for rank in range(NUM_RANKS)]
    leaving[asked].begin()

    with ThreadPoolExecutor(NUM_RANKS) as ranks:
        groups, pulses = joined_groups(NUM_RANKS, free_port()), [Pulse() for _ in range(NUM_RANKS)]
        times = [StepTimes(ExchangeTime()) for _ in range(NUM_RANKS)]
        switches = [NO_SWITCH] * NUM_RANKS
        list(ranks.map(run_step_loop, phases, groups, switches, inboxes, leaving, pulses, times))

    assert [phase.left for phase in phases] == [0] * NUM_RANKS
    assert [line.said for line in lines] == [["draining"]] * NUM_RANKS


def test_a_busy_rank_says_at_once_that_it_drains():
    """A busy rank reports at once that it drains, so that the gateway sends it no more requests."""
    inbox = queue.SimpleQueue()
    line = FakeGateway()
    leaving = Leaving(line)
    said_after = []

    def ask_in_the_middle(left):
        if left == 5:
            leaving.begin()
        said_after.append((left, list(line.said)))

    phase, times = FakePhase(8, ask_in_the_middle), StepTimes(ExchangeTime())
    run_step_loop(phase, SoloGroup(), NO_SWITCH, inbox, leaving, Pulse(), times)

    assert (4, ["draining"]) in said_after


@pytest.mark.parametrize("dismissed", [False, True])
@pytest.mark.parametrize("handing_over", [False, True])
def test_a_rank_is_free_when_nothing_is_on_its_way(dismissed, handing_over):
    """A rank is free when no gateway waits for an answer and no KV is being sent."""
    line = FakeGateway()
    line.dismissed, line.handing_over = dismissed, handing_over
    leaving = Leaving(line)

    assert leaving.is_free == (dismissed and not handing_over)
