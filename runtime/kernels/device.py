"""One rank's device: its choice, copies between it and the host, and a queue for work beside the compute.

    link     copies between the device and the host. A GPU copies in the background only from and to pinned memory.
    queue    work beside the computation: one micro-batch's exchanges beside the other's attention, and copies of
             arriving requests' latents beside the steps of running ones
    record   a step's kernels as one thing to launch

A CPU needs neither: `HostLink` copies at once. Tests replace links and queues, so that a rank runs on fake tensors
without a GPU.

The launch file chooses the kind of device; `backend.py` chooses the kernels.

Sources: CUDA C++ Programming Guide, "Page-Locked Host Memory" and "Streams"; torch, notes/cuda.rst, "Use pinned memory
buffers" and "CUDA streams".
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from runtime.errors import RuntimeFailure

__all__ = [
    *(
        "CPU",
        "PendingCopy",
        "CudaQueue",
        "CudaRecorder",
        "HostLink",
        "PinnedLink",
        "Recorder",
        "Recording",
        "SideQueue",
    ),
    *("describe", "use_device"),
]

CPU = torch.device("cpu")


def use_device(kind: str, local_rank: int) -> torch.device:
    """Return the device of a node's local rank, and make it this process's current device, before any allocation.

    `kind` is the launch file's `device`. Raises RuntimeFailure when there is no such device.
    """
    if kind == "cpu":
        return CPU
    if not torch.cuda.is_available():
        raise RuntimeFailure(
            f"the launch file's device is {kind}, but this process finds no GPU (torch {torch.__version__},"
            f" built for {_torch_build()}); give the pod its GPUs, or plan for gpu: cpu"
        )
    if local_rank >= (count := torch.cuda.device_count()):
        raise RuntimeFailure(
            f"this is local rank {local_rank}, which needs GPU {local_rank}, but the process sees {count}:"
            f" 0 to {count - 1}; give the pod one GPU for each of its ranks"
        )
    torch.cuda.set_device(local_rank)
    return torch.device(kind, local_rank)


def describe(device: torch.device) -> str:
    """Return a GPU as text: device, name by its driver, and architecture, such as `cuda:0 (NVIDIA H100, sm_90)`."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"{device} ({torch.cuda.get_device_name(device)}, sm_{major}{minor})"


def _torch_build() -> str:
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs only"


class HostLink:
    """Copies between host and device that are done when the call returns."""

    pins = False  # whether it pins host memory, which is slow

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return host memory for copies to and from a device."""
        return torch.empty(tuple(shape), dtype=dtype)

    def to_host(self, x: Tensor) -> Tensor:
        """Return a copy of `x` in host memory after the copying is done. A CPU's tensor is returned as it is."""
        if x.device.type == "cpu":
            return x
        host = self.empty(x.shape, x.dtype)
        host.copy_(x, non_blocking=True)
        self.finish(x.device)
        return host

    def begin_to_host(self, x: Tensor) -> tuple[Tensor, Callable[[], None] | None]:
        """Begin to copy `x` to host memory.

        Return the copy, and a function that waits for it (None if the copy is done already).
        """
        return self.to_host(x), None

    def begin_copy_to_device(self, copy: Callable[[], None]) -> "PendingCopy | None":
        """Call `copy`, which copies host memory to the device. Return None: here the copy is done.

        A link that copies in the background returns the pending copy.
        """
        copy()
        return None

    def begin_copy_from_device(self, copy: Callable[[], None]) -> "PendingCopy | None":
        """Call `copy`, which copies the device's memory to the host. Return None: here the copy is done.

        A link that copies in the background returns the pending copy.
        """
        copy()
        return None

    def track_copies(self) -> Callable[[], bool]:
        """Return a function that tells whether the copies to the device that were begun before this call are done."""
        return lambda: True

    def run_beside(self) -> AbstractContextManager[None]:
        """Do the work of the `with` block beside the steps.

        After the block the work is done. Call this on a thread of its own.
        """
        return nullcontext()

    def make_wait(self, device: torch.device) -> Callable[[], None]:
        """Return a function that waits until `device` has done the work issued before this call."""
        return lambda: None

    def finish(self, device: torch.device) -> None:
        """Wait until the copies that were begun from `device` have arrived."""


