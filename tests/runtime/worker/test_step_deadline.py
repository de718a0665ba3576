"""A rank whose step does not end, ends; one that turns, or has not begun, goes on."""

from runtime.worker.pulse import Pulse
from runtime.worker.step_deadline import DEADLINE_S, LOOK_S, StepDeadline

LOOKS = int(DEADLINE_S / LOOK_S)


class Watched:
    """A loop under a deadline; `ended` counts how often it was ended."""

    def __init__(self):
        self.ended = 0
        self.pulse = Pulse()
        self._deadline = StepDeadline(self.pulse, self._end)

    def look(self, times):
        for _ in range(times):
            self._deadline.look()
        return self.ended

    def _end(self):
        self.ended += 1


def test_a_step_that_does_not_end_ends_the_rank():
    """At the deadline, not before."""
    watched = Watched()
    watched.pulse.turn()

    assert watched.look(LOOKS) == 0
    assert watched.look(1) == 1


def test_a_loop_that_turns_goes_on_for_ever():
    """Each turn begins the time anew."""
    watched = Watched()
    for _ in range(5):
        watched.pulse.turn()
        assert watched.look(LOOKS) == 0


def test_a_loop_that_has_not_begun_may_take_any_time():
    """It loads weights."""
    assert Watched().look(3 * LOOKS) == 0
