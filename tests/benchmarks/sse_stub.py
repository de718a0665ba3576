"""A server that says tokens at one pace, as OpenAI's server-sent events, to measure proxies before it.

    python -m tests.benchmarks.sse_stub HOST PORT STEP_MS

It answers any POST with a stream of a token each STEP_MS, as long as somebody reads, and any GET with `{}`. It reads no
body's meaning, and one request of a connection at a time.
"""

import asyncio
import json
import sys
import time

CHOICE = {"index": 0, "text": " mill", "logprobs": None, "finish_reason": None}
EVENT = {"id": "cmpl-0", "object": "text_completion", "created": 1, "model": "m", "choices": [CHOICE]}
TICKS = 5  # of a step: not all streams speak at once


class Server(asyncio.Protocol):
    """One connection."""

    def __init__(self, ticks):
        self._ticks = ticks
        self._streams = None
        self._said = b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self._said += data
        head, end, body = self._said.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        if not end or len(body) < length:
            return
        self._said = b""
        if head.startswith(b"POST"):
            kind = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked"
            self.transport.write(b"HTTP/1.1 200 OK\r\n" + kind + b"\r\n\r\n")
            self._streams = min(self._ticks, key=len)
            self._streams.add(self.transport)
        else:
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")

    def connection_lost(self, exc):
        if self._streams is not None:
            self._streams.discard(self.transport)


async def main(host, port, step_ms):
    """Serve until killed."""
    ticks = [set() for _ in range(TICKS)]
    await asyncio.get_running_loop().create_server(lambda: Server(ticks), host, port, backlog=2048)
    event = b"data: " + json.dumps(EVENT).encode() + b"\n\n"
    said = b"%x\r\n%s\r\n" % (len(event), event)
    due = time.monotonic()
    while True:
        for transports in ticks:
            due += step_ms / 1000 / TICKS
            await asyncio.sleep(max(0, due - time.monotonic()))
            for transport in list(transports):
                transport.write(said)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
