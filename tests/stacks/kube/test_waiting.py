"""Waiting ends at its deadline, when the user cancels, and when there is nothing left to wait for."""

import threading
import time

import pytest

from stacks.kube.waiting import Patience


def patience(timeout_s, cancelled=None, said=None):
    return Patience(timeout_s, cancelled or threading.Event(), [].append if said is None else said.append)


def test_a_wait_ends_when_nothing_is_missing():
    """Each new answer is told, and told once."""
    answers, said = ["0 of 2", "0 of 2", "1 of 2", None], []

    assert patience(60, said=said).wait_until_none(lambda: answers.pop(0)) is None
    assert said == ["0 of 2", "1 of 2"]


def test_a_deadline_ends_a_wait_with_what_is_missing():
    """After a last look."""
    wait = patience(0.15)

    assert wait.wait_until_none(lambda: "0 of 2") == "0 of 2"


def test_a_user_who_cancels_ends_a_wait_at_once():
    """Long before its deadline."""
    cancelled = threading.Event()
    wait = patience(600, cancelled)
    threading.Timer(0.1, cancelled.set).start()
    began = time.monotonic()

    assert wait.wait_until_none(lambda: "0 of 2") == "0 of 2"
    assert time.monotonic() - began < 60
    assert wait.end_reason == "when cancelled"


@pytest.mark.parametrize(
    ("timeout_s", "spent"), [(600, "after 10 min"), (90, "after 1 min 30 s"), (2, "after 2 s"), (0, "after 0 s")]
)
def test_a_deadline_is_said_in_minutes_and_seconds(timeout_s, spent):
    """As people write it."""
    assert patience(timeout_s).end_reason == spent
