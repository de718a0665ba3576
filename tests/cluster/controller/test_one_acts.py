"""One of several controllers acts; it ends, goes on after what went wrong, and says what it would do."""

import threading
import time

from stacks.controller.follower import Follower
from stacks.controller.health import Health
from stacks.controller.lease import LASTS_S
from stacks.controller.loop import follow, run_round
from stacks.kube.api import Api
from stacks.kube.connection import Connection
from tests.cluster.controller.day import NAME, NAMESPACE, UNITS, at, deployment, following_as, on


def test_one_of_two_controllers_acts(custom, following, account):
    """The other takes over when the first has been silent for as long as a lease lasts."""
    other = following_as("two", account)
    now = at(10)
    assert run_round(following, now).startswith("state 06:00")

    for second in (0, LASTS_S - 1):
        assert run_round(other, now + second) == "another controller follows this deployment"
    assert run_round(other, now + LASTS_S).startswith("state 06:00")
    assert run_round(following, now + LASTS_S + 1) == "another controller follows this deployment"


def test_a_controller_that_ends_lets_go_at_once(custom, account):
    """The next one does not wait for the lease to run out."""
    said, ending = [], threading.Event()
    ended = following_as("one", account, said)

    follow(ended, ending.is_set, lambda _: ending.set(), Health())

    assert run_round(following_as("two", account), time.time()).startswith("state ")
    assert said


def test_a_controller_goes_on_after_what_went_wrong(account, custom):
    """It says each new reason once, and follows the day as soon as that can be done."""
    said, rounds = [], iter(range(4))
    lost = following_as("one", account, said)
    lost = Follower(lost.api, "nowhere", NAME, None, said.append)

    follow(lost, lambda: next(rounds) == 3, lambda _: None, Health())

    (reason,) = said
    assert "may not get deployments" in reason or "forbidden" in reason


def test_a_dry_run_says_what_it_would_do(custom, account):
    """It takes no lease and writes nothing."""
    said = []
    before = deployment(custom)

    run_round(Follower(Api(Connection(account)), NAMESPACE, NAME, None, said.append), at(12))

    assert said == [
        "would drain demo-day-decode-1: nobody needs it now",
        "would drain demo-day-prefill-1: nobody needs it now",
        "would have 0 nodes free and 0 left",
        "would keep new pods away from no node",
    ]
    assert on(custom) == set(UNITS)
    assert deployment(custom) == before
