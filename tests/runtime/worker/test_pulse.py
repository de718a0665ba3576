"""A rank's pulse tells whether it moves."""

from runtime.worker.pulse import MOMENT_S, TELL_S, Pulse


class Clock:
    """A clock that the test sets."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def test_a_rank_has_started_when_its_weights_are_loaded():
    """A rank moves once its weights are loaded, however long it then waits for its peers."""
    clock = Clock()
    pulse = Pulse(clock)
    before = pulse.is_moving()
    pulse.note_weights()
    clock.now += 3600

    assert (before, pulse.is_moving()) == (False, True)


def test_a_loop_that_stands_still_is_noticed():
    """A loop stands still from a moment after its last turn until its next one."""
    clock = Clock()
    pulse = Pulse(clock)
    pulse.note_weights()
    pulse.turn()
    clock.now += MOMENT_S / 2
    soon = pulse.is_moving()
    clock.now += MOMENT_S / 2
    late = pulse.is_moving()
    pulse.turn()

    assert (soon, late, pulse.is_moving()) == (True, False, True)


def test_a_loop_that_turns_tells_so_now_and_then():
    """A repeated call is made once every `TELL_S` while the loop turns, and not while it stands."""
    clock, told = Clock(), []
    pulse = Pulse(clock)
    pulse.repeat(lambda: told.append(clock.now))
    for _ in range(100):
        clock.now += TELL_S / 20
        pulse.turn()
    clock.now += 10 * TELL_S

    assert told == [1000 + TELL_S * times for times in range(1, 6)]


def test_two_things_are_told_each_at_its_pace():
    """Two repeated calls do not affect each other's intervals."""
    clock, told = Clock(), []
    pulse = Pulse(clock)
    pulse.repeat(lambda: told.append("seldom"), 1.0)
    pulse.repeat(lambda: told.append("often"), 0.25)
    for _ in range(16):
        clock.now += 0.125
        pulse.turn()

    assert told == (["often"] * 3 + ["seldom", "often"]) * 2
