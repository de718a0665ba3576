"""The rank's sockets, on a thread of their own: no step waits for the network, and the network waits for no step.

    step loop (main thread)                      event loop (this thread)
        inbox.get()            <-- requests --   GatewayLinks, KvReceiver
        say(), Transfer.put()  --- messages -->  GatewayLinks, KvSender

Only queues and `call_soon_threadsafe` connect the two. Waking the event loop is a system call, and a step of 128
requests sends 128 tokens. So the loop is woken once for all calls that wait (`Calls`).
"""

import asyncio
import queue
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from runtime.expert_parallel.epochs.document import MAX_DOCUMENT_BYTES
from runtime.kernels.device import HostLink
from runtime.kv.receiver import KvReceiver
from runtime.kv.sender import KvSender
from runtime.protocol.frames import PIECE_BYTES
from runtime.protocol.messages import (
    Abort,
    Embedding,
    Expect,
    Failed,
    FromGateway,
    Hello,
    Load,
    Offer,
    PrefixHit,
    RankState,
    State,
    StepTime,
    Token,
    Wait,
)
from runtime.worker.gateway_connection import GatewayAddress
from runtime.worker.gateway_links import LOOK_S, GatewayLinks
from runtime.worker.transfers import RankTransfer, Transfers

__all__ = ["Calls", "Inbox", "Network"]

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
ADMITTED_LOOKS = 4  # assumed: 20 s, in which every serving rank calls a gateway that has just started

Inbox = queue.SimpleQueue[Any]  # messages for the phase, or the exception that ended the network's thread


class Calls:
    """Passes function calls from any thread to an event loop, which makes them in the order in which they came."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._is_woken = False

    def call_soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Let the event loop make this call soon."""
        self._waiting.append((call, arguments))
        if not self._is_woken:  # read after the call is queued; `_make_calls` clears it before it looks for calls
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._make_calls)

    def _make_calls(self) -> None:
        """Make all queued calls. A call that fails does not stop the others."""
        self._is_woken = False
        while self._waiting:
            call, arguments = self._waiting.popleft()
            self._loop.call_soon(call, *arguments)


