"""The rank's connection to one gateway: it carries Hello, State, Load and tokens there, and requests back.

The rank calls the gateway, so a rank needs no address for requests. It calls again until the gateway answers, and sends
Hello, State and Load on every new connection. When the rank has loaded, it sends Hello once more, with the digests of
what it read. Tokens for a gateway that is not connected are dropped: that gateway is gone, and has failed their
requests.

The rank also calls again when the gateway has another version: in an upgrade, one of the two is about to be replaced.
It does so too when the gateway cannot prove its identity or refuses our certificate, because certificates are renewed.
Before a certificate ends, the rank moves to a new connection (`renewal.py`).
"""

import asyncio
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from runtime.errors import RuntimeFailure, WireError, WireVersionError
from runtime.protocol.frames import FrameReader, encode_frame
from runtime.protocol.messages import (
    Dismissed,
    Embed,
    Expect,
    FromGateway,
    Hello,
    Load,
    Moved,
    Ping,
    Pong,
    Prefill,
    Rejected,
    Renewed,
    State,
    Wait,
    gateway_name,
)
from runtime.protocol.sockets import detect_vanished_peer, write_or_hang_up
from runtime.protocol.tls import Impostor, Trust, call, explain_tls_failure, seconds_valid
from runtime.worker.renewal import GatewayStreams, renew_before_expiry

__all__ = ["GatewayAddress", "GatewayLink", "Refused", "complain"]

RETRY_S = 0.5
# A call to the address of a pod that is gone may get no answer at all, and the kernel repeats it for two minutes. A new
# call looks the gateway's name up again, and finds its next pod.
CALL_TIMEOUT_S = 3.0
RETRY_OTHER_S = 5.0  # assumed: soon enough in an upgrade, and not many lines in the gateway's log


@dataclass(frozen=True)
class GatewayAddress:
    """The address of the gateways: their hosts, separated by commas, their port, and the identity that they must prove.

    The identity is None without TLS.
    """

    host: str
    port: int
    trust: Trust | None = None


class Refused(RuntimeFailure):
    """A gateway refuses this rank for good, so that calling again is useless."""


