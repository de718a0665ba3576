"""Bodies that never end, clients that left, and silent streams."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import openai
import pytest
from starlette.requests import ClientDisconnect, Request

from runtime.gateway.core import app
from runtime.gateway.edge import client
from runtime.gateway.edge.client import COMMENT, Bodies, EventStream
from runtime.gateway.edge.http_errors import ApiError


def new_request(*messages, shared=None):
    """Return a request whose client sends these messages, and then nothing."""
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
    async with bodies.read(new_request(*messages)) as body:
        return body


def test_a_body_that_does_not_end_is_given_up(monkeypatch):
    """A body that does not end is a 408 that ends the connection."""
    monkeypatch.setattr(client, "BODY_TIMEOUT_S", 0.01)

    with pytest.raises(ApiError) as error:
        asyncio.run(read(Bodies(), part(b"half")))
    assert (error.value.status, error.value.headers()) == (408, {"Connection": "close"})


def test_unfinished_bodies_have_a_bound_together(monkeypatch):
    """Unfinished bodies have a common bound, and a body counts until it is done, however it ended."""
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
    """The work of a client that left while it waited is not begun."""
    begun = []

    async def leave():
        with ThreadPoolExecutor(1) as pool:
            shared = SimpleNamespace(large_body_threads=pool)
            may_end = asyncio.Event()
            loop = asyncio.get_running_loop()
            blocking = loop.run_in_executor(
                pool, lambda: asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result()
            )
            left = new_request({"type": "http.disconnect"}, shared=shared)
            with pytest.raises(ClientDisconnect):
                await app._process_body(left, app.LARGE_BODY_BYTES + 1, lambda: begun.append("large"))
            await app._process_body(new_request(shared=shared), 5, lambda: begun.append("small"))
            may_end.set()
            await blocking

    asyncio.run(leave())
    assert begun == ["small"]


CHUNK = (
    b'data: {"id": "c", "object": "text_completion", "created": 0, "model": "m",'
    b' "choices": [{"index": 0, "text": "mill"}]}\n\n'
)
DONE = b"data: [DONE]\n\n"


def collect_stream(*, silences):
    """Return the bytes of a stream whose second event comes after some silences."""
    sent = []

    async def events():
        yield CHUNK
        while sent.count(COMMENT) < silences:
            await asyncio.sleep(0.001)
        yield DONE

    async def send(message):
        sent.append(message.get("body"))

    closed = []
    stream = EventStream(events(), {}, lambda: closed.append(True))
    receive = new_request().receive
    asyncio.run(asyncio.wait_for(stream({"type": "http"}, receive, send), 20))
    assert closed == [True]
    return sent


def test_a_stream_that_waits_for_its_next_token_is_not_silent(monkeypatch):
    """A stream that waits sends comments, but none before its head or after its end."""
    monkeypatch.setattr(client, "SILENCE_S", 0.01)

    assert collect_stream(silences=3) == [None, CHUNK, COMMENT, COMMENT, COMMENT, DONE, b""]


def test_a_stream_that_is_not_silent_has_no_comments():
    """A stream that is not silent has no comments."""
    assert collect_stream(silences=0) == [None, CHUNK, DONE, b""]


class Stream(BaseHTTPRequestHandler):
    """A server that answers any call with a stream that has comments."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(CHUNK + COMMENT + CHUNK + COMMENT + DONE)

    def log_message(self, *_):
        """Log nothing."""


def test_openais_client_skips_comments():
    """OpenAI's client skips comments."""
    with HTTPServer(("127.0.0.1", 0), Stream) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as caller:
            stream = caller.completions.create(model="m", prompt="tide", stream=True)
            texts = [chunk.choices[0].text for chunk in stream]

    assert texts == ["mill", "mill"]
