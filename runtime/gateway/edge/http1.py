"""HTTP/1.1 by uvicorn and h11, with what uvicorn lacks: what a connection waits for, and errors as OpenAI's JSON.

Input that is not HTTP never reaches the routes (`app.py`). It gets a 400, and the connection is closed. So does a head
that gives the body's length in two ways: a proxy before us may believe the other one, and take the rest of the body for
another client's request (RFC 9112, section 6.1). If a head has a whole URL as its target, as proxies send it, only
the path counts, because we answer to any host name. A head may have MAX_HEADERS fields and MAX_HEAD_BYTES.
A client that closes its sending half counts as gone, since there is no other sign that it has left.
Input comes in pieces of PIECE_BYTES. Each is parsed in slices, in turn with other clients' (`input_turns.py`).
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
from runtime.protocol.metrics_server import target_path

__all__ = ["MAX_HEAD_BYTES", "Http1", "check_heads"]

MAX_HEADERS = 100  # assumed: browsers and proxies send some thirty
MAX_HEAD_BYTES = 16 * 2**10  # h11's default
PIECE_BYTES = 16 * 2**10  # assumed


class Http1(H11Protocol, asyncio.BufferedProtocol):
    """One client's connection."""

    _piece = bytearray(PIECE_BYTES)  # shared by all: asyncio fills it and hands it over at once

    def __init__(self, config: uvicorn.Config, state: ServerState, connections: Connections, turns: InputTurns) -> None:
        super().__init__(config, state, app_state={})
        self._connections = connections
        self._turns = turns
        self._unread = bytearray()
        self._head_is_due = True  # a head is due: the first one as soon as the connection is open
        self._is_refused = False

    @property
    def peer(self) -> str:
        """The client's address and port."""
        return ":".join(map(str, self.client)) if self.client else "a client"

    def current_wait(self) -> Wait:
        """Return what the connection waits for now."""
        if self.flow.write_paused or self.transport.is_closing():
            return Wait.READER
        if self._is_refused:
            return Wait.END
        if self.conn.their_state is h11.SEND_BODY:
            return Wait.BODY
        if self.conn.their_state is h11.IDLE:
            return Wait.REQUEST if self._head_is_due else Wait.NEXT
        return Wait.GATEWAY

    def end(self, wait: Wait) -> None:
        """End the connection, because this wait was too long.

        A client that has sent a part of a head gets an answer.
        """
        if wait is Wait.REQUEST and self._has_partial_head():
            self._refuse(head_too_slow())
        if wait is Wait.READER or self.transport.get_write_buffer_size():
            self.transport.abort()  # closing would wait for the reader
        else:
            self.transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Register the new connection."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self.conn)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._connections.forget(self)
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return the buffer for the next piece of input."""
        return self._piece

    def buffer_updated(self, nbytes: int) -> None:
        """Keep a piece of input until it is this connection's turn to have its input parsed.

        If much is kept, stop reading. After a refusal the input is dropped.
        """
        if self._is_refused:
            return
        self._head_is_due = True
        if not self._unread:
            self._turns.add(self)
        self._unread += self._piece[:nbytes]
        if len(self._unread) > PIECE_BYTES:
            self.transport.pause_reading()

    def take_slice(self) -> bool:
        """Parse the next slice of the client's input. Return whether there is more to parse.

        If the client was refused or the connection is closing, drop the input instead.
        """
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
        """Record that the answer is written: the connection now waits for the next request."""
        self._head_is_due = False
        super().on_response_complete()
        self._unset_keepalive_if_required()  # uvicorn's own timeout: a single byte would cancel it
        self._head_is_due = self._has_partial_head()
        self._connections.note(self, restarts=True)

    def pause_writing(self) -> None:
        """Stop writing until the client has read more: the connection now waits for its reader."""
        super().pause_writing()
        self._connections.note(self)

    def resume_writing(self) -> None:
        """Continue writing, since the client has read more."""
        super().resume_writing()
        self._connections.note(self)

    def handle_events(self) -> None:
        """Handle the events that h11 has parsed.

        Where uvicorn would close the connection after an answer, `_hang_up` does it instead.
        """
        super().handle_events()
        if self.cycle is not None and self.cycle.transport is self.transport:
            self.cycle.transport = _AnswerTransport(self.transport, self._hang_up)  # type: ignore[assignment]

    def send_400_response(self, msg: str) -> None:
        """Answer that the input is not HTTP, with h11's reason, and close."""
        reason = sys.exception()  # uvicorn does not pass it on
        assert isinstance(reason, h11.RemoteProtocolError)
        reason.__traceback__ = (
            None  # its frames refer to the error; many such cycles cost the garbage collector 40 ms at once
        )
        is_too_large = reason.error_status_hint == 431
        self._connections.complain(f"closed the connection of {self.peer}: {reason}")
        self._refuse(head_too_large(MAX_HEAD_BYTES) if is_too_large else invalid(str(reason), code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error, unless an answer has begun. In both cases `_linger` afterwards.

        A handler that is still answering is cut off.
        """
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(encode_refusal(error))
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._linger()

    def _hang_up(self) -> None:
        """Close the connection after an answer.

        While the client is still sending, linger instead: the client may read the answer only later.
        """
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Read and drop input until the client closes. A client that sends when we close would lose the answer."""
        self._is_refused = True
        self._unread.clear()
        self.transport.write_eof()
        self.transport.resume_reading()

    def _has_partial_head(self) -> bool:
        """Return whether a part of a head has arrived."""
        return bool(self._unread or self.conn.trailing_data[0])


class _AnswerTransport:
    """The transport that uvicorn writes an answer to. Closing it calls the function `close` instead."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class _Flow(FlowControl):
    """Stops reading while h11 holds enough input for later requests.

    uvicorn resumes reading whenever a route listens for its client to leave, which is once a request. Each time up to a
    whole piece of input would arrive, although the next request takes only a few bytes of it.
    """

    def __init__(self, transport: asyncio.Transport, conn: h11.Connection) -> None:
        super().__init__(transport)
        self._conn = conn

    def resume_reading(self) -> None:
        """Resume reading from the client if there is room for more input."""
        if len(self._conn.trailing_data[0]) <= PIECE_BYTES:
            super().resume_reading()


def check_heads(app: ASGIApp) -> ASGIApp:
    """Return `app` behind a check that refuses heads with too many fields or with two lengths.

    The app gets the path of the target, never a whole URL.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        error = _find_fault(scope["headers"])
        if error is not None:
            await JSONResponse(error.body(), error.status, error.headers())(scope, receive, send)
        else:
            await app({**scope, "path": target_path(scope["path"])}, receive, send)

    return answer


def _find_fault(fields: Collection[tuple[bytes, bytes]]) -> ApiError | None:
    """Return the error in a head; None if there is none. h11 has already checked each field by itself."""
    if len(fields) > MAX_HEADERS:
        return head_too_large(MAX_HEADERS, "fields")
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in fields}:
        return ambiguous_length()
    return None
