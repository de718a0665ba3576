"""The ranks of a unit on GPUs: rows travel over NCCL, and the hosts agree over gloo.

    votes, texts      on the host, by gloo and the store, as on CPUs (`group.py`)
    rows              on the device, by NCCL, on a queue beside the compute queue
    an exchange       is issued to that queue when it begins; the compute queue waits for it on the device

If the host must know the sizes of an all-to-all, it waits for them when the exchange begins. By then all work that the
rows depend on has been issued, and the rows move while the other micro-batch computes.

The process group is made directly, as gloo's is, because `init_process_group` would listen on the host name's address.
NCCL finds its interfaces by `NCCL_SOCKET_IFNAME` and `NCCL_IB_HCA`, which the pod's environment sets.

If a peer ends while rows travel, NCCL reports an error. If its transport reports nothing, torch's watchdog ends this
process after `STEP_TIMEOUT`. Between steps, gloo's votes notice the loss. The watchdog does not see replayed steps; for
these, `worker/step_deadline.py` ends the rank.

We have run exchanges of 2 and 4 ranks on one H100 (docs/performance.md), and none between GPUs yet. ROCm's torch has
RCCL under the same names, which we have not run.

Sources: torch `torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp` (waits, watchdog); NCCL documentation, "Environment
Variables".
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from runtime.errors import PeerLost
from runtime.expert_parallel.group import STEP_TIMEOUT, GlooGroup, first_line
from runtime.kernels.device import CudaQueue, SideQueue

__all__ = ["NcclGroup"]

T = TypeVar("T")


class NcclGroup(GlooGroup):
    """Ranks as processes, each on a GPU of its own."""

    def __init__(
        self, rank: int, size: int, nodes: Sequence[int] | None, device: torch.device, queue: SideQueue | None = None
    ) -> None:
        """Make the group of `device`, this process's own.

        Exchanges run on `queue`, by default a stream of the device.
        """
        super().__init__(rank, size, nodes)
        self._device = device
        self._queue = CudaQueue(device) if queue is None else queue

    def _connect(self, address: str) -> None:
        """Connect by gloo, and give NCCL the store where its peers meet. NCCL connects in the first exchange."""
        super()._connect(address)
        self._nccl = _nccl(self._store, self.rank, self.size)

    def all_to_all(self, rows: Tensor, send: list[int], receive: list[int]) -> Tensor:
        """Do one variable-size all-to-all on the current CUDA stream. The stream waits for it, the host does not.

        Raises PeerLost if a rank or its link is gone.
        """
        received = rows.new_empty((sum(receive), *rows.shape[1:]))
        try:
            self._nccl.alltoall_base(received, rows, receive, send).wait()
        except dist.DistBackendError as error:
            raise PeerLost(f"a rank of this unit is gone, or its link is ({first_line(error)})") from None
        return received

    def begin(self, exchange: Callable[[], T]) -> "_IssuedExchange[T]":
        """Issue the exchange beside the computation."""
        with self._queue.side_work():
            result = exchange()
            mark = self._queue.mark()
        return _IssuedExchange(self._queue, mark, result, exchange)


class _IssuedExchange(Generic[T]):
    """An exchange in the device's queue. It keeps its inputs until the computation is ordered after it."""

    def __init__(self, queue: SideQueue, mark: Any, result: T, exchange: Callable[[], T]) -> None:
        self._queue, self._mark, self._result = queue, mark, result
        self._exchange: Callable[[], T] | None = exchange

    def result(self) -> T:
        """Order later computation after the exchange, and return its result."""
        self._queue.join(self._mark)
        self._exchange = None
        return self._result


def _nccl(store: dist.Store, rank: int, size: int) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = STEP_TIMEOUT
    return dist.ProcessGroupNCCL(dist.PrefixStore("rows", store), rank, size, options)
