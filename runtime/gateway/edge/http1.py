"""HTTP/1.1 by uvicorn and h11, with what uvicorn leaves open: whom a connection waits for, and errors as OpenAI's JSON.

A connection that says no HTTP never reaches the routes (`app.py`); it gets its 400 and is closed. So does a head that
says its body's length in two ways: a proxy before us may believe the other, and take what follows for another client's
request (RFC 9112, section 6.1). A head that names its target by a whole URL, as proxies do, means the URL's path: we
are whatever host a client calls us. A head may have MAX_HEADERS fields and MAX_HEAD_BYTES.
A client that closes its sending half has left: there is no other sign of that.
Input comes in pieces of PIECE_BYTES, and each is taken in by slices, in turn with other clients' (`input_turns.py`).
"""

import asyncio
import sys
from collections.abc import Callable, Collection

import h11
import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from runtime.gateway.edge.connections import Connections, Wait, encode_refusal
from runtime.gateway.edge.http_errors import ApiError, ambiguous_length, head_too_large, head_too_slow, invalid
from runtime.gateway.edge.input_turns import SLICE_BYTES, InputTurns
from runtime.protocol.metrics_server import path_of

__all__ = ["MAX_HEAD_BYTES", "Http1", "check_heads"]

MAX_HEADERS = 100  # assumed: browsers and proxies send some thirty
MAX_HEAD_BYTES = 16 * 2**10  # h11's default
PIECE_BYTES = 16 * 2**10  # assumed


class Http1(H11Protocol, asyncio.BufferedProtocol):
    """One client's connection."""

    _piece = bytearray(PIECE_BYTES)  # of all: asyncio fills and hands it over in one go

    def __init__(self, config: uvicorn.Config, state: ServerState, connections: Connections, turns: InputTurns) -> None:
        super().__init__(config, state, app_state={})
        self._connections = connections
        self._turns = turns
        self._unread = bytearray()
        self._is_in_head = True  # to say a head; the first one is due from the connection's beginning
        self._is_refused = False

    @property
    def peer(self) -> str:
        """The client's address and port."""
        return ":".join(map(str, self.client)) if self.client else "a client"

    def wait(self) -> Wait:
        """Return what the connection waits for now."""
        if self.flow.write_paused or self.transport.is_closing():
            return Wait.READER
        if self._is_refused:
            return Wait.END
        if self.conn.their_state is h11.SEND_BODY:
            return Wait.BODY
        if self.conn.their_state is h11.IDLE:
            return Wait.REQUEST if self._is_in_head else Wait.NEXT
        return Wait.GATEWAY

    def end(self, wait: Wait) -> None:
        """End the connection, with a word to a client that was sending."""
        if wait is Wait.REQUEST and self._has_partial_head():
            self._refuse(head_too_slow())
        if wait is Wait.READER or self.transport.get_write_buffer_size():
            self.transport.abort()  # closing would wait for the reader
        else:
            self.transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self.conn)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._connections.forget(self)
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return the place for the next piece of input."""
        return self._piece

    def buffer_updated(self, nbytes: int) -> None:
        """Keep the next piece of input until it is this connection's turn."""
        if self._is_refused:
            return
        self._is_in_head = True
        if not self._unread:
            self._turns.add(self)
        self._unread += self._piece[:nbytes]
        if len(self._unread) > PIECE_BYTES:
            self.transport.pause_reading()

    def take_slice(self) -> bool:
        """Take in a slice of what has come; return whether there is more."""
        if self._is_refused or self.transport.is_closing():
            self._unread.clear()
            return False
        input_slice = bytes(self._unread[:SLICE_BYTES])
        del self._unread[:SLICE_BYTES]
        self.data_received(input_slice)
        self._connections.note(self)
        if not self._unread and not self.flow.read_paused:
            self.transport.resume_reading()
        return bool(self._unread)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._is_in_head = False
        super().on_response_complete()
        self._unset_keepalive_if_required()  # uvicorn's own, which a single byte ends
        self._is_in_head = self._has_partial_head()
        self._connections.note(self, restarts=True)

    def pause_writing(self) -> None:
        """Wait for the reader."""
        super().pause_writing()
        self._connections.note(self)

    def resume_writing(self) -> None:
        """Go on writing."""
        super().resume_writing()
        self._connections.note(self)

    def handle_events(self) -> None:
        """Take in what h11 has read, and let an answer's end wait for its client."""
        super().handle_events()
        if self.cycle is not None and self.cycle.transport is self.transport:
            self.cycle.transport = _AnswerTransport(self.transport, self._hang_up)  # type: ignore[assignment]

    def send_400_response(self, msg: str) -> None:
        """Answer that this is no HTTP, with h11's reason, and close."""
        reason = sys.exception()  # uvicorn does not hand it on
        assert isinstance(reason, h11.RemoteProtocolError)
        reason.__traceback__ = None  # a frame of h11 in it holds the error: such rings are freed all at once, in 40 ms
        is_too_large = reason.error_status_hint == 431
        self._connections.complain(f"closed the connection of {self.peer}: {reason}")
        self._refuse(head_too_large(MAX_HEAD_BYTES) if is_too_large else invalid(str(reason), code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        """Say the error where no answer has begun, and linger. A route that is answering now speaks to nobody."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(encode_refusal(error))
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._linger()

    def _hang_up(self) -> None:
        """Close after an answer. Many clients say `Connection: close`, and read only when they have sent everything."""
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Read to the end and drop it: closing while the client sends would take the answer back."""
        self._is_refused = True
        self._unread.clear()
        self.transport.write_eof()
        self.transport.resume_reading()

    def _has_partial_head(self) -> bool:
        """Return whether a part of a head is here."""
        return bool(self._unread or self.conn.trailing_data[0])


class _AnswerTransport:
    """The transport as one answer of uvicorn's uses it, with our way to close it."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class _Flow(FlowControl):
    """Lets nothing more be read while h11 has requests for later.

    uvicorn reads on whenever a route listens for its client to leave. That is once a request, and brings a piece, of
    which the next request takes a few bytes.
    """

    def __init__(self, transport: asyncio.Transport, conn: h11.Connection) -> None:
        super().__init__(transport)
        self._conn = conn

    def resume_reading(self) -> None:
        """Read on, if there is room."""
        if len(self._conn.trailing_data[0]) <= PIECE_BYTES:
            super().resume_reading()


def check_heads(app: ASGIApp) -> ASGIApp:
    """Return `app`, with an answer before it for heads that have too many fields, or say two lengths.

    It is told paths only.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        error = _find_fault(scope["headers"])
        if error is not None:
            await JSONResponse(error.body(), error.status, error.headers())(scope, receive, send)
        else:
            await app({**scope, "path": path_of(scope["path"])}, receive, send)

    return answer


def _find_fault(fields: Collection[tuple[bytes, bytes]]) -> ApiError | None:
    """Return what is wrong with a head whose fields h11 has found right one by one."""
    if len(fields) > MAX_HEADERS:
        return head_too_large(MAX_HEADERS, "fields")
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in fields}:
        return ambiguous_length()
    return None