class GatewayLink:
    """The connection to one gateway.

    Used from one event loop; other threads go through `io_thread.py`. `gateway` is the gateway's name. `is_dismissed`
    is true once no request of the gateway needs this rank. `is_refused` is true if the gateway sends this rank no
    requests, because of the weights that the rank loaded.
    """

    def __init__(self, gateway: GatewayAddress, hello: Hello, receive: Callable[[FromGateway], None]) -> None:
        self.gateway, self.is_dismissed, self.is_refused = "", False, False
        self._address = gateway
        self._hello = self._loaded_hello = hello
        self._state = State("loading", 0.0)
        self._load: Load | None = None
        self._receive = receive
        self._writer: asyncio.StreamWriter | None = None
        self._unsent: list[bytes] = []  # frames of this turn of the event loop

    @property
    def is_connected(self) -> bool:
        """True while a connection to the gateway is open."""
        return self._writer is not None

    async def run(self) -> None:
        """Keep the connection open until cancelled. Raises Refused if the gateway refuses this rank for good."""
        complained = False
        while True:
            pause_s = RETRY_S
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    stream, writer = await call(self._address.host, self._address.port, self._address.trust)
                detect_vanished_peer(writer)
                await self._serve((FrameReader(stream, FromGateway), writer))
            except (WireVersionError, Impostor, ssl.SSLError) as error:
                if not isinstance(error, ssl.SSLEOFError):  # otherwise it went away in the middle of a handshake
                    pause_s = RETRY_OTHER_S
                    complained = complained or complain(explain_tls_failure(error))
            except (OSError, WireError):
                pass  # the gateway is not there yet, or has gone: call again
            await asyncio.sleep(pause_s)

    def say_state(self, state: State) -> None:
        """Send the rank's state now, and again on every later connection."""
        self._state = state
        self.send(state)

    def say_hello_again(self, loaded: Hello) -> None:
        """Send a Hello with what this rank has loaded, now and again on every later connection."""
        self._loaded_hello = loaded
        self._say_loaded_hello()

    def say_load(self, load: Load) -> None:
        """Send the load now. On later connections it is sent again, without the ids of new requests."""
        self._load = msgspec.structs.replace(load, arrived=[])
        self.send(load)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message if the gateway is connected.

        All messages of one turn of the event loop are written together. The 128 tokens of a step thus take one system
        call here, and one packet that wakes the gateway.
        """
        if self._writer is not None:
            if not self._unsent:
                asyncio.get_running_loop().call_soon(self._write)
            self._unsent.append(encode_frame(message))

    def _write(self) -> None:
        if self._writer is not None and self._unsent:
            write_or_hang_up(self._writer, b"".join(self._unsent))
        self._unsent.clear()

    def _say_loaded_hello(self) -> None:
        if self._loaded_hello != self._hello:
            self.send(self._loaded_hello)

    async def _serve(self, streams: GatewayStreams) -> None:
        """Send Hello, then read from the gateway, on this connection and its renewals, until the gateway is gone."""
        self._writer, self.gateway, self.is_dismissed, self.is_refused = streams[1], "", False, False
        self.send(self._hello)
        self._say_loaded_hello()
        self.send(self._state)
        if self._load is not None:
            self.send(self._load)
        next_streams: GatewayStreams | None = streams
        try:
            while next_streams is not None:
                next_streams = await self._follow(next_streams)
        finally:
            self._writer.close()
            self._writer = None

    async def _follow(self, streams: GatewayStreams) -> GatewayStreams | None:
        """Read from the gateway until it closes this connection or its certificate expires.

        Return the connection that has replaced this one, or None.
        """
        trust = self._address.trust
        moving = None if trust is None else asyncio.create_task(self._move_before_expiry(trust, streams))
        try:
            with suppress(TimeoutError):  # the gateway's certificate has expired
                async with asyncio.timeout(seconds_valid(streams[1])):
                    await self._hear(streams[0])
            return moving.result() if moving is not None and moving.done() else None
        finally:
            if moving is not None:
                moving.cancel()
            streams[1].close()

    async def _move_before_expiry(self, trust: Trust, old: GatewayStreams) -> GatewayStreams:
        """Open a new connection before a certificate ends, and return it. Send everything there from then on."""
        new, ticket = await renew_before_expiry(self._address.host, self._address.port, trust, self._hello, old)
        self.send(Moved(ticket))
        self._write()
        self._writer = new[1]
        return new

    async def _hear(self, frames: FrameReader[FromGateway]) -> None:
        while (frame := await frames.read()) is not None:
            self._take(frame[0])

    def _take(self, message: FromGateway) -> None:
        """Act on a message about the connection, and pass any message about a request to the step loop.

        Raises Refused if the gateway refuses this rank for good, and WireError for a message that it may not send.
        """
        match message:
            case Rejected(reason=reason):
                raise Refused(f"the gateway refuses this rank: {reason}")
            case Ping():
                self.send(Pong())  # from this thread, however long a step takes
            case Dismissed():
                self.is_dismissed = True
            case Wait():
                self.is_refused = True
                self._receive(message)
            case Prefill() | Embed() if self._hello.phase == "decode":
                raise WireError("it asks a decode rank to compute a prompt")
            case Renewed():
                raise WireError("it answers what nobody asked")
            case Prefill() | Embed() | Expect():
                self.gateway = gateway_name(message.request_id)
                self._receive(message)
            case _:
                self._receive(message)


def complain(why: str) -> bool:
    """Log why the rank waits for another gateway or for a renewed certificate.

    Return True, for the caller to remember that the reason was logged.
    """
    print(f"tidemill: waiting for another gateway: {why}", file=sys.stderr, flush=True)
    return True
