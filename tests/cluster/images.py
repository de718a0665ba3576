"""The two images that the test cluster's pods are made of, written here: nothing is pulled.

Both hold busybox alone. `PYTHON_IMAGE` becomes an image of our runtime where a pod mounts this machine's interpreter,
libraries and packages, read-only and at their own paths (`host_paths`).
"""

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

__all__ = ["PAUSE_IMAGE", "PYTHON_IMAGE", "SAME_IMAGE", "host_paths", "write_images"]

PAUSE_IMAGE = "localhost/pause:1"  # what holds a pod's namespaces
PYTHON_IMAGE = "localhost/tidemill-python:1"
SAME_IMAGE = "localhost/tidemill-python:2"  # by another name
REPOSITORY = Path(__file__).parents[2]
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_images(folder: Path) -> None:
    """As archives that `ctr images import` reads."""
    folder.mkdir()
    path = f"{Path(sys.prefix) / 'bin'}:/bin:/usr/bin"
    environment = {"PATH": path, "HOME": "/tmp", "PYTHONPATH": str(REPOSITORY)}  # what the tests import, too
    _write_image(folder / "python.tar", [PYTHON_IMAGE, SAME_IMAGE], ["/bin/sh"], environment)
    _write_image(folder / "pause.tar", [PAUSE_IMAGE], ["/bin/sleep", "2147483647"], {})


def host_paths() -> tuple[str, ...]:
    """The folders of this machine that `python -m runtime` and its imports read, none inside another."""
    packages = [path for path in sys.path if path.endswith("site-packages")]  # a venv may name those of another one
    wanted = {Path(path) for path in ("/usr", "/lib", "/lib64", sys.base_prefix, sys.prefix, REPOSITORY, *packages)}
    outermost = (each for each in wanted if each.exists() and not wanted & set(each.parents))
    return tuple(sorted(map(str, outermost)))


def _write_image(path: Path, names: list[str], command: list[str], environment: dict[str, str]) -> None:
    """A docker-archive of one layer."""
    layer = _layer()
    variables = [f"{key}={value}" for key, value in environment.items()]
    config = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Cmd": command, "Env": variables, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": names, "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        _add(archive, "config.json", json.dumps(config).encode())
        _add(archive, "layer.tar", layer)
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _layer() -> bytes:
    """busybox under the name of each of its commands, and the folders that a container mounts on."""
    busybox = shutil.which("busybox")
    assert busybox
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for folder, mode in (("bin", 0o755), ("etc", 0o755), ("proc", 0o755), ("sys", 0o755), ("tmp", 0o1777)):
            layer.addfile(_entry(folder, tarfile.DIRTYPE, mode))
        _add(layer, "bin/busybox", Path(os.path.realpath(busybox)).read_bytes(), 0o755)
        for command in set(listed.split()) - {"busybox"}:
            link = _entry(f"bin/{command}", tarfile.SYMTYPE)
            link.linkname = "busybox"
            layer.addfile(link)
    return buffer.getvalue()


def _entry(name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o644) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = _entry(name, mode=mode)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
