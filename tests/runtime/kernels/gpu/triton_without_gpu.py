"""Triton's kernels without a GPU: its interpreter computes on a CPU, and its compiler needs no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = str(Path(__file__).parents[4])


def run_interpreted(script, folder):
    """Return case -> tensors, from a process of `script` in which Triton interprets its kernels."""
    path = folder / "found.pt"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": ROOT}
    subprocess.run([sys.executable, script.__file__, str(path)], check=True, env=environment, timeout=120)
    return torch.load(path, weights_only=True)


def compile_kernel(kernel, types, constants, capability):
    """Compile the kernel to machine code. `types` are those of its arguments that are no constants."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(kernel, {**types, **dict.fromkeys(constants, "constexpr")}, constants)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32))
