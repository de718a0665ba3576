"""The ranks of one unit as a group: their meeting, the collectives of expert parallelism, the thread of exchanges.

Ranks meet at a TCP store on the unit's leader, then talk over gloo. Every socket is bound to this node's address, also
the store's, for which torch would take every interface. A lost peer is noticed in the next collective, which ends this
rank: a unit lives or dies as a whole.

This file has the ranks on CPUs, `nccl.py` those on GPUs.

Exchanges run on one thread, in the order in which they were begun, as on the communication stream of a GPU. So an
exchange may have several collectives that need each other's results (sizes, then rows), and every rank does them in the
same order. gloo releases the interpreter's lock while it waits.

`SoloGroup` is the group of EP1, and the reference for `GlooGroup`. A group sends plain tensors, without names or
shapes: its callers agree on shapes.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from runtime.errors import PeerLost
from runtime.expert_parallel.rendezvous import MeetingPoint, meet
from runtime.trace import record_link

__all__ = ["Exchange", "GlooGroup", "Group", "SoloGroup"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

LOST_IN = "gloo/transport/"  # the source path in gloo's errors about closed, reset or silent connections
STEP_TIMEOUT = timedelta(seconds=120)  # no step takes this long, so a hanging rank counts as lost


class Exchange(Protocol[T_co]):
    """An exchange that has begun."""

    def result(self) -> T_co:
        """Return the exchange's result, for computation issued from now on. Raises PeerLost if a rank is gone."""


class Group(Protocol):
    """The interface that dispatch and the step loop need. Rank and size are known before the ranks join."""

    rank: int
    size: int
    nodes: tuple[int, ...]  # the node of each rank

    def join(self, meeting: MeetingPoint) -> None:
        """Wait until all ranks of the unit have joined.

        Raises PeerLost if a rank does not come in time, RuntimeFailure if rank 0 cannot listen at the meeting point.
        """

    def gather(self, part: bytes) -> list[bytes]:
        """Return each rank's part, on every rank. Call this for small parts, from one thread."""

    def any(self, flag: bool) -> bool:
        """Return True on every rank if `flag` is true on any rank."""

    def vote(self, *flags: bool) -> list[bool]:
        """Return for each flag whether it is true on any rank, so that ranks agree on a step."""

    def all_to_all(self, rows: Tensor, send: list[int], receive: list[int]) -> Tensor:
        """Send `send[r]` of `rows` to each rank r, in order. Return `receive[r]` rows from each, in order."""

    def begin(self, exchange: Callable[[], T]) -> Exchange[T]:
        """Run `exchange`, which calls `all_to_all`, in the background, after all earlier exchanges."""

    def trade(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]) -> None:
        """Send tensors to ranks and receive others, on a connection beside the steps'; wait for all.

        Raises PeerLost if a rank is gone.

        Call this from one thread, with tensors in host memory. Two ranks list the tensors between them in the same
        order.
        """


class SoloGroup:
    """A unit of one rank."""

    rank = 0
    size = 1
    nodes: tuple[int, ...] = (0,)

    def join(self, meeting: MeetingPoint) -> None:
        """Return at once: there are no other ranks."""

    def gather(self, part: bytes) -> list[bytes]:
        """Return a list of this part alone: there are no other ranks."""
        return [part]

    def any(self, flag: bool) -> bool:
        """Return the flag: there are no other ranks."""
        return flag

    def vote(self, *flags: bool) -> list[bool]:
        """Return the flags: there are no other ranks."""
        return list(flags)

    def all_to_all(self, rows: Tensor, send: list[int], receive: list[int]) -> Tensor:
        """Return the rows as they are: there are no other ranks."""
        assert send == receive == [len(rows)]
        return rows

    def begin(self, exchange: Callable[[], T]) -> Exchange[T]:
        """Do the exchange at once: there is nothing to wait for."""
        done: Future[T] = Future()
        done.set_result(exchange())
        return done

    def trade(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]) -> None:
        """Do nothing: there are no other ranks."""
        assert (len(sends), len(receives)) == (0, 0)


