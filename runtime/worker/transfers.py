"""Outgoing KV transfers of a prefill rank, handed from the step loop's thread to the network's.

    step loop                                       event loop
        RankTransfer.put(), finish(), cancel()  -->     Transfers -> KvSender

The step loop hands over a view and goes on. Everything else is done on the network's thread: connections, checksums,
waiting. A transfer begins with its first latents; one that nobody wants any more takes nothing in.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from torch import Tensor

from runtime.errors import RuntimeFailure
from runtime.kernels.device import HostLink
from runtime.kv.sender import KvSender, Outgoing
from runtime.protocol.messages import Handover, Offer

__all__ = ["RankTransfer", "Transfers"]

Start = Callable[[Callable[[], Coroutine[Any, Any, None]]], "asyncio.Task[None]"]


class RankTransfer:
    """One request's transfer, as the step loop uses it."""

    def __init__(
        self, transfers: "Transfers", address: tuple[str, int], offer: Offer, link: HostLink, chain: bytes
    ) -> None:
        self.address = address
        self.outgoing = Outgoing(offer, chain)
        self.is_begun = False
        self._transfers, self._link = transfers, link

    @property
    def request_id(self) -> str:
        """The id of the transferred request."""
        return self.outgoing.offer.request_id

    def put(self, layer: int, start: int, latent_TC: Tensor) -> None:
        """Send the next latents of a layer, [T, C], from position `start` on. The latents must not change any more."""
        if not self.is_begun:
            self.is_begun = True
            self._transfers.begin(self)
        host_TC, arrived = self._link.begin_to_host(latent_TC)
        self._transfers.put(self, layer, start, host_TC, arrived)

    def finish(self, handover: Handover) -> None:
        """Send the request itself, after all of its latents."""
        self._transfers.finish(self, handover)

    def cancel(self) -> None:
        """Send nothing more, since nobody waits for the request."""
        self._transfers.cancel(self)


class Transfers:
    """All transfers of a rank. `soon` calls a function on the network's thread, where `start` makes tasks."""

    def __init__(
        self,
        sender: KvSender,
        soon: Callable[..., None],
        start: Start,
        failed: Callable[[str, str], None],
    ) -> None:
        """Begin without transfers.

        `failed(request_id, reason)` is called on the network's thread when a transfer fails.
        """
        self._sender, self._soon, self._start, self._failed = sender, soon, start, failed
        self._tasks: dict[str, asyncio.Task[None]] = {}  # request id -> its task
        self._under_way: set[str] = set()  # ids of requests, from the step loop's first call on

    @property
    def are_under_way(self) -> bool:
        """True if any request's KV is on its way, as far as the step loop knows."""
        return bool(self._under_way)

    def begin(self, transfer: RankTransfer) -> None:
        """Begin a transfer by connecting to its decode rank."""
        self._under_way.add(transfer.request_id)
        self._soon(self._begin, transfer)

    def put(
        self,
        transfer: RankTransfer,
        layer: int,
        start: int,
        host_TC: Tensor,
        arrived: Callable[[], None] | None,
    ) -> None:
        """Let the sender's thread queue latents of a layer from position `start` on.

        The latents are in host memory once `arrived` has returned, or already if it is None.
        """
        self._soon(self._sender.put, transfer.outgoing, layer, start, host_TC, arrived)

    def finish(self, transfer: RankTransfer, handover: Handover) -> None:
        """Send the request itself, after all of its latents."""
        self._soon(transfer.outgoing.finish, handover)

    def cancel(self, transfer: RankTransfer) -> None:
        """End a transfer, whether it has begun or not."""
        self._soon(self.abort, transfer.request_id)

    def abort(self, request_id: str) -> None:
        """End a request's transfer if it has begun. Called on the network's thread."""
        if (task := self._tasks.get(request_id)) is not None:
            task.cancel()

    def _begin(self, transfer: RankTransfer) -> None:
        request_id = transfer.request_id

        async def send() -> None:
            try:
                await self._sender.send(*transfer.address, transfer.outgoing)
            except RuntimeFailure as error:
                self._failed(request_id, str(error))

        def forget(_: object) -> None:
            transfer.outgoing.fail("it has ended")  # later latents are dropped
            if self._tasks[request_id] is task:
                del self._tasks[request_id]
            self._under_way.discard(request_id)

        self._tasks[request_id] = task = self._start(send)
        task.add_done_callback(forget)
