"""The meeting of a unit's ranks: at a store that the first rank serves, on a host known by name.

In a cluster the name has no address before the leader's pod runs, or still has an earlier pod's address. So it is
looked up again until the leader answers. One node may take minutes longer than another to pull its image or load its
weights, and gloo waits for a peer no longer than for a step. So no rank connects to a peer before all are here.

The store accepts any data from any client. So its listening socket is closed when all ranks have joined. They keep
using their open connections. torch opens another one only to split a group, which does not happen here.
"""

import ipaddress
import os
import socket
import sys
import time
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from runtime.errors import PeerLost
from runtime.protocol.sockets import listen, look_up

__all__ = ["Meeting", "MeetingPoint", "meet"]

JOIN_TIMEOUT = timedelta(hours=1)  # assumed: the slowest node has its image and its weights by then
CALL_TIMEOUT = timedelta(seconds=10)  # assumed: an address that is silent for so long is no longer the leader's
RETRY_S = 0.5


@dataclass(frozen=True)
class MeetingPoint:
    """The place where the ranks of a unit find each other.

    `leader` is the host of the unit's first node, and `address` the address that this rank binds. `first` says whether
    this rank is the first of its node. On the leader's node, the first rank serves the store.
    """

    leader: str
    port: int
    first: bool
    address: str


@dataclass
class Meeting:
    """The store, as one of `size` ranks sees it. `listener` is its listening socket, if this rank serves it."""

    store: dist.Store
    rank: int
    size: int
    listener: int | None = None

    def await_all(self, word: str, timeout: timedelta) -> None:
        """Announce `word` for this rank, and wait until all ranks have. Raises torch's RuntimeError after `timeout`."""
        self.store.set(f"{word}/{self.rank}", "")
        self.store.wait([f"{word}/{peer}" for peer in range(self.size)], timeout)

    def stop_listening(self) -> None:
        """Stop accepting connections, if this rank does.

        The descriptor leads nowhere from now on, and stays open because torch will close it.
        """
        if self.listener is not None:
            nowhere = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nowhere, self.listener, inheritable=False)
            os.close(nowhere)
            self.listener = None


def meet(point: MeetingPoint, rank: int, size: int) -> Meeting:
    """Return the store, once all `size` ranks are there.

    Raises PeerLost if the leader cannot be reached in time, torch's RuntimeError if a rank does not come in time, and
    RuntimeFailure if this rank serves the store and cannot listen.
    """
    store, listener = _find_store(point, size)
    meeting = Meeting(store, rank, size, listener)
    meeting.await_all("here", JOIN_TIMEOUT)
    return meeting


def _find_store(meeting: MeetingPoint, size: int) -> tuple[dist.Store, int | None]:
    deadline = time.monotonic() + JOIN_TIMEOUT.total_seconds()
    complained = False
    while True:
        try:
            leader = look_up(meeting.leader, meeting.address)
            if meeting.first and leader == str(ipaddress.ip_address(meeting.address)):
                return _serve(meeting, size)
            return dist.TCPStore(leader, meeting.port, size, is_master=False, timeout=CALL_TIMEOUT), None
        except (socket.gaierror, dist.DistError) as error:
            if time.monotonic() > deadline:
                raise PeerLost(
                    f"the unit's leader {meeting.leader}:{meeting.port} cannot be reached: {error}"
                ) from None
            if not complained:
                complained = True
                where = f"{meeting.leader}:{meeting.port}"
                print(f"tidemill: waiting for the unit's leader {where}: {error}", file=sys.stderr, flush=True)
        time.sleep(RETRY_S)


def _serve(meeting: MeetingPoint, size: int) -> tuple[dist.Store, int]:
    """Return the store and its socket's descriptor. The socket is ours: torch's would listen on every address."""
    listener = listen(meeting.address, meeting.port, "rendezvous").detach()
    store = dist.TCPStore(
        meeting.address, meeting.port, size, True, CALL_TIMEOUT, wait_for_workers=False, master_listen_fd=listener
    )
    return store, listener