class PinnedLink(HostLink):
    """Copies to and from a GPU, through memory that the system never moves.

    Torch keeps freed pinned memory for the next request, and does not reuse it while a copy from it runs. It pins for
    the calling thread's GPU. A thread that has chosen none, such as the network's, would begin to use GPU 0.

    Copies to the device run beside the computation, which need not wait for them. A step's results are short, so they
    are copied on the stream that computed them. Other copies to the host have a queue of their own, because a GPU
    copies both ways at once.

    Threads that wait for a copy sleep on an event, which wakes them tens of microseconds late (assumed). The step's own
    wait (`finish`) spins, because the GPU has nothing to do until it ends, and the whole unit waits for its last rank.
    """

    pins = True

    def __init__(self, device: torch.device, queue: "SideQueue | None" = None) -> None:
        """Make the link. Copies to the device run on `queue`, by default a stream made for the first of them."""
        self._device, self._queue = device, queue
        self._queue_to_host: SideQueue | None = None

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return pinned memory."""
        with torch.cuda.device(self._device):
            return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def begin_to_host(self, x: Tensor) -> tuple[Tensor, Callable[[], None] | None]:
        """Begin to copy `x` on the compute stream. Return the copy, and a function by which any thread waits for it."""
        host = self.empty(x.shape, x.dtype)
        host.copy_(x, non_blocking=True)
        return host, self.make_wait(x.device)

    def begin_copy_to_device(self, copy: Callable[[], None]) -> "PendingCopy":
        """Begin a copy to the device after all work issued so far. The copy runs beside the computation."""
        self._queue = CudaQueue(self._device) if self._queue is None else self._queue
        return _begin_beside(self._queue, copy)

    def begin_copy_from_device(self, copy: Callable[[], None]) -> "PendingCopy":
        """Begin a copy to the host, after all work issued so far.

        The copy runs beside the computation and beside copies to the device.
        """
        self._queue_to_host = CudaQueue(self._device) if self._queue_to_host is None else self._queue_to_host
        return _begin_beside(self._queue_to_host, copy)

    def track_copies(self) -> Callable[[], bool]:
        """Return a function that tells whether the copies to the device begun so far are done.

        Any thread may call it.
        """
        if self._queue is None:  # nothing was copied
            return lambda: True
        return partial(self._queue.has_passed, self._queue.mark())

    @contextmanager
    def run_beside(self) -> Iterator[None]:
        """Issue the block's work to a stream of its own, behind what the compute stream has now, and wait for it."""
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.default_stream(self._device))
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()

    def make_wait(self, device: torch.device) -> Callable[[], None]:
        """Return a function that waits for the work that the compute stream has now, by an event."""
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(device))
        return event.synchronize

    def finish(self, device: torch.device) -> None:
        """Wait for the compute stream, on which the copies were begun."""
        torch.cuda.current_stream(device).synchronize()


def _begin_beside(queue: "SideQueue", copy: Callable[[], None]) -> "PendingCopy":
    with queue.side_work():
        copy()
        return PendingCopy(queue, queue.mark(), copy)


class Recording(Protocol):
    """A recording of a device's work, which can be replayed."""

    def replay(self) -> None:
        """Repeat the work with the present values of its inputs. The host does not wait."""


class Recorder(Protocol):
    """Records a device's work."""

    def record(self, compute: Callable[[], Tensor]) -> tuple[Recording, Tensor]:
        """Return the recording of `compute`, and the tensor that each replay writes."""


class CudaRecorder:
    """Records CUDA graphs. The graphs share their memory, since one replay ends before the next begins."""

    def __init__(self, device: torch.device) -> None:
        self._pool, self._device = torch.cuda.graph_pool_handle(), device

    def record(self, compute: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Return the graph of this thread's launches, and its result; other threads may go on.

        Raises RuntimeError if a launch cannot be captured.
        """
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = compute()
        return graph, result


class SideQueue(Protocol):
    """A second queue of a device's work, beside the compute queue."""

    def side_work(self) -> AbstractContextManager[None]:
        """Issue the work of the `with` block to this queue, to run after all work that the compute queue has now."""

    def mark(self) -> Any:
        """Return a mark behind all work that this queue has now."""

    def has_passed(self, mark: Any) -> bool:
        """Return whether the queue has done all work before `mark`."""

    def join(self, mark: Any) -> None:
        """Let later work of the compute queue wait for the work before `mark`."""


@dataclass(frozen=True)
class PendingCopy:
    """A copy to or from the device, begun on `queue`. It holds the copy's inputs, so keep it until `join`."""

    queue: SideQueue
    mark: Any
    copy: Callable[[], None]

    def has_arrived(self) -> bool:
        """Return whether the copy is done, without waiting."""
        return self.queue.has_passed(self.mark)

    def join(self) -> None:
        """Order later computation after the copy."""
        self.queue.join(self.mark)


class CudaQueue:
    """A CUDA stream. The host never waits here.

    The computation may use a tensor of this stream once it has joined, and the tensor may be freed at any time. Torch
    gives the memory only to this stream again, in a later `side_work`, which begins after every use that was issued by
    then. So no tensor needs `record_stream`. While a graph is recorded, torch would keep the memory of a tensor with
    `record_stream` (`c10/cuda/CUDACachingAllocator.cpp`, `free`), and a step has an exchange for each layer.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    @contextmanager
    def side_work(self) -> Iterator[None]:
        """Issue the work of the `with` block to the stream."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield

    def mark(self) -> torch.cuda.Event:
        """Return an event, recorded after all work that the stream has now."""
        return self._stream.record_event()

    def has_passed(self, mark: torch.cuda.Event) -> bool:
        """Return whether the stream has passed the event."""
        return mark.query()

    def join(self, mark: torch.cuda.Event) -> None:
        """Let later work of the compute stream wait for the event."""
        torch.cuda.current_stream(self._device).wait_event(mark)
