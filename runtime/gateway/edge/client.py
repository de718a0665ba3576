"""The client's side of an HTTP call: read its body within limits, stream to it, and notice when it leaves.

Why it exists: an answer takes seconds to minutes, and a rank that works for a client that left takes KV from others.
Starlette notices when a client leaves while the response is being sent, but not while it is being computed. Nothing
below Starlette ends an endless body, or keeps a stream alive whose next token takes long.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from runtime.gateway.edge.http_errors import body_too_large, body_too_slow, compressed_body, too_many_bodies
from runtime.protocol.frames import FRAME_TIMEOUT_S

__all__ = ["Bodies", "EventStream", "run_while_connected"]

MAX_BODY_BYTES = 8 * 2**20  # a 128k-token prompt is about 1 MB, as text or as ids
MAX_BODIES_BYTES = 32 * MAX_BODY_BYTES  # assumed: a quarter GiB of memory, some 256 of the longest prompts
BODY_TIMEOUT_S = FRAME_TIMEOUT_S  # as for a rank's frame
# Proxies drop a response that is silent for a while. WHATWG HTML 9.2.7 advises a comment "every 15 seconds or so".
# Readers of server-sent events skip it.
SILENCE_S = 15.0
COMMENT = b": the answer goes on\n\n"

T = TypeVar("T")


class Bodies:
    """Bounds the total size of all request bodies in memory, unfinished ones included."""

    def __init__(self) -> None:
        self._num_bytes = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Read a request's whole body and yield it.

        The body counts towards the bound until the end of the context. Raises ApiError if the body is compressed, too
        large or too slow, or if memory is short, and ClientDisconnect if the client leaves.
        """
        _check_encoding(request)
        body = bytearray()
        try:
            await self._fill(body, request)
            yield bytes(body)
        finally:
            self._num_bytes -= len(body)

    async def _fill(self, body: bytearray, request: Request) -> None:
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                async for part in request.stream():
                    body += part
                    self._num_bytes += len(part)
                    if len(body) > MAX_BODY_BYTES:
                        raise body_too_large(MAX_BODY_BYTES)
                    if self._num_bytes > MAX_BODIES_BYTES:
                        raise too_many_bodies()
        except TimeoutError:
            raise body_too_slow(BODY_TIMEOUT_S) from None


def _check_encoding(request: Request) -> None:
    """Raises ApiError for a compressed body: a few bytes may expand to gigabytes."""
    encoding = ", ".join(request.headers.getlist("content-encoding"))
    if encoding.strip().lower() not in ("", "identity"):
        raise compressed_body(encoding)


async def run_while_connected(request: Request, work: Coroutine[None, None, T]) -> T:
    """Return the result of `work`. The request's body must have been read.

    Raises ClientDisconnect if the client leaves first; the work is cancelled.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """A response of server-sent events. `close` is called in the end, whatever happens.

    While no event comes, for instance while a unit restarts, a comment is sent every SILENCE_S.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], headers: dict[str, str], close: Callable[[], None]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"} | headers)
        self._close = close
        self._sending = asyncio.Lock()  # one message at a time, whole
        self._sent_at: float | None = None  # None before the response begins and after its end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response: its events, and comments while no event comes."""
        comments = asyncio.create_task(self._send_comments(send))
        try:
            await super().__call__(scope, receive, partial(self._send, send))
        finally:
            comments.cancel()
            self._close()

    async def _send(self, send: Send, message: Message) -> None:
        async with self._sending:
            await send(message)
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            self._sent_at = None if is_last else time.monotonic()

    async def _send_comments(self, send: Send) -> None:
        """Send a comment after each silence, until cancelled."""
        while True:
            await asyncio.sleep(self._seconds_left())
            async with self._sending:
                if self._seconds_left() == 0:
                    await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
                    self._sent_at = time.monotonic()

    def _seconds_left(self) -> float:
        """Return the seconds until the next comment is due."""
        return SILENCE_S if self._sent_at is None else max(0.0, self._sent_at + SILENCE_S - time.monotonic())
