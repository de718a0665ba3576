"""What happens on a machine that cannot run the test cluster."""

import os

import pytest

from tests.cluster import build, images, preconditions
from tests.cluster.products import ETCD


def test_a_machine_that_lacks_nothing_goes_on(monkeypatch):
    """In CI and elsewhere."""
    for value in ("", "true"):
        monkeypatch.setenv("CI", value)
        preconditions.require([])


def test_a_developer_is_told_what_is_missing(monkeypatch):
    """The tests are skipped, and the list is the reason."""
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match="lacks: Go; openssl"):
        preconditions.require(["Go", "openssl"])


def test_ci_fails_where_a_developer_skips(monkeypatch):
    """Nobody reads CI's list of skipped tests."""
    monkeypatch.setenv("CI", "true")

    with pytest.raises(pytest.fail.Exception, match="lacks: Go; openssl"):
        preconditions.require(["Go", "openssl"])


def test_a_developer_builds_when_they_choose(monkeypatch):
    """What is not built skips its tests, with the one command that builds it."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(build, "are_built", lambda products: False)

    with pytest.raises(pytest.skip.Exception, match=r"not built; build it once: python -m tests\.cluster\.build"):
        preconditions.require_built([ETCD])


def test_what_is_built_is_used(monkeypatch):
    """Wherever the tests run."""
    monkeypatch.setattr(build, "are_built", lambda products: True)
    for value in ("", "true"):
        monkeypatch.setenv("CI", value)
        preconditions.require_built([ETCD])


def test_ci_builds_what_is_not_there(monkeypatch):
    """There the tests run, however long the first time takes."""
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(build, "are_built", lambda products: False)

    preconditions.require_built([ETCD])


def test_missing_programs_are_named_with_their_package(monkeypatch):
    """So that the fix is one command."""
    monkeypatch.setenv("PATH", "/nonexistent")

    assert preconditions.missing([])[:2] == ["openssl (package openssl)", "setpriv (package util-linux)"]


def test_missing_programs_of_nodes_are_named_with_their_package(monkeypatch):
    """Without them nothing else is tried."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(preconditions.os, "geteuid", lambda: 0)

    *programs, rest = preconditions.missing_for_nodes()

    assert programs[0] == "ip (package iproute2)"
    assert "busybox, statically linked (package busybox-static)" in programs
    assert rest.startswith("the capabilities SYS_ADMIN and NET_ADMIN")


def test_an_ordinary_user_is_told_to_be_root(monkeypatch):
    """Namespaces of a user's own are not enough for a kubelet."""
    monkeypatch.setattr(preconditions.os, "geteuid", lambda: 1000)

    assert preconditions.missing_for_nodes()[-1] == "root"


def test_a_busybox_that_needs_libraries_will_not_do(monkeypatch, tmp_path):
    """Debian has one of each kind; in an image only the static one runs."""
    (tmp_path / "busybox").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    assert "busybox, statically linked (package busybox-static)" in preconditions.missing_for_nodes()


@pytest.mark.parametrize(("checkout", "is_named"), [("/tmp/builds/tidemill", True), ("/home/a/tidemill", False)])
def test_a_checkout_that_no_pod_can_mount_is_named(monkeypatch, checkout, is_named):
    """Below the temporary folder it would be refused in the middle of a test, by rule S413."""
    monkeypatch.setattr(images, "host_paths", lambda: ("/usr", checkout))
    said = [each for each in preconditions.missing_for_nodes() if "S413" in each]

    assert (
        said == [f"another place for {checkout}: pods mount it there, and have their own /tmp (rule S413)"] * is_named
    )
