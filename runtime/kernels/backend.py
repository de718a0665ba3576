"""What one model is built with: a table of operations on a device, a precision, and a way of batching.

Chosen once, when the model is built, and handed down to every part of it. The choice reads torch's number of threads,
so whoever sets that does it before.
"""

from dataclasses import dataclass

import torch

from runtime.kernels.batch_invariant import Batched, Batching, BatchInvariant
from runtime.kernels.cpu.ops import cpu_ops
from runtime.kernels.ops import Ops
from runtime.kernels.precision import unquantized_dtype

__all__ = ["Backend", "choose_backend"]


@dataclass(frozen=True)
class Backend:
    """`dtype` is the type of the model's matrices, which may be FP8."""

    dtype: torch.dtype
    ops: Ops
    batching: Batching

    @property
    def device(self) -> torch.device:
        """Where the model's tensors are made."""
        return self.ops.device

    @property
    def unquantized_dtype(self) -> torch.dtype:
        """The type of all that is never quantised."""
        return unquantized_dtype(self.dtype)


def choose_backend(device: torch.device, dtype: torch.dtype, deterministic: bool) -> Backend:
    """Choose the quickest operations for matrices of `dtype`, or the quickest that are batch-invariant."""
    ops = cpu_ops(dtype, deterministic) if device.type == "cpu" else Ops(device)
    return Backend(dtype, ops, BatchInvariant() if deterministic else Batched())
