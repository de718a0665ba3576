"""Which tests a call runs: fast ones by folder, whole ones in CI or when they are asked for."""

from types import SimpleNamespace

import pytest

from tests import conftest
from tests.cluster import preconditions


class Collected:
    """What the hooks look at, in place of a collected test."""

    def __init__(self, path, *markers):
        self.path = conftest.TESTS / path
        self.markers = set(markers)

    def get_closest_marker(self, name):
        return name in self.markers

    def add_marker(self, name):
        self.markers.add(name)


def call(*words, markers=""):
    """A call of pytest, which keeps what it leaves out."""
    left_out = []
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    return SimpleNamespace(args=words, option=SimpleNamespace(markexpr=markers), hook=hook, left_out=left_out)


@pytest.mark.parametrize(
    ("path", "markers", "is_fast"),
    [
        ("planner/spec/test_rules.py", (), True),
        ("test_layering.py", (), True),
        ("planner/spec/test_fuzz.py", ("slow",), False),
        ("planner/spec/test_fuzz.py", ("whole",), False),
        ("runtime/kv/test_cache.py", (), False),
    ],
)
def test_fast_is_what_lies_in_fast_folders_unless_marked_otherwise(path, markers, is_fast):
    """A new test there is fast without a word."""
    test = Collected(path, *markers)
    conftest.pytest_itemcollected(test)

    assert ("fast" in test.markers) == is_fast


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/cluster/test_drift.py::test_one", "tests/cluster"),
        ("tests/stacks/local/test_mixed.py::test_one[a::b]", "tests/stacks/local"),
        ("tests/runtime/kv/test_cache.py::test_one[tests/cluster]", "tests/runtime/kv/test_cache.py"),
    ],
)
def test_processes_share_the_tests_by_file_or_by_what_they_bring_up(nodeid, group):
    """One cluster, one process of deployments, one module's fixtures are never made twice."""
    assert conftest.group_of(nodeid) == group


@pytest.mark.parametrize(
    ("markers", "has_cluster", "processes"),
    [("", False, 3), ("", True, 2), ("fast", True, 2), ("not cluster", True, 3)],
)
def test_three_processes_share_the_tests_and_two_beside_a_cluster(monkeypatch, markers, has_cluster, processes):
    """Its programs take a core of their own."""
    monkeypatch.setattr(preconditions, "has_cluster", lambda: has_cluster)
    asked = call("tests", markers=markers)
    asked.args_source = pytest.Config.ArgsSource.TESTPATHS
    asked.option.capture, asked.option.collectonly = "fd", False

    assert conftest.pytest_xdist_auto_num_workers(asked) == processes


@pytest.mark.parametrize(
    ("path", "is_read"),
    [("", True), ("planner/plan", True), ("stacks", True), ("stacks/local", False), ("runtime", False)],
)
def test_only_fast_folders_are_read_for_fast_tests(path, is_read):
    """Folders on the way to them too; without `-m fast` every folder is read."""
    folder = conftest.TESTS / path

    assert (conftest.pytest_ignore_collect(folder, call(markers="fast")) is None) == is_read
    assert conftest.pytest_ignore_collect(folder, call()) is None


@pytest.mark.parametrize(
    ("words", "markers", "ci", "runs"),
    [
        (("tests",), "", "", False),
        (("tests/runtime",), "", "", False),
        (("tests",), "", "true", True),
        (("tests",), "whole", "", True),
        (("tests/runtime/model/test_parity.py::test_one",), "", "", True),
        (("tests/runtime/model/test_parity.py", "tests/planner"), "", "", False),
    ],
)
def test_whole_tests_run_in_ci_or_when_asked_for(monkeypatch, words, markers, ci, runs):
    """By marker or by file; otherwise pytest counts them as deselected."""
    monkeypatch.setenv("CI", ci)
    whole, other = Collected("runtime/model/test_parity.py", "whole"), Collected("runtime/model/test_parity.py")
    asked, items = call(*words, markers=markers), [whole, other]
    conftest.pytest_collection_modifyitems(asked, items)

    assert items == ([whole, other] if runs else [other])
    assert asked.left_out == ([] if runs else [whole])
