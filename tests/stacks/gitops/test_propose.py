"""What `tidemill gitops propose` decides before it pushes. `tests/cluster/test_propose.py` has it on a real Gitea."""

import math
from itertools import product

import pytest

from planner.problems.errors import CallError
from stacks.gitops.forge import PullRequest
from stacks.gitops.git import require_within
from stacks.gitops.propose import Standing, decide
from stacks.gitops.worth import Worth

TIP, OTHER = "a" * 40, "b" * 40
OPEN = PullRequest(7, "https://git.example/7", "", TIP, is_open=True, is_merged=False)
CLOSED = PullRequest(7, "https://git.example/7", "", TIP, is_open=False, is_merged=False)
MERGED = PullRequest(7, "https://git.example/7", "", TIP, is_open=False, is_merged=True)
MERGED_BEFORE = PullRequest(7, "https://git.example/7", "", OTHER, is_open=False, is_merged=True)


@pytest.mark.parametrize(
    ("tip", "is_ours", "is_same", "request_", "result", "pushes"),
    [
        (None, False, False, None, "opened", True),
        (TIP, True, False, OPEN, "updated", True),
        (TIP, True, True, OPEN, "updated", False),
        (TIP, True, True, None, "opened", False),
        (TIP, True, False, None, "opened", True),
        (TIP, True, True, CLOSED, "left_alone", False),
        (TIP, True, False, CLOSED, "opened", True),
        (TIP, True, True, MERGED, "opened", False),
        (TIP, True, False, MERGED, "opened", True),
        (TIP, False, False, OPEN, "left_alone", False),
        (TIP, False, False, None, "left_alone", False),
        (TIP, False, False, CLOSED, "left_alone", False),
        (TIP, False, False, MERGED, "opened", True),
        (TIP, False, False, MERGED_BEFORE, "left_alone", False),
    ],
)
def test_what_becomes_of_the_branch(tip, is_ours, is_same, request_, result, pushes):
    """A commit of somebody else's is never pushed away, unless it was merged; a refusal holds for the same change."""
    step = decide(Standing(tip, is_ours, is_same, request_))

    assert (step.result, step.pushes) == (result, pushes)


def test_nothing_of_somebody_elses_is_ever_replaced():
    """For every standing: what is pushed over is ours or merged, and what is left alone says why."""
    requests = (None, OPEN, CLOSED, MERGED, MERGED_BEFORE)
    for tip, is_ours, is_same, request in product((None, TIP), (True, False), (True, False), requests):
        step = decide(Standing(tip, is_ours, is_same, request))
        is_free = tip is None or is_ours or (request is not None and request.is_merged and request.head == tip)

        assert is_free or not step.pushes
        assert (step.result == "left_alone") == bool(step.why)


@pytest.mark.parametrize(
    ("gained", "lost", "most", "is_enough"),
    [
        (2.0, 48.0, 24.0, True),
        (2.0, 48.1, 24.0, False),
        (0.0, 0.0, 24.0, False),
        (-1.0, 4.0, 24.0, False),
        (0.1, 0, 1, True),
    ],
)
def test_new_maps_must_pay_for_their_restarts(gained, lost, most, is_enough):
    """The gain has to make up for the lost GPU-hours in the hours that are allowed."""
    worth = Worth({"decode": (100.0, 102.0)}, gained, lost, 3, 6, 10**12, most)

    assert worth.is_enough == is_enough
    assert worth.hours == (lost / gained if gained > 0 else math.inf)
    assert worth.lines()[-1].startswith("worth it" if is_enough else "not worth it")


def test_paths_stay_inside_the_checkout(tmp_path, monkeypatch):
    """A link is followed before it is judged."""
    (tmp_path / "checkout" / "deploy").mkdir(parents=True)
    (tmp_path / "checkout" / "link").symlink_to(tmp_path)
    (tmp_path / "checkout" / "alias").symlink_to("deploy")
    monkeypatch.chdir(tmp_path / "checkout" / "deploy")
    root = tmp_path / "checkout"
    for path in ("..", "../..", "../link/x", "/etc/passwd"):
        with pytest.raises(CallError, match="R613"):
            require_within(root, "FOLDER", root / "deploy" / path)

    assert str(require_within(root, "FOLDER", root / "deploy" / "spec.yaml")) == "deploy/spec.yaml"
    assert str(require_within(root, "FOLDER", root / "alias")) == "deploy"
