"""Watches a run on fake tensors: what leaves the device, what waits for it, and what memory it holds.

`DeviceWatcher` sees every operation of torch before the fake device does. It refuses

    a copy to the host      `.item()`, `.tolist()`, `.cpu()`, `.to("cpu")`, `bool(tensor)`
    a shape out of values   `nonzero`, `x[mask]`, `bincount`, `repeat_interleave` without its output's size
    tensors of two devices, or one made on the host, apart from the copy that takes it to the device

and counts the bytes of all storages on the device, now and at most.
"""

import weakref
from collections import Counter, defaultdict
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Allocations", "DeviceWatcher", "HostWait", "OffTheDevice"]

aten = torch.ops.aten
BY_INDEX = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
ON_ITS_WAY = {aten.lift_fresh.default, aten.detach.default, aten.detach_.default}  # `torch.tensor` of a list
OUT_OF_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class OffTheDevice(AssertionError):
    """A tensor was made on the host, or used beside one of the device."""


class HostWait(AssertionError):
    """The host needed a value that the device computes."""


class Allocations:
    """Bytes of storages on the device, by purpose."""

    def __init__(self):
        self.held, self.most = Counter(), Counter()
        self._purpose, self._storages = "model", weakref.WeakSet()

    def add(self, tensor):
        """Count the memory of a tensor once, for as long as something holds it."""
        storage = tensor.untyped_storage()
        if storage not in self._storages:
            self._storages.add(storage)
            self._hold(self._purpose, storage.nbytes())
            weakref.finalize(storage, self._hold, self._purpose, -storage.nbytes()).atexit = False

    @contextmanager
    def count_allocations(self, purpose):
        """Count allocations within the `with` block for `purpose`."""
        before, self._purpose = self._purpose, purpose
        yield
        self._purpose = before

    def _hold(self, purpose, num_bytes):
        self.held[purpose] += num_bytes
        self.most[purpose] = max(self.most[purpose], self.held[purpose])


class DeviceWatcher(TorchDispatchMode):
    """Refuses what a step on `device` must not do, and counts what it allocates there."""

    def __init__(self, device="cuda"):
        super().__init__()
        self.device, self.allocations = device, Allocations()
        self.layer, self.operations = None, defaultdict(Counter)  # of each layer, by name and shapes

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.ops.prim.device.default:  # asked before each operation, by torch itself
            return function(*args, **kwargs)
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        self._refuse_waiting(function, inputs, args, kwargs)
        outputs = function(*args, **kwargs)
        found = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
        self.operations[self.layer][function, tuple((tensor.shape, tensor.dtype) for tensor in (*inputs, *found))] += 1
        self._refuse_hosts_tensors(function, inputs, found)
        for tensor in found:
            if tensor.device.type == self.device:
                self.allocations.add(tensor)
        return outputs

    def _refuse_waiting(self, function, inputs, args, kwargs):
        if function in BY_INDEX:
            if any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tree_leaves(args[1]) if tensor is not None):
                raise HostWait(f"{function} by a mask: how many rows it takes, only the device knows")
        elif OUT_OF_VALUES & set(function.tags) and kwargs.get("output_size") is None:
            raise HostWait(f"{function} makes a number or a shape out of values")
        if (
            function is aten._to_copy.default
            and self._is_on_device(inputs[0])
            and not self._keeps_device(kwargs.get("device"))
        ):
            raise HostWait(f"{function} copies {list(inputs[0].shape)} to the host")
        if function is aten.copy_.default and self._is_on_device(inputs[1]) and not self._is_on_device(inputs[0]):
            raise HostWait(f"{function} copies {list(inputs[1].shape)} to the host")

    def _refuse_hosts_tensors(self, function, inputs, outputs):
        places = {tensor.device.type for tensor in inputs}
        if function in (aten._to_copy.default, aten.copy_.default):
            if self.layer is not None and places != {self.device}:
                raise OffTheDevice(f"{function} takes {list(inputs[0].shape)} from the host in layer {self.layer}")
        elif len(places) > 1:
            shapes = [(tensor.device.type, list(tensor.shape)) for tensor in inputs]
            raise OffTheDevice(f"{function} takes tensors of two devices: {shapes}")
        elif function not in ON_ITS_WAY and any(not self._is_on_device(tensor) for tensor in outputs):
            raise OffTheDevice(f"{function} makes {[list(tensor.shape) for tensor in outputs]} on the host")

    def _is_on_device(self, tensor):
        return tensor.device.type == self.device

    def _keeps_device(self, device):
        return device is None or torch.device(device).type == self.device
