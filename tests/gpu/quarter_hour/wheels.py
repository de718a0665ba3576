"""Fetch what a machine with a GPU and without a network needs, in two loads that are small enough to be carried there.

    python -m tests.gpu.quarter_hour.wheels FOLDER
    python -m tests.gpu.quarter_hour.wheels --install FOLDER SITE

    FOLDER/kernels    wheels of DeepGEMM and FlashMLA, and of the Python packages that such a machine lacks. Two scripts
                      add to it: `build_deep_ep.sh` DeepEP's wheel, `compile_ahead` what DeepGEMM would compile there
    FOLDER/nccl       NCCL, whose ranks may share a GPU from 2.30 on, with code for Hopper only, compressed

The second form unpacks whatever of the two is there into SITE, which belongs on PYTHONPATH. Wheels are of Python 3.12
on x86-64, and of torch 2.11: later builds of these packages are for 2.13 or 2.14, which moved a tensor's fields.

A fat binary holds the same kernels once for each architecture; the driver reads those of its own GPU. The others are
overwritten with zeros, so that nothing moves and they compress to nothing.
"""

import argparse
import lzma
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
KERNELS = ("apache-tvm-ffi==0.1.11", "sgl-deep-gemm==0.1.5.post1", "sgl-flash-mla==1.0.0")  # DeepGEMM needs the first
NCCL = "nvidia-nccl-cu13==2.30.7"
LIBRARY = "nvidia/nccl/lib/libnccl.so.2"
GLIBCS = (17, 18, 24, 27, 28, 31, 34)  # pip takes each platform by its exact name

FATBIN = b"\x50\xed\x55\xba"  # a fat binary's first word; then its version, the size of its header, and its own
ELF, HOPPER = 2, 90


def main() -> None:
    """Fetch, or unpack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("site", type=Path, nargs="?")
    parser.add_argument("--install", action="store_true")
    arguments = parser.parse_args()
    if arguments.install:
        install(arguments.folder, arguments.site)
        return
    fetch(arguments.folder)
    for load in ("kernels", "nccl"):
        files = sorted((arguments.folder / load).iterdir())
        print(f"{load}: {sum(file.stat().st_size for file in files) / 2**20:.1f} MiB in {len(files)} files")


def fetch(folder: Path) -> None:
    """Download both loads."""
    packages = [line for line in (HERE / "packages.txt").read_text().splitlines() if line and line[0] != "#"]
    download([*KERNELS, *packages], folder / "kernels")
    with tempfile.TemporaryDirectory() as name:
        download([NCCL], Path(name))
        (wheel,) = Path(name).iterdir()
        with zipfile.ZipFile(wheel) as archive:
            library = bytearray(archive.read(LIBRARY))
    keep_hopper(library)
    (folder / "nccl").mkdir(parents=True, exist_ok=True)
    (folder / "nccl" / "libnccl.so.2.xz").write_bytes(lzma.compress(bytes(library), preset=6))


def download(packages: list[str], folder: Path) -> None:
    """Download their wheels, without what they need in turn."""
    platforms = ["--platform=manylinux2014_x86_64", *(f"--platform=manylinux_2_{minor}_x86_64" for minor in GLIBCS)]
    options = ["--no-deps", "--only-binary=:all:", "--python-version=3.12", "--implementation=cp", *platforms]
    command = [sys.executable, "-m", "pip", "download", "-q", *options, "-d", str(folder), *packages]
    subprocess.run(command, check=True)


def keep_hopper(library: bytearray) -> None:
    """Overwrite the machine code of all GPUs but Hopper's, in place."""
    at = library.find(FATBIN)
    while at >= 0:
        _, version, header, size = struct.unpack_from("<IHHQ", library, at)
        if (version, header) == (1, 16):
            _keep_hopper_of(library, at + header, at + header + size)
            at += size
        at = library.find(FATBIN, at + header)


def _keep_hopper_of(library: bytearray, at: int, end: int) -> None:
    """Look at each part of one fat binary: what it is, the size of its header, its own, and for which GPU it is."""
    while at < end:
        kind, _, header, size = struct.unpack_from("<HHIQ", library, at)
        (gpu,) = struct.unpack_from("<I", library, at + 28)
        if (kind, gpu) != (ELF, HOPPER):
            library[at + header : at + header + size] = bytes(size)
        at += header + size


def install(folder: Path, site: Path) -> None:
    """Unpack the loads that are there into `site`."""
    site.mkdir(parents=True, exist_ok=True)
    if wheels := sorted(folder.glob("kernels/*.whl")):
        options = ["--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade", "--target", str(site)]
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", *options, *map(str, wheels)], check=True)
    for packed in folder.glob("kernels/*.tar.xz"):
        with tarfile.open(packed) as archive:
            archive.extractall(site, filter="data")
    for packed in folder.glob("nccl/*.xz"):
        (site / packed.stem).write_bytes(lzma.decompress(packed.read_bytes()))


if __name__ == "__main__":
    main()
