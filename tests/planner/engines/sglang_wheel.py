"""SGLang's Python sources, fetched once from the package index and kept: its parser reads the commands that we render.

Nothing of it is in this repository. `sglang-requirements.txt` pins the wheel and the few modules that its parser
imports and our environment lacks, each by its hash; pip unpacks them into `$XDG_CACHE_HOME/tidemill/sglang/<key>/`,
where the key is the digest of that file. Nothing of it is imported here: it runs in a process of its own.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

__all__ = ["missing", "sglang_sources"]

REQUIREMENTS = Path(__file__).parent / "sglang-requirements.txt"


def missing() -> list[str]:
    """Return what this machine lacks to run SGLang's parser, in words; fetches it where it is not there yet."""
    if sys.version_info[:2] != (3, 11) or (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return ["CPython 3.11 on x86-64 Linux, for which the pinned wheel of SGLang is"]
    try:
        sglang_sources()
    except subprocess.CalledProcessError as error:
        return [f"the pinned wheel of SGLang: {(error.stderr.strip().splitlines() or ['pip failed'])[-1]}"]
    return []


@cache
def sglang_sources() -> Path:
    """Return the folder for `PYTHONPATH`. Raises CalledProcessError when pip cannot fetch what is pinned."""
    folder = _cache() / hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who held the lock may have fetched it
        if not folder.exists():
            _install(folder)
    return folder


def _install(folder: Path) -> None:
    """Appear whole, by rename."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        target = Path(scratch) / "target"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--require-hashes"]
        command = [*pip, "--only-binary=:all:", "--target", str(target), "-r", str(REQUIREMENTS)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        shutil.move(target, folder)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if os.path.isabs(base) else Path.home() / ".cache") / "tidemill" / "sglang"
