"""What a machine needs for these tests, in one place, and what happens without it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from planner.facts import names
from tests.cluster import build, cgroups, images
from tests.cluster.products import Product

__all__ = ["has_cluster", "missing", "missing_for_nodes", "require", "require_built"]

PROGRAMS = {"openssl": "openssl", "setpriv": "util-linux"}  # program -> Debian package
PROGRAMS_OF_NODES = {
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "iptables": "iptables",
}
# Each in namespaces of its own, so that nothing is left: what it shows -> a command.
TRIALS = {
    "network namespaces with veth devices and bridges": (
        "ip link add br0 type bridge && ip link add one type veth peer name two"
    ),
    "overlayfs": (
        "mount -t tmpfs tmpfs /mnt && cd /mnt && mkdir lower upper work merged && "
        "mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged"
    ),
}


def has_cluster() -> bool:
    """Whether a call for all tests brings up a cluster."""
    return bool(os.environ.get("CI")) or (not missing(build.EVERYTHING) and build.are_built(build.EVERYTHING))


def missing(products: Sequence[Product]) -> list[str]:
    """Everything that this machine lacks to build and run `products` without root, in words."""
    if not sys.platform.startswith("linux"):
        return ["Linux"]
    return _missing_programs(PROGRAMS) + build.missing(products)


def missing_for_nodes() -> list[str]:
    """Everything that it lacks besides to be several machines."""
    programs = _missing_programs(PROGRAMS_OF_NODES) + _missing_busybox() + _unmountable()
    if os.geteuid() != 0:
        return [*programs, "root"]
    if not shutil.which("unshare") or not _succeeds("true"):
        return [*programs, "the capabilities SYS_ADMIN and NET_ADMIN: `unshare --mount --net --pid true` fails"]
    return [*programs, *(what for what, command in TRIALS.items() if not _succeeds(command)), *cgroups.missing()]


def require(lacking: Sequence[str]) -> None:
    """Skip with the list on a developer's machine; in CI, where a skip would go unseen, fail with it."""
    if not lacking:
        return
    reason = f"the test cluster lacks: {'; '.join(lacking)}"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def require_built(products: Sequence[Product]) -> None:
    """Skip on a developer's machine what is not built yet: a build takes half an hour, and is theirs to start."""
    if os.environ.get("CI") or build.are_built(products):
        return
    pytest.skip("the test cluster is not built; build it once: python -m tests.cluster.build")


def _missing_programs(programs: dict[str, str]) -> list[str]:
    return [f"{name} (package {package})" for name, package in programs.items() if not shutil.which(name)]


def _missing_busybox() -> list[str]:
    """It is all that an image holds, so it may need no library."""
    path = shutil.which("busybox")
    if path and subprocess.run(["ldd", path], capture_output=True, check=False).returncode != 0:
        return []
    return ["busybox, statically linked (package busybox-static)"]


def _unmountable() -> list[str]:
    """Name the folders of this machine that no plan has pods mount at their own paths."""
    taken = [(path, own) for path in images.host_paths() for own in names.MOUNTED if _meet(Path(path), Path(own))]
    return [
        f"another place for {path}: pods mount it there, and have their own {own} (rule S413)" for path, own in taken
    ]


def _meet(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _succeeds(command: str) -> bool:
    namespaces = ["unshare", "--mount", "--net", "--pid", "--fork"]
    return subprocess.run([*namespaces, "sh", "-c", command], capture_output=True, check=False).returncode == 0
