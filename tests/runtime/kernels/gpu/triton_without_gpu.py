"""What of Triton's kernels can be tried without a GPU: its interpreter computes on a CPU, its compiler needs none."""

import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = str(Path(__file__).parents[4])


def interpreted(script, folder):
    """case -> tensors, from a process of `script` in which Triton interprets: that is chosen when it is imported."""
    path = folder / "found.pt"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": ROOT}
    subprocess.run([sys.executable, script.__file__, str(path)], check=True, env=environment, timeout=120)
    return torch.load(path, weights_only=True)


def compiled(kernel, types, constants, capability):
    """The kernel as machine code, and what comes before; `types` are those of its arguments that are no constants."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(kernel, {**types, **dict.fromkeys(constants, "constexpr")}, constants)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32))
