"""Ranks of a node share memory, or agree that they cannot."""

import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import pytest

from runtime.expert_parallel.group import SoloGroup
from runtime.expert_parallel.shared_memory.memory import _create_file, common_memory
from tests.runtime.joined_groups import joined_groups

SIZE = 3
NUM_BYTES = 3 * 4096 + 5


@pytest.fixture
def groups(free_port):
    """Return the joined ranks of a unit, in one process."""
    return joined_groups(SIZE, free_port())


def memories(groups, num_bytes=NUM_BYTES):
    """Return the memory that each rank gets."""
    with ThreadPoolExecutor(SIZE) as ranks:
        return list(ranks.map(common_memory, groups, [num_bytes] * len(groups)))


def test_what_one_writes_the_others_read(groups):
    """The memory is zero, has the requested size, and shows every rank what another writes."""
    found = memories(groups)
    assert [memory.tolist() for memory in found] == [[0] * NUM_BYTES] * SIZE

    found[1][-1] = 7
    found[2][0] = 9

    assert [(memory[0].item(), memory[-1].item()) for memory in found] == [(9, 7)] * SIZE


def test_two_are_two(groups):
    """A second request gets other memory, and the first stays."""
    first, second = memories(groups), memories(groups, 10)
    first[0].fill_(1)

    assert second[1].tolist() == [0] * 10
    assert first[2].sum() == NUM_BYTES


def test_one_rank_has_it_for_itself():
    """A unit of one rank gets memory too."""
    assert len(common_memory(SoloGroup(), 8)) == 8


@pytest.mark.parametrize(
    "elsewhere",
    [
        lambda: patch("os.memfd_create", side_effect=PermissionError),
        lambda: patch("os.ftruncate", side_effect=OSError(errno.EFBIG, "File too large")),
        lambda: patch("os.getpid", return_value=0),
        lambda: patch(
            "runtime.expert_parallel.shared_memory.memory._create_file",
            lambda token, num_bytes: _create_file(token ^ 1, num_bytes),
        ),
    ],
    ids=["no file", "no file of this size", "no such process", "another unit's file there"],
)
def test_who_cannot_have_it_says_so_to_all(groups, elsewhere):
    """If one rank cannot have the memory, as in a container of its own, none has it."""
    before = files_in_memory()
    with elsewhere():
        found = memories(groups)

    assert found == [None] * SIZE
    assert files_in_memory() <= before


def files_in_memory():
    """Return the names of this process's open files in memory."""
    return {link.name for link in map(Path.resolve, Path("/proc/self/fd").iterdir()) if "memfd:tidemill" in link.name}