class Network:
    """All connections of one rank."""

    def __init__(self, gateway: GatewayAddress, hello: Hello, inbox: Inbox, kv_sender: KvSender) -> None:
        self._inbox = inbox
        self._links = GatewayLinks(gateway, hello, self._receive, self._start)
        self._kv_receiver: KvReceiver | None = None
        self._loop = asyncio.new_event_loop()
        self._soon = Calls(self._loop).call_soon
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._state: RankState = "loading"
        self.refusal: str | None = None  # the reason why gateways send this unit no requests
        self._transfers = Transfers(kv_sender, self._soon, self._start, self._transfer_failed)
        threading.Thread(target=self._loop.run_forever, name="network", daemon=True).start()

    def open_links(self) -> None:
        """Open connections to the gateways, and keep them open."""
        self._soon(self._start, self._links.run)

    def open_kv_port(self, listener: socket.socket, receiver: KvReceiver) -> None:
        """Receive KV from prefill ranks on `listener`."""

        async def listen() -> None:
            await asyncio.start_server(receiver.serve, sock=listener, limit=PIECE_BYTES)

        self._kv_receiver = receiver  # before gateways hear that this rank is ready
        self._soon(self._start, listen)

    def open_control(self, listener: socket.socket, serve: Serve) -> None:
        """Receive documents of epochs on `listener`, and let `serve` answer each caller."""

        async def listen() -> None:
            await asyncio.start_unix_server(serve, sock=listener, limit=MAX_DOCUMENT_BYTES)

        self._soon(self._start, listen)

    def check(self) -> None:
        """Raises the error that ended this thread, such as a gateway's refusal.

        The step loop also finds it in its inbox.
        """
        if self._failure is not None:
            raise self._failure

    def say_state(self, state: RankState) -> None:
        """Send this rank's state to the gateways. A refused rank never reports that it is ready."""
        self._soon(self._say_state, state)

    def say_hello_again(self, loaded: Hello) -> None:
        """Tell all gateways, also those that connect later, what this rank has loaded."""
        self._soon(self._links.say_hello_again, loaded)

    def repeat_state(self) -> None:
        """Send the state again, as a sign that this rank's steps go on."""
        self._soon(self._links.repeat_state)

    def say_load(self, load: Load) -> None:
        """Send this rank's load to the gateways."""
        self._soon(self._links.say_load, load)

    def say_step_time(self, time: StepTime) -> None:
        """Send the time of this rank's own work in a step to the gateways."""
        self._soon(self._links.say_to_all, time)

    def say_loaded(self, loaded: float) -> None:
        """Send the gateways the loaded share of this rank's tensors, from 0 to 1.

        Raises the error that ended the network's thread, such as a gateway's refusal, so that loading stops.
        """
        self.check()
        self._soon(self._links.say_state, State("loading", loaded))

    def say_draining(self) -> None:
        """Report to the gateways that this rank takes no new requests."""
        self.say_state("draining")

    def is_dismissed(self) -> bool:
        """Return whether this draining rank owes no answer to a connected gateway."""
        return self._links.is_dismissed

    def is_handing_over(self) -> bool:
        """Return whether a request's KV is on its way to a decode rank."""
        return self._transfers.are_under_way

    def say(self, message: PrefixHit | Token | Embedding | Failed) -> None:
        """Send a message about a request to the request's gateway."""
        self._soon(self._links.say, message)

    def open_transfer(self, host: str, port: int, offer: Offer, link: HostLink, chain: bytes = b"") -> RankTransfer:
        """Return a transfer that takes a request's KV to a decode rank, from the first layer on.

        `chain` is the offer's payload. If the transfer fails, the request fails and its gateway gets the reason. An
        Abort ends the transfer.
        """
        return RankTransfer(self._transfers, (host, port), offer, link, chain)

    def _say_state(self, state: RankState) -> None:
        self._state = state
        self._links.say_state(State("joining" if state == "ready" and self.refusal is not None else state))

    def _refuse(self, reason: str) -> None:
        """Report that this rank is not ready, and log why: the process cannot change the weights that it has loaded."""
        if self.refusal is None:
            self.refusal = reason
            print(f"tidemill: this rank gets no requests: {reason}", file=sys.stderr, flush=True)
            self._say_state(self._state)
            self._start(self._await_other_gateways)

    async def _await_other_gateways(self) -> None:
        """Report this rank as ready again once only other gateways are connected and none refuses it.

        By then another deployment has begun. The wait lets a new gateway hear of the serving ranks before it hears of
        this one.
        """
        num_looks = 0
        while num_looks < ADMITTED_LOOKS:
            await asyncio.sleep(LOOK_S)
            num_looks = num_looks + 1 if self._links.is_admitted else 0
        self.refusal = None
        self._say_state(self._state)

    def _transfer_failed(self, request_id: str, reason: str) -> None:
        """Report to the gateway that a request's transfer failed, so that other ranks continue the request.

        Abort it here.
        """
        self._links.say(Failed(request_id, reason, may_retry=True))
        self._inbox.put(Abort(request_id))

    def _receive(self, message: FromGateway) -> None:
        if isinstance(message, Wait):
            self._refuse(message.reason)
            return
        if isinstance(message, Expect):
            if self._kv_receiver is not None:
                self._kv_receiver.expect(message.request_id, message.ticket)
            return
        if isinstance(message, Abort):
            self._transfers.abort(message.request_id)
            if self._kv_receiver is not None:
                self._kv_receiver.abort(message.request_id)
        self._inbox.put(message)

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        task = self._loop.create_task(work())
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[None]) -> None:
        """End the rank when a task failed: the step loop finds the error in the inbox, and raises it."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
            self._inbox.put(error)
