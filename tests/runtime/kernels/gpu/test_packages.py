"""A rank chooses its kernel packages by the driver's name of its GPU."""

from types import SimpleNamespace

import pytest
import torch

from runtime.kernels import say
from runtime.kernels.gpu import packages
from runtime.kernels.gpu.packages import find_packages


@pytest.fixture
def found(monkeypatch):
    """Return a function that finds the packages for a GPU of this capability and name, with all of them installed."""
    monkeypatch.setattr(say, "_said", set())
    monkeypatch.setattr(packages.importlib, "import_module", lambda name: SimpleNamespace(name=name))

    def find(capability, name):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
        return find_packages(torch.device("cuda", 0))

    return find


@pytest.mark.parametrize(
    "gpu", ["NVIDIA H100 PCIe", "NVIDIA H800 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA H20-PCIE-96GB"]
)
def test_deep_ep_is_not_used_on_cards(found, gpu, capsys):
    """On a PCIe card DeepEP is not used, and the log says once what is used instead."""
    first, second = found((9, 0), gpu), found((9, 0), gpu)

    assert first.deep_ep is second.deep_ep is None
    assert first.deep_gemm is not None
    assert capsys.readouterr().err.count(f"NVLink between all GPUs of a node, and {gpu} is a PCIe card") == 1


@pytest.mark.parametrize(
    ("capability", "gpu"),
    [((9, 0), "NVIDIA H100 80GB HBM3"), ((9, 0), "NVIDIA H200"), ((10, 0), "NVIDIA B200"), ((10, 0), "NVIDIA GB200")],
)
def test_deep_ep_is_used_on_gpus_of_a_board(found, gpu, capability, capsys):
    """DeepEP is used on GPUs of a board; FlashMLA's dense kernels only on Hopper."""
    used = found(capability, gpu)

    assert used.deep_ep is not None
    assert "deep_ep" not in capsys.readouterr().err
    assert (used.flash_mla is not None) == (capability == (9, 0))
