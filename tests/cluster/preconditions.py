"""What a machine needs for these tests, in one place, and what happens without it."""

import os
import shutil
import sys
from collections.abc import Sequence

import pytest

from tests.cluster import build

__all__ = ["missing", "require"]

PROGRAMS = {"openssl": "openssl", "setpriv": "util-linux"}  # program -> Debian package


def missing() -> list[str]:
    """Everything that this machine lacks, in words."""
    if not sys.platform.startswith("linux"):
        return ["Linux"]
    programs = [f"{name} (package {package})" for name, package in PROGRAMS.items() if not shutil.which(name)]
    return programs + build.missing()


def require(lacking: Sequence[str]) -> None:
    """Skip with the list on a developer's machine; in CI, where a skip would go unseen, fail with it."""
    if not lacking:
        return
    reason = f"the test cluster lacks: {'; '.join(lacking)}"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
