"""The slow reference of DeepEP between processes, to try the part where no GPU is: rows are bytes in a store."""

from typing import Any

import msgspec
import torch
from torch import Tensor

from runtime.expert_parallel.group import Group
from tests.runtime.expert_parallel.computing_deep_ep import new_deep_ep
from tests.runtime.kernels.gpu.computing_packages import ComputingDeepGemm
from tests.runtime.kernels.gpu.test_gpu_ops import CpuQuantising as PlayedOps

__all__ = ["ComputingDeepGemm", "PlayedOps", "played_deep_ep"]


def played_deep_ep(group: Group) -> Any:
    """Return the module whose ranks meet in the group."""
    return new_deep_ep(_Meeting(group))


class _Meeting:
    def __init__(self, group: Group) -> None:
        self.num_ranks, self._group = group.size, group

    def exchange(self, rank: int, said: Any) -> list[Any]:
        """Return what each rank said."""
        return [
            _unpacked(msgspec.msgpack.decode(each))
            for each in self._group.gather(msgspec.msgpack.encode(_packed(said)))
        ]


def _packed(value: Any) -> Any:
    if isinstance(value, Tensor):
        values = value.contiguous().view(torch.uint8).numpy().tobytes()
        return {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "bytes": values}
    return [_packed(each) for each in value] if isinstance(value, tuple | list) else value


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        dtype, values = getattr(torch, value["dtype"]), bytearray(value["bytes"])
        return (torch.frombuffer(values, dtype=dtype) if values else torch.empty(0, dtype=dtype)).view(value["shape"])
    return [_unpacked(each) for each in value] if isinstance(value, list) else value
