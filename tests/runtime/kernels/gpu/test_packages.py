"""A rank chooses its kernel packages by what the driver says of its GPU."""

from types import SimpleNamespace

import pytest
import torch

from runtime.kernels import say
from runtime.kernels.gpu import packages
from runtime.kernels.gpu.packages import find_packages


@pytest.fixture
def found(monkeypatch):
    """Returns the packages for a GPU of this capability and name, all of them installed."""
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
    """They have no NVLink to all others of their node; the log says so once, with what serves instead."""
    first, second = found((9, 0), gpu), found((9, 0), gpu)

    assert first.deep_ep is second.deep_ep is None
    assert first.deep_gemm is not None
    assert capsys.readouterr().err.count(f"NVLink between all GPUs of a node, and {gpu} is a PCIe card") == 1


@pytest.mark.parametrize(
    ("capability", "gpu"),
    [((9, 0), "NVIDIA H100 80GB HBM3"), ((9, 0), "NVIDIA H200"), ((10, 0), "NVIDIA B200"), ((10, 0), "NVIDIA GB200")],
)
def test_deep_ep_is_used_on_gpus_of_a_board(found, gpu, capability, capsys):
    """Their NVLink reaches every GPU of the node; dense FlashMLA is made for Hopper alone."""
    used = found(capability, gpu)

    assert used.deep_ep is not None
    assert "deep_ep" not in capsys.readouterr().err
    assert (used.flash_mla is not None) == (capability == (9, 0))
