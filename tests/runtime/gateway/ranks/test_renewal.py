"""A rank moves to a new connection before a certificate ends, over real sockets with both ends."""

import asyncio
import logging
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from runtime.gateway.ranks.rank_load import RequestSize
from runtime.protocol import tls
from runtime.protocol.frames import encode_frame
from runtime.protocol.messages import Abort, Moved, Rejected, Renewal, Renewed, State, Token
from runtime.protocol.tls import call
from runtime.worker import gateway_connection, renewal
from runtime.worker.gateway_connection import GatewayAddress, GatewayLink
from stacks.local.certificates import now
from tests.runtime.gateway.certified import HELLO, HOST, HOUR, Gateway, run

SIZE = RequestSize(4, 4)


class Moving:
    """A rank's line that is renewed again and again with a request's tokens on it, and a gateway."""

    def __init__(self, folder: Path, gateway: Gateway) -> None:
        self.gateway, self.heard, self.received = gateway, [], []
        self.link = GatewayLink(
            GatewayAddress(HOST, gateway.port, gateway.trust(folder / "mixed-0")), HELLO, self.received.append
        )
        self._running = asyncio.create_task(self.link.run())

    async def __aenter__(self) -> "Moving":
        self.link.say_state(State("ready"))
        await wait_until(lambda: any(unit.is_ready for unit in self.gateway.registry.units()))
        self.rank.subscribe("request", SIZE, lambda _, answer: self.heard.append(answer))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._running.cancel()

    @property
    def rank(self):
        ((rank,),) = [unit.ranks for unit in self.gateway.registry.units()]
        return rank

    @property
    def shown_certificate(self) -> str:
        """Return the number of the certificate that the rank has shown on its present connection."""
        return self.rank._writer.get_extra_info("peercert")["serialNumber"]


async def wait_until(condition):
    while not condition():
        await asyncio.sleep(0.001)


@pytest.fixture
def quick_renewal(monkeypatch):
    """Renew connections as soon as they are open."""
    monkeypatch.setattr(renewal, "LOOK_S", 0.01)
    monkeypatch.setattr(renewal, "RENEWED_AFTER", 0.0)


@pytest.mark.usefixtures("quick_renewal")
def test_a_connection_is_renewed_and_nothing_that_is_said_on_it_is_lost_or_comes_twice(certificates, caplog):
    """While the rank moves ten times, no message of either end is lost or doubled."""
    folder = certificates()

    async def use():
        async with Gateway(folder) as gateway, Moving(folder, gateway) as moving:
            rank, seen, number = moving.rank, set(), 0
            while len(seen) < 10:
                moving.link.send(Token("request", number, 5, None))
                rank.send(Abort(str(number)))
                number += 1
                await asyncio.sleep(0.001)
                seen.add(rank._writer)
            await wait_until(lambda: len(moving.heard) == number == len(moving.received))
            return moving.rank is rank, number, list(moving.heard), list(moving.received)

    with caplog.at_level(logging.INFO):
        is_same, number, heard, received = run(use())

    assert is_same
    assert [token.index for token in heard] == list(range(number))
    assert [abort.request_id for abort in received] == [str(each) for each in range(number)]
    assert caplog.text.count("joined") == 1


def test_a_renewed_certificate_is_shown_on_a_connection_that_stands(certificates, monkeypatch):
    """When its files change, the rank calls again and is never lost."""
    monkeypatch.setattr(renewal, "LOOK_S", 0.01)
    folder = certificates()

    async def use():
        async with Gateway(folder) as gateway, Moving(folder, gateway) as moving:
            rank, first = moving.rank, moving.shown_certificate
            renewed = certificates("renewed")
            for file in renewed.glob("*/*"):
                (folder / file.relative_to(renewed)).write_bytes(file.read_bytes())
            await wait_until(lambda: moving.shown_certificate != first)
            return moving.rank is rank, rank.state, list(moving.heard)

    assert run(use()) == (True, "ready", [])


def test_a_connection_ends_with_the_certificate_that_was_shown_on_it(certificates, caplog, monkeypatch):
    """A rank that does not call again before its certificate ends is lost, with the reason in the log."""
    folder = certificates()
    ends = now() + 24 * HOUR
    began = time.monotonic()
    clock = SimpleNamespace(time=lambda: ends.timestamp() - 1 + time.monotonic() - began)  # a second before
    monkeypatch.setattr(tls, "time", clock)

    async def use():
        async with Gateway(folder) as gateway:
            stream, writer = await call(HOST, gateway.port, gateway.trust(folder / "mixed-0"))
            writer.write(encode_frame(HELLO) + encode_frame(State("ready")))
            assert await stream.read() == b""
            writer.close()
            return [rank.state for unit in gateway.registry.units() for rank in unit.ranks]

    with caplog.at_level(logging.WARNING):
        assert run(use()) == ["lost"]
    assert "the certificate of rank 0 of unit mixed-0 has expired" in caplog.text


def test_a_rank_hangs_up_when_the_gateways_certificate_has_expired(certificates, monkeypatch):
    """A rank closes the connection when the gateway's certificate has expired, and calls again."""
    folder, lengths = certificates(), [0.05, None]
    monkeypatch.setattr(gateway_connection, "seconds_valid", lambda _: lengths.pop(0) if lengths else None)

    async def use():
        async with Gateway(folder) as gateway, Moving(folder, gateway) as moving:
            first = moving.rank
            await wait_until(lambda: moving.rank is not first)
            return first.state, moving.rank.state

    assert run(use())[0] == "lost"


@pytest.mark.parametrize("who", ["mixed-0", "mixed-1"])
def test_whoever_copies_a_hello_renews_nobodys_connection(certificates, caplog, who):
    """A ticket is useless without the rank's own connection, even with the unit's certificate."""
    folder = certificates()

    async def use():
        async with Gateway(folder) as gateway, Moving(folder, gateway) as moving:
            said = await gateway.hello_reply(folder / who, Renewal(HELLO))
            moving.link.send(Token("request", 0, 5, None))
            await wait_until(lambda: moving.heard)
            return said, moving.rank.state

    said, state = run(use())

    assert isinstance(said, Renewed if who == "mixed-0" else Rejected)
    assert state == "ready"


@pytest.mark.parametrize("sent", [Renewal(HELLO), Moved("ticket")])
def test_a_rank_that_is_not_there_goes_on_nowhere(certificates, caplog, sent):
    """A rank that is not connected, or has no ticket, cannot move."""
    folder = certificates()

    async def use():
        async with Gateway(folder) as gateway:
            assert await gateway.hello_reply(folder / "mixed-0", sent) is None
            stream, writer = await call(HOST, gateway.port, gateway.trust(folder / "mixed-0"))
            writer.write(encode_frame(HELLO) + encode_frame(Moved("ticket")))
            assert await stream.read() == b""
            writer.close()

    with caplog.at_level(logging.WARNING):
        run(use())

    assert "moves to a connection that is not there" in caplog.text
