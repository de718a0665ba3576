"""Compile the search's C files: run `python planner/expert_map/native/build.py` after every edit of them.

Users never call this, because the wheel's build does (`hatch_build.py`). The compiler comes from the package `ziglang`,
which needs nothing from the system. Without that package it is `$CC` or `cc`.

Floats follow IEEE 754: nothing is reordered, and no steps are fused, so that every machine makes the same maps. The
library carries the digest of its sources, and `native` refuses one that was built from others.

This file imports nothing of Tidemill, because it runs before Tidemill is installed.
"""

import hashlib
import importlib.util
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARY = FOLDER / "search.so"
FLAGS = [
    "-std=c11",
    "-O3",
    "-ffp-contract=off",
    "-fno-sanitize=undefined",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
    "-s",
]
OLDEST_GLIBC = (2, 17)  # that manylinux2014 wheels support, PEP 599


def build() -> Path:
    """Compile the library where `native` looks for it, and return its path."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        made = Path(folder, LIBRARY.name)
        command = [*_compiler(), *FLAGS, f'-DDIGEST="{digest()}"', "-o", str(made), str(FOLDER / "search.c"), "-lm"]
        caches = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), folder)
        subprocess.run(command, check=True, cwd=folder, env=os.environ | caches)
        made.replace(LIBRARY)
    return LIBRARY


def digest() -> str:
    """Return the sha256 of the C sources."""
    sources = sorted([*FOLDER.glob("*.c"), *FOLDER.glob("*.h")])
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def wheel_tag() -> str:
    """Return the tag of a wheel with this machine's library, which is for any Python 3 on one platform."""
    machine = platform.machine()
    if _is_for_glibc():
        return f"py3-none-manylinux_{OLDEST_GLIBC[0]}_{OLDEST_GLIBC[1]}_{machine}"
    return f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def _compiler() -> list[str]:
    if not _has_zig():
        return [os.environ.get("CC", "cc")]
    target = (
        ["-target", f"{platform.machine()}-linux-gnu.{OLDEST_GLIBC[0]}.{OLDEST_GLIBC[1]}"] if _is_for_glibc() else []
    )
    return [sys.executable, "-m", "ziglang", "cc", *target]


def _is_for_glibc() -> bool:
    """Return whether the library is built for every glibc since OLDEST_GLIBC, and not only for this machine."""
    return _has_zig() and platform.libc_ver()[0] == "glibc" and platform.machine() in ("x86_64", "aarch64")


def _has_zig() -> bool:
    return importlib.util.find_spec("ziglang") is not None


if __name__ == "__main__":
    build()
