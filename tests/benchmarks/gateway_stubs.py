"""What stands around the gateway while it is measured: ranks that compute nothing, and clients that only count.

    python -m tests.benchmarks.gateway_stubs HOST PORT NUM_RANKS [FOLDER]

is a mixed unit of so many ranks, with the certificate in the folder. Each gives every request a token a step; the seed
of a request's sampling is its step in milliseconds, so that one unit serves every pace. Frames of one step go out in
one write, as those of real ranks do.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from runtime.protocol.frames import FrameReader, encode_frame
from runtime.protocol.messages import Abort, FromGateway, Hello, Prefill, State, Token
from runtime.protocol.tls import Credentials, Trust, call

KV_DIGEST, UNIT_DIGEST = "sha256:" + "a" * 64, "sha256:" + "b" * 64
GATEWAY, UNIT = "spiffe://test/gateway", "stub"
TICK_MS = 20
TOKEN_ID = 40


async def main(host, port, num_ranks, folder=None):
    """Serve until the gateway goes."""
    trust = None if folder is None else Trust(Credentials(Path(folder), "client"), GATEWAY)
    await asyncio.gather(*(serve(host, port, trust, rank, num_ranks) for rank in range(num_ranks)))


async def serve(host, port, trust, rank, num_ranks):
    """One rank."""
    reader, writer = await call(host, port, trust)
    hello = Hello(UNIT, "mixed", rank, num_ranks, "node", 1, UNIT_DIGEST, KV_DIGEST, None, None)
    writer.write(encode_frame(hello) + encode_frame(State("ready")))
    requests = {}  # id -> [tokens to go, ticks of a step, ticks to the next one, tokens said]
    ticking = asyncio.ensure_future(tick(writer, requests))
    frames = FrameReader(reader, FromGateway)
    while (frame := await frames.read()) is not None:
        message = frame[0]
        if isinstance(message, Prefill):
            ticks = max(1, message.sampling.seed // TICK_MS)
            requests[message.request_id] = [message.sampling.max_tokens, ticks, 1 + len(requests) % ticks, 0]
        elif isinstance(message, Abort):
            requests.pop(message.request_id, None)
    ticking.cancel()


async def tick(writer, requests):
    """Say the tokens of each step, at the pace of a clock."""
    due = time.monotonic()
    while True:
        due += TICK_MS / 1000
        await asyncio.sleep(max(0, due - time.monotonic()))
        writer.write(b"".join(step(requests)))


def step(requests):
    """The frames of one step."""
    for request_id, request in list(requests.items()):
        request[2] -= 1
        if request[2] == 0:
            request[0] -= 1
            request[2] = request[1]
            is_last = request[0] == 0
            yield encode_frame(Token(request_id, request[3], TOKEN_ID, "length" if is_last else None))
            request[3] += 1
            if is_last:
                del requests[request_id]


class Stream(asyncio.Protocol):
    """A client of one streamed completion, which counts its events and their gaps."""

    def __init__(self, step_ms, max_tokens, host="x"):
        body = {"model": "m", "prompt": "mill", "max_tokens": max_tokens, "stream": True, "seed": step_ms}
        text = json.dumps(body).encode()
        kind = "Content-Type: application/json"
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\n{kind}\r\nContent-Length: {len(text)}\r\n\r\n"
        self._request = head.encode() + text
        self.num_events = 0
        self.worst_gap_s = 0.0
        self.status = None
        self.asked_at = self.answered_at = self._heard_at = None
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        self.asked_at = time.monotonic()
        transport.write(self._request)

    def data_received(self, data):
        now = time.monotonic()
        if self.status is None:
            self.status, self.answered_at = int(data[9:12]), now
        elif self._heard_at is not None:
            self.worst_gap_s = max(self.worst_gap_s, now - self._heard_at)
        self._heard_at = now
        self.num_events += data.count(b"data: {")
        if self.status != 200 or b"[DONE]" in data:
            self.transport.close()

    def connection_lost(self, exc):
        if not self.ended.done():
            self.ended.set_result(exc is None and self.status == 200)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]))
