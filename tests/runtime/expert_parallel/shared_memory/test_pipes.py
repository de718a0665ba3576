"""Ranks of a node hear each other's numbers and times through pipes, and notice when one is gone."""

import gc
import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from unittest.mock import patch

import pytest

from runtime.errors import PeerLost
from runtime.expert_parallel.shared_memory.pipes import _identify_file, common_pipes
from tests.runtime.joined_groups import joined_groups

SIZE = 3


@pytest.fixture
def groups(free_port):
    """Return the joined ranks of a unit, in one process."""
    return joined_groups(SIZE, free_port())


@pytest.fixture
def pipes(groups):
    """Return each rank's pipes."""
    return make_pipes(groups)


def make_pipes(groups):
    """Return the pipes that each rank gets."""
    with ThreadPoolExecutor(SIZE) as ranks:
        return list(ranks.map(common_pipes, groups))


def open_pipes():
    """Return this process's open ends of pipes, without those that earlier tests' errors still hold."""
    gc.collect()
    links = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return sum("pipe:[" in link for link in links)


def test_everybody_hears_what_the_others_say(pipes):
    """Each rank gets the largest number of the others and the latest time, message by message."""
    before = time.monotonic_ns()
    first = [each.signal(number) for each, number in zip(pipes, (4, -7, 9), strict=True)]
    second = [each.signal(number) for each, number in zip(pipes, (1, 2, 3), strict=True)]

    assert [each.wait() for each in pipes] == [(9, first[2]), (9, first[2]), (4, first[1])]
    assert [each.wait() for each in pipes] == [(3, second[2]), (3, second[2]), (2, second[1])]
    assert before <= first[0] <= first[1] <= first[2] <= second[0] <= time.monotonic_ns()


def test_who_is_gone_is_lost_once_its_last_words_are_heard(pipes):
    """A rank that is gone is named to those that read and those that write, after its last message is read."""
    for each in pipes:
        each.signal(5)
    del pipes[1], each

    assert pipes[0].wait()[0] == 5
    with pytest.raises(PeerLost, match=r"^a rank of this unit is gone \(rank 1 has ended\)$"):
        pipes[0].wait()
    with pytest.raises(PeerLost, match=r"^a rank of this unit is gone \(rank 1 has ended\)$"):
        pipes[1].signal(6)


def test_who_is_silent_for_too_long_is_lost(pipes):
    """A rank that hangs is lost like one that has ended."""
    pipes[1].signal(5)
    with (
        patch("runtime.expert_parallel.shared_memory.pipes.STEP_TIMEOUT", timedelta(milliseconds=20)),
        pytest.raises(PeerLost, match=r"^a rank of this unit is gone \(rank 2 has said nothing for 0\.02 s\)$"),
    ):
        pipes[0].wait()


@pytest.mark.parametrize(
    "elsewhere",
    [
        lambda: patch("os.getpid", return_value=0),
        lambda: patch(
            "runtime.expert_parallel.shared_memory.pipes._identify_file",
            lambda descriptor: (_identify_file(descriptor)[0], _identify_file(descriptor)[1] + 1),
        ),
    ],
    ids=["no such process", "another file there"],
)
def test_who_cannot_have_them_says_so_to_all(groups, elsewhere):
    """If one rank cannot have pipes, as in a container of its own, none has, and none stays open."""
    before = open_pipes()
    with elsewhere():
        found = make_pipes(groups)

    assert found == [None] * SIZE
    assert open_pipes() == before


def test_they_are_closed_with_their_owners(groups):
    """Pipes are closed with the group that owns them."""
    before = open_pipes()
    found = make_pipes(groups)
    assert open_pipes() == before + 2 * SIZE * (SIZE - 1)
    del found

    assert open_pipes() == before
