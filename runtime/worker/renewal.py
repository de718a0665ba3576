"""Moves a rank to a new connection to its gateway before a certificate ends.

    old    ..., Token, Moved(ticket)  ->   the gateway reads to here, sends what it has queued, and closes
    new    Renewal(Hello)  <-  Renewed(ticket)  ...  Token, Token, ...

Each end closes a connection when the other end's certificate has expired, so a rank that serves for weeks must call
again in time. It calls when its own files have been renewed, or when most of the remaining validity of the gateway's
certificate is over. No message on either connection is lost, and the gateway reads all of them in order.

It renews no certificates. Without certificates it is not used.
"""

import asyncio
import random

from runtime.errors import WireError
from runtime.protocol.frames import FrameReader, encode_frame
from runtime.protocol.messages import FromGateway, Hello, Renewal, Renewed
from runtime.protocol.sockets import detect_vanished_peer
from runtime.protocol.tls import Trust, call, seconds_valid

__all__ = ["GatewayStreams", "renew_before_expiry"]

LOOK_S = 30.0  # assumed: certificates last for hours; a look only reads the dates of three files
RENEWED_AFTER = 0.75  # share of the remaining validity: cert-manager renews a certificate after two thirds of its life
ANSWER_TIMEOUT_S = 10.0  # assumed: twice as long as a gateway waits for a handshake

GatewayStreams = tuple[FrameReader[FromGateway], asyncio.StreamWriter]


async def renew_before_expiry(
    host: str, port: int, trust: Trust, hello: Hello, old: GatewayStreams
) -> tuple[GatewayStreams, str]:
    """Wait until the connection should be renewed. Return a new connection, and the ticket to send last on `old`.

    If the gateway does not answer, try again until cancelled.
    """
    now = asyncio.get_running_loop().time
    context = trust.credentials.context
    due = now() + RENEWED_AFTER * (seconds_valid(old[1]) or 0.0)
    while True:
        await asyncio.sleep(random.uniform(0.5, 1.0) * LOOK_S)  # noqa: S311  so that not all ranks call at once
        if now() >= due or trust.credentials.context is not context:
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    return await _renew(host, port, trust, hello)
            except (OSError, WireError):
                pass  # the old connection is still open


async def _renew(host: str, port: int, trust: Trust, hello: Hello) -> tuple[GatewayStreams, str]:
    stream, writer = await call(host, port, trust)
    try:
        detect_vanished_peer(writer)
        writer.write(encode_frame(Renewal(hello)))
        frames: FrameReader[FromGateway] = FrameReader(stream, FromGateway)
        frame = await frames.read()
        if frame is None or not isinstance(frame[0], Renewed):
            raise WireError("the gateway renews no connection")
    except BaseException:
        writer.transport.abort()
        raise
    return (frames, writer), frame[0].ticket
