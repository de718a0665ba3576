"""Find DeepSeek's kernel packages that this process can use on its GPU.

    deep_gemm    matmuls in FP8: plain, and grouped by expert          PyPI sgl-deep-gemm
    flash_mla    attention of decode over pages of latents             PyPI sgl-flash-mla
    deep_ep      dispatch and combine                                  PyPI sgl-deep-ep

DeepEP needs NVLink between all GPUs of a node. A PCIe card has NVLink to a few neighbours at most, and over PCIe
DeepEP's writes may arrive out of order, so it is not used there. DeepEP's own check cannot be used: it looks for `PCIE`
in capitals, which the names of Hopper's cards do not have, and then asks the process group, which is None here.

They are imported only if there is a GPU, because two of them fail without a driver. A missing or unfit package is
logged once a process; the reference (`ops.py`) or our all-to-all (`expert_parallel/`) is used instead.

Sources: github.com/deepseek-ai/DeepEP dd758caf deep_ep/utils/envs.py, check_nvlink_connections, and
deep_ep/buffers/legacy.py, `allow_nvlink_for_low_latency_mode`.

We use these packages because SGLang 0.5.23 pins them. They have wheels for x86-64 and arm64, which DeepSeek's
repositories do not publish, and the same calls.

We have run `deep_gemm` and `flash_mla` on an H100, and the normal kernels of `deep_ep` between two ranks on one H100.
"""

import importlib
from dataclasses import dataclass
from typing import Any

import torch

from runtime.kernels.say import say_once

__all__ = ["BLACKWELL", "HOPPER", "INSTEAD", "Packages", "find_packages"]

HOPPER, BLACKWELL = 9, 10  # the major number of a GPU's compute capability
# github.com/deepseek-ai: DeepGEMM 54e22612 README.md "Requirements", FlashMLA 9241ae3e README.md "Support matrix"
# (dense decoding), DeepEP dd758caf docs/legacy.md "Requirements"
ARCHITECTURES = {
    "deep_gemm": (HOPPER, BLACKWELL),
    "flash_mla": (HOPPER,),
    "deep_ep": (HOPPER, BLACKWELL),
}
INSTEAD = {
    "deep_gemm": "matmuls in FP8 are widened to FP32",
    "flash_mla": "decode attends request by request in plain torch",
    "deep_ep": "rows travel by NCCL's all-to-all",
}


@dataclass(frozen=True)
class Packages:
    """The imported kernel packages, None for a missing one. `arch` is the GPU's major compute capability."""

    arch: int
    deep_gemm: Any = None
    flash_mla: Any = None
    deep_ep: Any = None


def find_packages(device: torch.device) -> Packages:
    """Return the packages that are installed and made for this NVIDIA GPU, imported."""
    arch, _ = torch.cuda.get_device_capability(device)
    gpu = torch.cuda.get_device_name(device)
    return Packages(arch, **{name: _module(name, arch, gpu) for name in ARCHITECTURES})


def _module(name: str, arch: int, gpu: str) -> Any:
    if arch not in ARCHITECTURES[name]:
        say_once(f"{name} is not made for sm_{arch}x: {INSTEAD[name]}")
        return None
    if name == "deep_ep" and _is_pcie_card(gpu):
        say_once(f"deep_ep needs NVLink between all GPUs of a node, and {gpu} is a PCIe card: {INSTEAD[name]}")
        return None
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError, AssertionError) as error:  # they look for drivers at import
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        say_once(f"{name} cannot be used ({reason}): {INSTEAD[name]}")
        return None


def _is_pcie_card(gpu: str) -> bool:
    """Return whether a GPU's name (by its driver) is that of a PCIe card: `NVIDIA H100 PCIe`, `NVIDIA H100 NVL`."""
    return "PCIE" in gpu.upper() or gpu.upper().endswith(" NVL")
