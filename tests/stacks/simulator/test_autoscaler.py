"""The reactive baseline."""

from stacks.simulator.flows.autoscaler import ReactiveFleet
from stacks.simulator.flows.fleet import Load


def play(used, units=8):
    """The units that serve, minute by minute, of a fleet whose phase uses so much of them."""
    fleet = ReactiveFleet(300.0, 600.0, 0.5, {"mixed": units}, {"mixed": 2})
    return [fleet.units_at(minute, Load({"mixed": each})) for minute, each in enumerate(used)]


def test_it_stays_within_the_tolerance():
    """A load within ten per cent of the target changes nothing."""
    assert {each["mixed"].serving for each in play([0.5, 0.46, 0.54, 0.5])} == {8}


def test_it_goes_down_only_after_five_minutes():
    """The most that was desired within the window decides, and drained nodes are taken for the drain."""
    changes = [each["mixed"] for each in play([0.5] * 5 + [0.25] * 6)]

    assert [each.serving for each in changes] == [8] * 9 + [4, 4]
    assert changes[9].stopped == 4
    assert changes[9].nodes_taken == 16
    assert changes[9].nodes_on == 8


def test_it_goes_up_at_once_and_serves_after_the_warm_up():
    """New units take their nodes at once and serve ten minutes later; it at most doubles."""
    changes = [each["mixed"] for each in play([0.05] * 8 + [1.0] * 12)]

    assert changes[7].serving == 1
    assert changes[8].nodes_taken > changes[7].nodes_on
    assert changes[8].serving == 1
    assert changes[-1].serving > 1
