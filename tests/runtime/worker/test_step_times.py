"""A rank reports its own part of its steps, without its waits for peers."""

import random

import pytest

from runtime.expert_parallel.traffic import ExchangeTime
from runtime.gateway.ranks.stragglers import find_straggler
from runtime.protocol.messages import StepTime
from runtime.worker.step_times import StepTimes


class Steps:
    """Steps on the test's clock. `told` has the reported times."""

    def __init__(self):
        self.now, self.told = 0.0, []
        self._waits = ExchangeTime()
        self.times = StepTimes(self._waits, lambda: self.now)

    def step(self, own_s, waited_s):
        with self.times.step():
            self.now += own_s + waited_s
            self._waits.add(waited_s)

    def tell(self):
        self.times.tell(self.told.append)
        return self.told


def test_what_is_told_is_without_waiting():
    """The reported time excludes waits, and the first step counts in full."""
    steps = Steps()
    steps.step(0.02, 0.5)

    assert steps.tell() == [StepTime(20_000)]
    assert (steps.times.count, steps.times.seconds, steps.times.waited_s) == (1, pytest.approx(0.52), 0.5)


def test_one_long_step_in_many_is_smoothed_and_slowness_that_stays_shows():
    """One long step hardly changes the reported time; lasting slowness shows within some tens of steps."""
    steps = Steps()
    for _ in range(50):
        steps.step(0.02, 0.0)
    steps.step(0.1, 0.0)
    (once,) = steps.tell()
    for _ in range(70):
        steps.step(0.1, 0.0)
    _, always = steps.tell()

    assert once.own_us == 21_875
    assert always.own_us > 95_000


@pytest.mark.parametrize(("share", "stall_s"), [(0.02, 0.3), (0.05, 0.1), (0.1, 0.05)])
def test_stalls_of_a_busy_machine_name_hardly_anybody(share, stall_s):
    """Short stalls on a busy machine rarely make a rank count as slow."""
    ranks, draw, next_told, found = [Steps() for _ in range(4)], random.Random(0), 1.0, []
    for _ in range(3000):
        own_s = [draw.uniform(0.016, 0.024) + stall_s * draw.expovariate(1.0) * (draw.random() < share) for _ in ranks]
        for rank, own in zip(ranks, own_s, strict=True):
            rank.step(own, max(own_s) - own)
        if ranks[0].now >= next_told:
            next_told += 1.0
            found.append(find_straggler([rank.tell()[-1].own_us for rank in ranks]))

    assert len(found) > 50
    assert len(found) - found.count(None) <= len(found) / 20


@pytest.mark.parametrize("step_s", [0.01, 0.05, 0.3, 1.0, 3.0])
def test_a_rank_that_becomes_twice_as_slow_is_named_within_ten_seconds(step_s):
    """A rank that becomes twice as slow is named within ten seconds, however long its steps take."""
    ranks = [Steps() for _ in range(4)]
    for _ in range(100):
        for rank in ranks:
            rank.step(step_s, 0.0)
    slow_since, next_told, found = ranks[0].now, ranks[0].now, None
    while found is None:
        for number, rank in enumerate(ranks):
            rank.step(2 * step_s if number == 2 else step_s, 0.0 if number == 2 else step_s)
        if ranks[0].now >= next_told:
            next_told += 1.0
            found = find_straggler([rank.tell()[-1].own_us for rank in ranks])

    assert found[0] == 2
    assert ranks[0].now - slow_since <= 10.0


def test_an_idle_rank_says_nothing():
    """A rank reports no time before its first step, nor twice for one step."""
    steps = Steps()
    assert steps.tell() == []
    steps.step(0.02, 0.0)

    assert len(steps.tell()) == len(steps.tell()) == 1
