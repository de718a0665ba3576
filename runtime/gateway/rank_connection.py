"""One rank as the gateway sees it: what it said in Hello, its state, and who waits for its tokens.

It sends frames and passes tokens on. It does not decide which ranks are admitted (`registry.py`) or what a request does
with its tokens (`generation.py`).
"""

import asyncio
from collections.abc import Callable
from typing import Literal

from runtime.errors import WireError
from runtime.protocol.frames import encode_frame
from runtime.protocol.messages import (
    Abort,
    Dismissed,
    Embedding,
    Failed,
    FromGateway,
    FromRank,
    Hello,
    RankState,
    State,
    Token,
)
from runtime.protocol.sockets import write_or_hang_up

__all__ = ["Answer", "Listener", "Rank"]

Answer = Token | Embedding | Failed
Listener = Callable[["Rank", Answer], None]


class Rank:
    """A rank from its Hello on. Once its connection is gone it stays as "lost", so that status can show it."""

    def __init__(self, hello: Hello, writer: asyncio.StreamWriter) -> None:
        self.hello = hello
        self.state: RankState | Literal["lost"] = "loading"
        self.loaded = 0.0  # of its tensors, of 1
        self._writer = writer
        self._listeners: dict[str, Listener] = {}

    def __str__(self) -> str:
        return f"rank {self.hello.rank} of unit {self.hello.unit}"

    @property
    def num_requests(self) -> int:
        """The requests that this rank has or is about to get."""
        return len(self._listeners)

    def subscribe(self, request_id: str, listener: Listener) -> None:
        """Give `listener` everything that this rank says of the request from now on."""
        self._listeners[request_id] = listener

    def unsubscribe(self, request_id: str) -> bool:
        """Stop listening to the request; return whether somebody did."""
        did = self._listeners.pop(request_id, None) is not None
        self._dismiss_if_free()
        return did

    def send(self, message: FromGateway) -> None:
        """Queue one frame. Nothing is sent to a lost rank."""
        if self.state != "lost":
            write_or_hang_up(self._writer, encode_frame(message))

    def take(self, message: FromRank) -> None:
        """Act on what the rank says. Raise WireError."""
        match message:
            case State(state=state, loaded=loaded):
                self.state, self.loaded = state, loaded
                self._dismiss_if_free()
            case Token() | Embedding() | Failed():
                self._pass_on(message)
            case Hello():
                raise WireError(f"{self} said Hello twice")

    def fail_all(self, reason: str) -> None:
        """Fail every request that this rank had: nothing more comes from it."""
        self.state = "lost"
        for request_id, listener in list(self._listeners.items()):
            listener(self, Failed(request_id, reason))

    def hang_up(self, reason: str) -> None:
        """End the connection, which is of no more use, and fail every request that it had."""
        self.fail_all(reason)
        self._writer.transport.abort()

    def _dismiss_if_free(self) -> None:
        """Let a rank that wants to leave go once nobody here waits for it. New requests already go to other units."""
        if self.state == "draining" and not self._listeners:
            self.send(Dismissed())

    def _pass_on(self, message: Answer) -> None:
        listener = self._listeners.get(message.request_id)
        if listener is not None:
            listener(self, message)
        elif isinstance(message, Token) and message.finish_reason is None:
            self.send(Abort(message.request_id))  # an Abort can overtake the handover that brings the request here
