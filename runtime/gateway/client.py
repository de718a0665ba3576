"""The client's side of an HTTP call: a body of bounded size, and noticing when the client has left.

Why it exists: an answer takes seconds to minutes, and a rank that works for nobody takes KV from somebody. Starlette
notices a client that leaves while a response is being sent, not one that leaves while it is being computed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from runtime.gateway.http_errors import ApiError

__all__ = ["EventStream", "read_body", "while_connected"]

MAX_BODY_BYTES = 8 * 2**20  # a 128k-token prompt is about 1 MB, as text or as ids

T = TypeVar("T")


async def read_body(request: Request) -> bytes:
    """Return the whole body. Raise ApiError when it is too large, ClientDisconnect when the client leaves."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise ApiError(413, f"the body is over {MAX_BODY_BYTES:,} bytes", code="request_too_large")
    return bytes(body)


async def while_connected(request: Request, work: Coroutine[None, None, T]) -> T:
    """Return the result of `work`, which is cancelled when the client leaves first. The body must have been read."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events. `close` is called however the response ends."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()