class GlooGroup:
    """Ranks as processes on CPUs, over TCP."""

    def __init__(self, rank: int, size: int, nodes: Sequence[int] | None = None) -> None:
        self.rank = rank
        self.size = size
        self.nodes = (0,) * size if nodes is None else tuple(nodes)
        self._exchanges = ThreadPoolExecutor(1, "exchanges")
        self._num_gathered = 0

    def join(self, meeting: MeetingPoint) -> None:
        """Meet at the store, then connect to every peer."""
        try:
            met = meet(meeting, self.rank, self.size)
            self._store = met.store  # kept, because the leader serves it as long as the group lives
            self._connect(meeting.address)
            met.await_all("joined", STEP_TIMEOUT)
            met.stop_listening()
        except RuntimeError as error:
            where = f"{meeting.leader}:{meeting.port}"
            raise PeerLost(f"rank {self.rank} could not join its peers at {where}: {first_line(error)}") from None

    def _connect(self, address: str) -> None:
        """Connect to the peers, whose addresses are in the store."""
        self._backend = gloo(self._store, "unit", self.rank, self.size, address)
        self._beside = gloo(self._store, "beside", self.rank, self.size, address)

    def gather(self, part: bytes) -> list[bytes]:
        """Return each rank's part, passed through the store."""
        names = [f"gathered/{self._num_gathered}/{rank}" for rank in range(self.size)]
        self._num_gathered += 1
        try:
            self._store.set(names[self.rank], part)
            self._store.wait(names, STEP_TIMEOUT)
            return self._store.multi_get(names)
        except RuntimeError as error:
            raise PeerLost(f"a rank of this unit is gone ({first_line(error)})") from None

    def any(self, flag: bool) -> bool:
        """Return whether the flag is true on any rank, by one all-reduce."""
        return self.vote(flag)[0]

    def vote(self, *flags: bool) -> list[bool]:
        """Return for each flag whether it is true on any rank, by one all-reduce for all flags."""
        votes = torch.tensor([int(flag) for flag in flags])
        with _raise_peer_lost():
            self._backend.allreduce([votes]).wait()
        return [num > 0 for num in votes.tolist()]

    def all_to_all(self, rows: Tensor, send: list[int], receive: list[int]) -> Tensor:
        """Do one variable-size all-to-all. `rows` is contiguous [sum(send), ...]; the result [sum(receive), ...]."""
        received = rows.new_empty((sum(receive), *rows.shape[1:]))
        with _raise_peer_lost():
            self._backend.alltoall_base(received, rows, receive, send).wait()
        return received

    def begin(self, exchange: Callable[[], T]) -> Exchange[T]:
        """Begin the exchange on the exchange thread."""
        return self._exchanges.submit(record_link(exchange))

    def trade(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]) -> None:
        """Send and receive tensors over a second gloo connection, so that they delay no row of a step."""
        with _raise_peer_lost():
            under_way = [self._beside.recv([tensor], peer, 0) for peer, tensor in receives]
            under_way += [self._beside.send([tensor], peer, 0) for peer, tensor in sends]
            for each in under_way:
                each.wait()


def gloo(store: dist.Store, name: str, rank: int, size: int, address: str) -> dist.ProcessGroupGloo:
    """Return a gloo process group.

    The group is made directly, because `init_process_group` would also listen on the host name's address.
    """
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = STEP_TIMEOUT
    return dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, size, options)


@contextmanager
def _raise_peer_lost() -> Iterator[None]:
    """Turn a RuntimeError of gloo's transport into PeerLost. Other RuntimeErrors are our bugs and pass unchanged."""
    try:
        yield
    except RuntimeError as error:
        if LOST_IN not in str(error):
            raise
        raise PeerLost(f"a rank of this unit is gone ({first_line(error)})") from None


def first_line(error: BaseException) -> str:
    """Return the first line of a backend's message, without the source position before it and the advice after it."""
    words = str(error).splitlines()[0].split(". This is typically", 1)[0]
    return words.partition("] ")[2] if words.startswith("[") else words
