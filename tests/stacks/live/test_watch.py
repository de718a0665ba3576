"""The thread that takes looks for `status --watch`."""

import pytest

from planner.problems.errors import CallError
from stacks.live.look import Look
from stacks.live.watch import _Watched


def test_a_fault_ends_the_looks_and_is_raised():
    """What users can cause is shown until the next look; a mistake of ours ends the looks, and the command knows it."""
    looks = iter([[Look("demo", "here", ())], CallError([]), [Look("demo", "here", ())], KeyError("state")])

    def take():
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        return found

    watched = _Watched(take, every_s=0.0)
    watched.take()
    watched.raise_fault()
    watched.take_again_and_again()

    assert watched.num_looks == 3
    with pytest.raises(KeyError, match="state"):
        watched.raise_fault()
