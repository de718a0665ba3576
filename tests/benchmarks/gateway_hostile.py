"""Hostile clients of a gateway, all at once, each for five seconds.

    python -m tests.benchmarks.gateway_hostile HOST PORT [KIND...]

They are a process of their own, which yields to others: whoever measures the gateway shares a core with them, and is
not to measure what they take from that core. KIND is of `KINDS`; without one all come.
"""

import asyncio
import json
import os
import sys
from contextlib import suppress

LASTS_S = 5


def post(headers):
    return f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n".encode()


def prompt(num_bytes):
    """The body of a request with a prompt of so many bytes."""
    body = json.dumps({"model": "m", "prompt": "the mill " * (num_bytes // 9)}).encode()
    return post(f"Content-Length: {len(body)}") + body


# What is said, and by how many.
KINDS = {
    "prompts": (prompt(7_600_000), 4),
    "bodies": (post("Content-Length: 9000000") + b"x" * 9_000_000, 4),
    "chunks": (post("Transfer-Encoding: chunked") + b"1\r\nx\r\n" * 200_000, 2),
    "announced": (post("Content-Length: 9000000") + b"{", 200),
    "heads": (b"GET / HTTP/1.1\r\nA: " + b"x" * 100_000, 20),
    "no-http": (b"mill\r\n\r\n", 200),
}
UNREAD = "unread"


async def main(host, port, kinds):
    """Do all of it."""
    os.nice(10)
    kinds = kinds or [*KINDS, UNREAD]
    clients = [say(host, port, KINDS[kind][0]) for kind in kinds if kind in KINDS for _ in range(KINDS[kind][1])]
    if UNREAD in kinds:
        clients.append(read_nothing(host, port))
    await asyncio.gather(*clients)


async def say(host, port, said):
    """Send the bytes, and read whatever comes."""
    with suppress(OSError, TimeoutError):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(said)
        async with asyncio.timeout(LASTS_S):
            await reader.read()
        writer.transport.abort()


async def read_nothing(host, port):
    """Ask for the longest answers, and read none of them."""
    body = json.dumps({"model": "m", "prompt": [5], "max_tokens": 2000, "stream": True, "seed": 20, "n": 8}).encode()
    writers = []
    for _ in range(20):
        reader, writer = await asyncio.open_connection(host, port)
        reader._transport.pause_reading()
        writer.write(post(f"Content-Length: {len(body)}") + body)
        writers.append(writer)
    await asyncio.sleep(LASTS_S)
    for writer in writers:
        writer.transport.abort()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
