"""For every test: which of them a call runs, on how many threads, and what Hypothesis draws.

`fast` is given by folder. `slow` marks what there takes over a second or starts processes. `whole` marks what pays only
before a merge: it runs in CI, with `-m`, and when the call names its file.

Three processes share the tests of a call that names none of them: ranks of local deployments start and wait in one,
while the others compute. Beside the test cluster, whose programs take a core of their own, there are two. A file stays
whole, since its fixtures are dear, and so does each folder of `TOGETHER`, whose tests share a cluster or a deployment.
"""

import os
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.cluster import preconditions

TESTS = Path(__file__).parent
FAST = [TESTS / name for name in ("planner", "templates", "stacks/kube", "stacks/provider", "docs", "test_layering.py")]
TOGETHER = ("tests/cluster", "tests/stacks/local", "tests/stacks/test_")

# Tensors are small here: torch's threads wait for each other longer than they compute, and beside anything else that
# runs they take ten times as long. Ranks set their own number.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Hundreds of processes are started, and each would compile our modules anew: 0.1 to 0.2 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# No test times anything. Each run here draws anew, so few examples are enough; CI draws the same many every time, so
# that a red run means a change. A property with a number of its own is dear, or says why.
settings.register_profile("here", deadline=None, max_examples=40)
settings.register_profile("ci", deadline=None, max_examples=200, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Share the tests of all folders; a call that names tests, or shows what they print, stays one process."""
    is_whole = config.args_source is not pytest.Config.ArgsSource.ARGS
    if not is_whole or config.option.capture == "no" or config.option.collectonly:
        return 0
    return 2 if config.option.markexpr != "not cluster" and preconditions.has_cluster() else 3


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m fast`, leave other folders alone: importing torch takes longer than most of the tests."""
    if config.option.markexpr != "fast":
        return None
    is_on_the_way = any(collection_path.is_relative_to(path) or path.is_relative_to(collection_path) for path in FAST)
    return None if is_on_the_way else True


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the fast tests."""
    is_marked = any(item.get_closest_marker(name) for name in ("slow", "whole"))
    if any(item.path.is_relative_to(path) for path in FAST) and not is_marked:
        item.add_marker("fast")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only a whole run needs."""
    names_files = all(word.partition("::")[0].endswith(".py") for word in config.args)
    if os.environ.get("CI") or config.option.markexpr or names_files:
        return
    left_out = [item for item in items if item.get_closest_marker("whole")]
    items[:] = [item for item in items if not item.get_closest_marker("whole")]
    config.hook.pytest_deselected(items=left_out)


class _InOneProcess(LoadScopeScheduling):
    """Gives all tests of a file, or of `TOGETHER`, to one process. pytest 9.1 and newer ignore `--dist loadgroup`."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """Return the name that tests have in common which stay in one process."""
    return next((group for group in TOGETHER if nodeid.startswith(group)), nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Share the tests by group."""
    return _InOneProcess(config, log)
