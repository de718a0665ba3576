"""A rank ends if its step does not end, and goes on if it turns or has not begun."""

from runtime.worker.pulse import Pulse
from runtime.worker.step_deadline import DEADLINE_S, LOOK_S, StepDeadline

LOOKS = int(DEADLINE_S / LOOK_S)


class WatchedLoop:
    """A loop under a deadline. `ended` counts how often it was ended."""

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
    """A step ends the rank at the deadline, not before."""
    watched = WatchedLoop()
    watched.pulse.turn()

    assert watched.look(LOOKS) == 0
    assert watched.look(1) == 1


def test_a_loop_that_turns_goes_on_for_ever():
    """Each turn begins the deadline again."""
    watched = WatchedLoop()
    for _ in range(5):
        watched.pulse.turn()
        assert watched.look(LOOKS) == 0


def test_a_loop_that_has_not_begun_may_take_any_time():
    """A loop that has not begun is not ended, because its rank loads weights."""
    assert WatchedLoop().look(3 * LOOKS) == 0
