"""Compile DeepGEMM's kernels on a machine without a GPU, so that nobody waits for nvcc where one is lent.

    python -m tests.gpu.quarter_hour.compile_ahead FOLDER SITE

    FOLDER/kernels/deep_gemm_cache.tar.xz    the kernels, for `wheels --install`

DeepGEMM writes a kernel's source when it is first called with new tiles, and nvcc takes 6 to 10 s for it. It keeps the
machine code under a digest of source, headers, nvcc's version, and flags, among which is the folder of its headers. So
FOLDER is to be installed in SITE before, the same SITE as there, and torch and nvcc are to be those of that machine:
README.md makes such an environment.

First a child calls DeepGEMM with shapes of the parts (`MATMULS`, `EXPERTS`), beside a library that answers for a GPU
(`no_gpu.c`) and an "nvcc" that only notes what it was asked. Then nvcc compiles each of what was noted.

The tiles depend on rows, outputs, channels and slots alone: the six kernels that an H100 ran in a decode step are among
those that are found.

Source: sgl-deep-gemm 0.1.5.post1; deepseek-ai/DeepGEMM 06a6ae2e csrc/jit/compiler.hpp (`build`: digest and folder).
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["CACHE"]

HERE = Path(__file__).parent
CACHE = "deep_gemm_cache"
TOOLKIT = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13"  # where PyPI's packages of CUDA are installed
NOTES = """#!/bin/sh
[ "$1" = --version ] && exec "$NVCC" --version
printf '%s\\n' "$@" > "$4"
"""  # called as: SOURCE -cubin -o RESULT, and flags
MATMULS = (  # outputs and channels of DeepSeek-V3's projections and MLPs
    *((576, 7168), (1536, 7168), (24_576, 1536), (32_768, 512), (7168, 16_384)),
    *((2048, 7168), (7168, 2048), (18_432, 7168), (7168, 18_432)),
)
EXPERTS = ((4096, 7168), (7168, 2048))
MASKED = (2, 3, 10, 20, 40)  # slots of a rank: decode and queues, kernels, wide_layers
CONTIGUOUS = (3, 9, 10, 16, 20, 32, 40)  # kernels, prefill, wide_layers, deep_ep, mixed
# Of rows: a sweep of up to twice as many, four times as dense, found no other kernels.
ROWS = (*range(1, 17), *range(24, 513, 8), *range(576, 16_385, 64))
ROWS_OF_SLOTS = (*range(128, 4097, 128), *range(4608, 65_537, 512))
EXPECTED_ROWS = (*range(1, 65), *range(72, 513, 8), 1024)
ROOM = 9216


def main() -> None:
    """Find which kernels the parts call, compile and pack them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("site", type=Path)
    parser.add_argument("--call", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.call:
        call_all()
        return
    with tempfile.TemporaryDirectory() as name:
        kernels = find(arguments.site, Path(name))
        print(f"{len(kernels)} kernels", flush=True)
        with ThreadPoolExecutor(os.cpu_count()) as compilers:
            list(compilers.map(compile_kernel, kernels))
        pack(kernels, arguments.folder / "kernels" / f"{CACHE}.tar.xz")


def find(site: Path, folder: Path) -> list[Path]:
    """Return a folder for each kernel: its source, and nvcc's arguments in place of its machine code."""
    nvcc, library = folder / "nvcc", folder / "libcuda.so.1"
    nvcc.write_text(NOTES)
    nvcc.chmod(0o755)
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{TOOLKIT}/include", HERE / "no_gpu.c", "-o", library], check=True)
    variables = {
        "PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}",
        "LD_PRELOAD": str(library),
        "LD_LIBRARY_PATH": str(folder),
        "CUDA_HOME": str(TOOLKIT),
        "NVCC": str(TOOLKIT / "bin" / "nvcc"),
        "DG_JIT_NVCC_COMPILER": str(nvcc),
        "DG_JIT_CACHE_DIR": str(folder / CACHE),
    }
    command = [sys.executable, "-m", __spec__.name, "--call", str(folder), str(site)]
    subprocess.run(command, env=os.environ | variables, check=True)
    return sorted((folder / CACHE / "cache").iterdir())


def call_all() -> None:
    """Call DeepGEMM with every shape. The arguments have no values, and no memory until somebody writes there."""
    import torch

    warnings.simplefilter("ignore")  # torch warns of what the next lines are for
    library = torch.library.Library("aten", "IMPL")  # DeepGEMM asks torch for a workspace on its GPU
    library.impl("empty.memory_format", lambda size, **options: torch.empty(size, dtype=options["dtype"]), "CUDA")
    import deep_gemm

    def codes(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.uint8).view(torch.float8_e4m3fn)

    def scales(*shape: int) -> torch.Tensor:
        *slots, rows, columns = shape
        return torch.empty(*slots, columns, -(-rows // 4) * 4).mT[..., :rows, :]  # as TMA reads them

    def result(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16)

    for outputs, channels in MATMULS:
        w = codes(outputs, channels), torch.empty(-(-outputs // 128), channels // 128)
        for rows in ROWS:
            x = codes(rows, channels), scales(rows, channels // 128)
            deep_gemm.fp8_gemm_nt(x, w, result(rows, outputs))
    for outputs, channels in EXPERTS:
        for slots in {*MASKED, *CONTIGUOUS}:
            w = codes(slots, outputs, channels), torch.empty(slots, outputs // 128, channels // 128)
            for rows in ROWS_OF_SLOTS if slots in CONTIGUOUS else ():
                slot_of_row = torch.zeros(rows, dtype=torch.int32)
                x = codes(rows, channels), scales(rows, channels // 128)
                deep_gemm.m_grouped_fp8_gemm_nt_contiguous(x, w, result(rows, outputs), slot_of_row)
            for expected in EXPECTED_ROWS if slots in MASKED else ():
                x = codes(slots, ROOM, channels), scales(slots, ROOM, channels // 128)
                counts = torch.zeros(slots, dtype=torch.int32)
                deep_gemm.m_grouped_fp8_fp4_gemm_nt_masked(x, w, result(slots, ROOM, outputs), counts, expected)


def compile_kernel(folder: Path) -> None:
    """Let nvcc do what was noted."""
    source, kernel = folder / "kernel.cu", folder / "kernel.cubin"
    _, cubin, output, _, *flags = kernel.read_text().splitlines()
    subprocess.run([TOOLKIT / "bin" / "nvcc", source, cubin, output, kernel, *flags], check=True)


def pack(kernels: list[Path], archive: Path) -> None:
    """Write their sources and machine code as DeepGEMM's cache."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz") as packed:
        for folder in kernels:
            for name in ("kernel.cu", "kernel.cubin"):
                packed.add(folder / name, f"{CACHE}/cache/{folder.name}/{name}")


if __name__ == "__main__":
    main()
