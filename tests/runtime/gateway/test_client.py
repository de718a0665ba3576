"""Bodies that never end, and too many of them; work for clients that left."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from starlette.requests import ClientDisconnect, Request

from runtime.gateway import app, client
from runtime.gateway.client import Bodies
from runtime.gateway.http_errors import ApiError


def request_of(*messages, shared=None):
    """A request whose client says these messages, and then nothing."""
    said = iter(messages)

    async def receive():
        if (message := next(said, None)) is None:
            await asyncio.Event().wait()
        return message

    scope = {"type": "http", "headers": [], "app": SimpleNamespace(state=SimpleNamespace(gateway=shared))}
    return Request(scope, receive)


def part(body, *, more=True):
    return {"type": "http.request", "body": body, "more_body": more}


async def read(bodies, *messages):
    async with bodies.read(request_of(*messages)) as body:
        return body


def test_a_body_that_does_not_end_is_given_up(monkeypatch):
    """The answer is a 408 that ends the connection: what may still come is no next request."""
    monkeypatch.setattr(client, "BODY_TIMEOUT_S", 0.01)

    with pytest.raises(ApiError) as error:
        asyncio.run(read(Bodies(), part(b"half")))
    assert (error.value.status, error.value.headers()) == (408, {"Connection": "close"})


def test_unfinished_bodies_have_a_bound_together(monkeypatch):
    """Who comes too many is told to come again. A body counts no more when it is done, however it ended."""
    monkeypatch.setattr(client, "MAX_BODIES_BYTES", 10)

    async def many():
        bodies = Bodies()
        standing = asyncio.ensure_future(read(bodies, part(b"12345678")))
        await asyncio.sleep(0)
        for _ in range(2):
            with pytest.raises(ApiError) as error:
                await read(bodies, part(b"123", more=False))
        standing.cancel()
        await asyncio.wait([standing])
        return error.value, await read(bodies, part(b"123", more=False))

    error, body = asyncio.run(many())
    assert (error.status, error.code) == (503, "overloaded")
    assert body == b"123"


def test_work_of_a_client_that_left_is_not_begun():
    """It waited behind another large body; small ones have other threads."""
    begun = []

    async def leave():
        with ThreadPoolExecutor(1) as pool:
            shared = SimpleNamespace(for_large=pool)
            may_end = asyncio.Event()
            loop = asyncio.get_running_loop()
            blocking = loop.run_in_executor(
                pool, lambda: asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result()
            )
            left = request_of({"type": "http.disconnect"}, shared=shared)
            with pytest.raises(ClientDisconnect):
                await app._worked_out(left, app.LARGE_BODY_BYTES + 1, lambda: begun.append("large"))
            await app._worked_out(request_of(shared=shared), 5, lambda: begun.append("small"))
            may_end.set()
            await blocking

    asyncio.run(leave())
    assert begun == ["small"]
