"""Tests that need a GPU: skipped, and listed with the reason, where there is none."""

import pytest
import torch

from runtime.kernels.backend import choose_backend
from runtime.kernels.fp8 import E4M3
from runtime.kernels.ops import Ops


@pytest.fixture(scope="session")
def device():
    """The first GPU."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device: torch.cuda.is_available() is False")
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)


@pytest.fixture(scope="session")
def ops(device):
    """The table that a rank would choose here."""
    return choose_backend(device, E4M3, deterministic=False).ops


@pytest.fixture(scope="session")
def reference(device):
    """Plain torch on the same GPU."""
    return Ops(device)


@pytest.fixture
def drawn(device):
    """Random BF16, the same in every run."""

    def draw(*shape, seed=0):
        generator = torch.Generator(device).manual_seed(seed)
        return torch.randn(shape, generator=generator, device=device).bfloat16()

    return draw
