"""The gateway's port for ranks with certificates: port, handshakes and registry, without HTTP.

Certificates are those that `tidemill up` makes.
"""

import asyncio
import datetime
from contextlib import suppress
from pathlib import Path

from runtime.gateway.ranks.rank_load import RankLimits
from runtime.gateway.ranks.registry import Registry
from runtime.gateway.serve import RankPort, accept_ranks
from runtime.protocol.frames import FrameReader, encode_frame
from runtime.protocol.messages import FromGateway, Hello, State
from runtime.protocol.sockets import listen
from runtime.protocol.tls import Credentials, Trust, call
from stacks.local.certificates import Certificates, now
from stacks.local.layout import Identity

HOST = "127.0.0.1"
GATEWAY, UNITS = "spiffe://test/gateway", "spiffe://test/unit/"
HELLO = Hello("mixed-0", "mixed", 0, 1, "node-0", 7, "sha256:unit", "sha256:kv", None, None)
HOUR = datetime.timedelta(hours=1)


def issue_all(folder: Path, at: datetime.datetime | None = None) -> Path:
    """Write the certificates of a gateway and two units by a new authority. Return the folder."""
    units = [Identity(UNITS + unit, "client", folder / unit) for unit in ("mixed-0", "mixed-1")]
    Certificates([Identity(GATEWAY, "server", folder / "gateway"), *units], at or now())
    return folder


class Gateway:
    """A port for ranks with certificates."""

    def __init__(self, folder: Path) -> None:
        self.registry = Registry("sha256:kv", RankLimits(16, 4096, 0), 150.0, units_identity=UNITS)
        self._listener = listen(HOST, 0, "registry")
        self.port = self._listener.getsockname()[1]
        self._ranks = RankPort(self._listener, Credentials(folder / "gateway", "server"))

    async def __aenter__(self) -> "Gateway":
        self._taking = asyncio.create_task(accept_ranks(self._ranks, self.registry))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._taking.cancel()
        await self.registry.close()

    def trust(self, folder: Path, side="client") -> Trust:
        return Trust(Credentials(folder, side), GATEWAY)

    async def hello_reply(self, folder: Path | None, hello: Hello = HELLO) -> object:
        """Return the answer to `hello`, or None, with the certificate of the folder or without one."""
        trust = None if folder is None else self.trust(folder)
        try:
            stream, writer = await call(HOST, self.port, trust)
            writer.write(encode_frame(hello) + encode_frame(State("ready")))
            frames = FrameReader(stream, FromGateway)
            frame = await asyncio.wait_for(frames.read(), 5)
        except OSError:
            return None
        writer.close()
        return None if frame is None else frame[0]

    async def admits(self, folder: Path, hello: Hello = HELLO) -> bool:
        """Return whether a rank with that certificate becomes ready before its connection is closed."""
        stream, writer = await call(HOST, self.port, self.trust(folder))
        writer.write(encode_frame(hello) + encode_frame(State("ready")))
        ended = asyncio.ensure_future(stream.read(1))  # nothing while it is welcome
        while not (is_ready := self._is_ready(hello.unit)) and not ended.done():
            await asyncio.sleep(0.01)
        ended.cancel()
        with suppress(asyncio.CancelledError, OSError):
            await ended
        writer.close()
        return is_ready

    def _is_ready(self, name: str) -> bool:
        return any(unit.is_ready and unit.name == name for unit in self.registry.units())


def run(coroutine):
    """Return the coroutine's result, within a time that only a hanging test needs."""
    return asyncio.run(asyncio.wait_for(coroutine, 60))
