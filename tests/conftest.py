"""For every test: which of them a call runs, on how many threads, and what Hypothesis draws.

`fast` is given by folder. `slow` marks what there takes over a second or starts processes. `whole` marks what pays only
before a merge: it runs in CI, with `-m`, and when the call names its file.

With `-n 2 --dist loadgroup`, two processes share the tests: a file stays whole, since its fixtures are dear, and so
does each of `TOGETHER`, whose tests share a cluster or a deployment.
"""

import os
from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
FAST = [TESTS / name for name in ("planner", "templates", "stacks/kube", "stacks/provider", "docs", "test_layering.py")]
TOGETHER = [TESTS / "cluster", TESTS / "stacks"]

# Tensors are small here: torch's threads wait for each other longer than they compute, and beside anything else that
# runs they take ten times as long. Ranks set their own number.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("ci", derandomize=True)  # so that a red run means a change
if os.environ.get("CI"):
    settings.load_profile("ci")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m fast`, leave other folders alone: importing torch takes longer than most of the tests."""
    if config.option.markexpr != "fast":
        return None
    is_on_the_way = any(collection_path.is_relative_to(path) or path.is_relative_to(collection_path) for path in FAST)
    return None if is_on_the_way else True


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the fast tests, and say of each in which group of tests it stays."""
    (group, *_) = [*(folder for folder in TOGETHER if item.path.is_relative_to(folder)), item.path]
    item.add_marker(pytest.mark.xdist_group(str(group.relative_to(TESTS))))
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
