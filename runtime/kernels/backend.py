"""The backend of one model: a table of operations on a device, a precision, and a way of batching.

It is chosen once, when the model is built, and passed to every part of the model. The choice depends on torch's number
of threads, so set that number before. Libraries for one kind of device are imported only for it: numba takes a second,
and a machine with GPUs may not have it.
"""

import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from runtime.errors import RuntimeFailure
from runtime.kernels.batch_invariant import Batched, Batching, BatchInvariant
from runtime.kernels.device import PinnedLink
from runtime.kernels.ops import Ops
from runtime.kernels.precision import unquantized_dtype

__all__ = ["Backend", "choose_backend"]


@dataclass(frozen=True)
class Backend:
    """A model's operations and batching, and `dtype`: the type of its matrices, which may be FP8."""

    dtype: torch.dtype
    ops: Ops
    batching: Batching

    @property
    def device(self) -> torch.device:
        """The device that the model's tensors are made on."""
        return self.ops.device

    @property
    def unquantized_dtype(self) -> torch.dtype:
        """The type of everything that is never quantised."""
        return unquantized_dtype(self.dtype)

    @property
    def kernels(self) -> list[str]:
        """The names of all that affects the last bits of sums on a CPU: torch's version, operations, kind of CPU."""
        capability = torch.backends.cpu.get_cpu_capability()
        return [str(torch.__version__), type(self.ops).__name__, platform.machine(), capability, _cpu_model()]


def choose_backend(device: torch.device, dtype: torch.dtype, deterministic: bool) -> Backend:
    """Return the fastest operations for matrices of `dtype` or, if `deterministic`, the fastest batch-invariant ones.

    Raises RuntimeFailure if no operations of the device are known to be batch-invariant.
    """
    if device.type != "cpu":
        if deterministic:
            raise RuntimeFailure(
                f"deterministic: true is not possible on {device.type}: whether a row's bits depend on the other rows"
                " has been measured for CPUs only; set deterministic: false, or plan for gpu: cpu"
            )
        return Backend(dtype, _device_ops(device), Batched())
    from runtime.kernels.cpu.ops import cpu_ops

    return Backend(dtype, cpu_ops(dtype, deterministic), BatchInvariant() if deterministic else Batched())


def _cpu_model() -> str:
    """Return the CPU's name as Linux reports it; empty if it reports none."""
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text(errors="replace").splitlines() if cpus.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _device_ops(device: torch.device) -> Ops:
    """Return the operations on `device`: NVIDIA's GPUs get kernels; all other devices get the reference."""
    if not torch.cuda.is_available():
        return Ops(device)
    if torch.version.hip:
        ops = Ops(device)
        ops.link = PinnedLink(device)
        return ops
    from runtime.kernels.gpu.ops import GpuOps
    from runtime.kernels.gpu.packages import find_packages

    return GpuOps(device, find_packages(device))
