"""What the machine has that the other parts need: GPU, driver, torch, NCCL, MPS, kernel packages."""

import argparse
import ctypes
import importlib
import json
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from tests.gpu.quarter_hour.parts import MISSING

KERNELS = ("deep_gemm", "flash_mla", "deep_ep", "flashinfer")
PACKAGES = ("torch", "triton", "nvidia-nccl-cu13", "sgl-deep-gemm", "sgl-flash-mla", "deep_ep", "flashinfer-python")


def main() -> int:
    """Print it, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", type=Path, dest="output", required=True)
    output = parser.parse_args().output
    found = {
        "driver": driver(),
        "packages": {name: installed(name) for name in PACKAGES},
        "nccl_loaded": nccl_loaded(),
        "kernels": {name: why_not(name) for name in KERNELS},
        "mps": shutil.which("nvidia-cuda-mps-control"),
    }
    output.write_text(json.dumps(found))
    print(json.dumps(found, indent=1))
    if not torch.cuda.is_available():
        print("no GPU")
        return MISSING
    return 0


def driver() -> str | None:
    """Return the GPU's name, memory and driver, as nvidia-smi says them."""
    if shutil.which("nvidia-smi") is None:
        return None
    asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_mode", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def installed(package: str) -> str | None:
    """Return its version, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def why_not(module: str) -> str:
    """Return "imported", or what its import says."""
    try:
        importlib.import_module(module)
    except (ImportError, OSError, RuntimeError, AssertionError) as error:  # they look for drivers
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return "imported"


def nccl_loaded() -> str | None:
    """Return the version of the NCCL that this process calls: the preloaded one, else torch's own."""
    number, library = ctypes.c_int(), ctypes.CDLL(None)
    try:
        if not hasattr(library, "ncclGetVersion"):
            library = ctypes.CDLL("libnccl.so.2")
    except OSError as error:
        return str(error)
    library.ncclGetVersion(ctypes.byref(number))
    return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"


if __name__ == "__main__":
    sys.exit(main())
