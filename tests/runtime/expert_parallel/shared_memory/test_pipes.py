"""Ranks of a node hear what the others say, when they said it, and that one is gone."""

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
    """The ranks of a unit, joined, in one process."""
    return joined_groups(SIZE, free_port())


@pytest.fixture
def pipes(groups):
    """The pipes of each rank."""
    return made(groups)


def made(groups):
    """Return the pipes that each rank gets."""
    with ThreadPoolExecutor(SIZE) as ranks:
        return list(ranks.map(common_pipes, groups))


def open_pipes():
    """Ends of pipes that this process has; those of tests before are in the frames of the errors that they expected."""
    gc.collect()
    links = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return sum("pipe:[" in link for link in links)


def test_everybody_hears_what_the_others_say(pipes):
    """The largest number but one's own and the last moment, one message from each after the other."""
    before = time.monotonic_ns()
    first = [each.signal(number) for each, number in zip(pipes, (4, -7, 9), strict=True)]
    second = [each.signal(number) for each, number in zip(pipes, (1, 2, 3), strict=True)]

    assert [each.wait() for each in pipes] == [(9, first[2]), (9, first[2]), (4, first[1])]
    assert [each.wait() for each in pipes] == [(3, second[2]), (3, second[2]), (2, second[1])]
    assert before <= first[0] <= first[1] <= first[2] <= second[0] <= time.monotonic_ns()


def test_who_is_gone_is_lost_once_its_last_words_are_heard(pipes):
    """By name, to who listens and to who speaks."""
    for each in pipes:
        each.signal(5)
    del pipes[1], each

    assert pipes[0].wait()[0] == 5
    with pytest.raises(PeerLost, match=r"^a rank of this unit is gone \(rank 1 has ended\)$"):
        pipes[0].wait()
    with pytest.raises(PeerLost, match=r"^a rank of this unit is gone \(rank 1 has ended\)$"):
        pipes[1].signal(6)


def test_who_is_silent_for_too_long_is_lost(pipes):
    """A rank that hangs is as lost as one that ended."""
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
    """As with ranks in containers of their own: nobody has pipes then, and none stays open."""
    before = open_pipes()
    with elsewhere():
        found = made(groups)

    assert found == [None] * SIZE
    assert open_pipes() == before


def test_they_are_closed_with_their_owners(groups):
    """Who loads one model after another keeps none of their descriptors."""
    before = open_pipes()
    found = made(groups)
    assert open_pipes() == before + 2 * SIZE * (SIZE - 1)
    del found

    assert open_pipes() == before
