"""Both layouts of cgroups, in a folder that stands for /sys/fs/cgroup."""

import pytest

from tests.cluster import cgroups


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty one."""
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def version_1(root):
    """A folder a hierarchy."""
    for name in cgroups.V1_HIERARCHIES:
        (root / name).mkdir()
    (root / "cpuset" / "cpuset.cpus").write_text("0-1\n")
    (root / "cpuset" / "cpuset.mems").write_text("0\n")
    return root


@pytest.fixture
def version_2(root):
    """One hierarchy with a list of what it controls."""
    (root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    return root


def test_version_1_has_a_cgroup_in_every_hierarchy(version_1):
    """A cpuset is given its parent's processors and memory, for a new one has none."""
    cgroups.make("run", "node-0")

    assert all((version_1 / name / "run" / "node-0").is_dir() for name in cgroups.V1_HIERARCHIES)
    assert (version_1 / "cpuset" / "run" / "node-0" / "cpuset.cpus").read_text() == "0-1\n"
    assert cgroups.missing() == []


def test_version_2_passes_controllers_on_to_the_node(version_2):
    """From the root to the run's cgroup, and from there to the node's."""
    cgroups.make("run", "node-0")

    assert (version_2 / "run" / "node-0").is_dir()
    for parent in (version_2, version_2 / "run"):
        assert (parent / "cgroup.subtree_control").read_text() == "+cpu +cpuset +memory +pids"
    assert cgroups.missing() == []


def test_what_the_kernel_does_not_control_is_named(version_1, version_2):
    """In either layout."""
    (version_2 / "cgroup.controllers").write_text("cpu memory\n")
    assert cgroups.missing() == [f"cgroup controllers cpuset, pids in {version_2}"]

    (version_2 / "cgroup.controllers").unlink()
    (version_1 / "freezer").rmdir()
    assert cgroups.missing() == [f"cgroup controllers freezer in {version_1}"]
