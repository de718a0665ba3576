"""With certificates, only ranks of the right units get in, over real sockets."""

import asyncio
import logging
import ssl
from contextlib import suppress

import pytest

from runtime.gateway.edge.strangers import MAX_STRANGERS
from runtime.protocol.frames import encode_frame
from runtime.protocol.messages import Abort, Hello, Rejected
from runtime.protocol.tls import Credentials, Trust
from runtime.worker import gateway_connection
from runtime.worker.gateway_connection import GatewayAddress, GatewayLink
from stacks.local.certificates import now
from tests.runtime.gateway.certified import GATEWAY, HELLO, HOST, HOUR, Gateway, run


def test_a_rank_with_its_units_certificate_is_admitted(certificates):
    """A rank with its unit's certificate is admitted and becomes ready."""
    folder = certificates()

    async def use():
        async with Gateway(folder) as gateway:
            return await gateway.admits(folder / "mixed-0")

    assert run(use())


def test_a_rank_of_another_unit_is_refused_and_told_no_identity(certificates, caplog):
    """A rank with another unit's certificate is refused. Only the log names that identity."""
    folder = certificates()

    async def use():
        async with Gateway(folder) as gateway:
            return await gateway.hello_reply(folder / "mixed-1")

    with caplog.at_level(logging.WARNING):
        said = run(use())

    assert said == Rejected("its certificate is not of the unit that it names")
    assert "it says that it is of unit 'mixed-0', its certificate is of 'spiffe://test/unit/mixed-1'" in caplog.text


def test_a_rank_whose_unit_lost_all_ranks_is_not_replaced_by_a_stranger(certificates):
    """A stranger without the unit's certificate cannot take the place of its lost ranks."""
    folder, strangers = certificates(), certificates("theirs")

    async def use():
        async with Gateway(folder) as gateway:
            assert await gateway.admits(folder / "mixed-0")
            other_launch = Hello("mixed-0", "mixed", 0, 1, "x", 9, "sha256:other", "sha256:kv", None, None)
            assert await gateway.hello_reply(strangers / "mixed-0", other_launch) is None
            assert isinstance(await gateway.hello_reply(folder / "mixed-1", other_launch), Rejected)
            return [rank.hello for unit in gateway.registry.units() for rank in unit.ranks]

    assert run(use()) == [HELLO]


@pytest.mark.parametrize(
    ("name", "at", "who", "why"),
    [
        ("theirs", None, "mixed-0", "unable to get local issuer certificate|self-signed certificate|signature failure"),
        ("ours", now() - 48 * HOUR, "mixed-0", "certificate has expired"),
        ("ours", now() + 48 * HOUR, "mixed-0", "certificate is not yet valid"),
        ("ours", None, "gateway", "unsuitable certificate purpose|unsupported certificate purpose"),
    ],
)
def test_a_wrong_certificate_is_refused_with_the_reason_in_the_log(certificates, caplog, name, at, who, why):
    """A certificate of another authority, date or purpose is refused, with the reason in the log."""
    good = certificates("good")
    bad = certificates(name, at)
    authority = (good if name == "theirs" else bad) / "mixed-0" / "ca.crt"
    (good / "gateway" / "ca.crt").write_bytes(authority.read_bytes())

    async def use():
        async with Gateway(good) as gateway:
            (bad / who / "ca.crt").write_bytes((good / "mixed-0" / "ca.crt").read_bytes())
            return await gateway.hello_reply(bad / who), gateway.registry.units()

    with caplog.at_level(logging.WARNING):
        said, units = run(use())

    assert (said, units) == (None, [])
    assert any(each in caplog.text for each in why.split("|")), caplog.text


@pytest.mark.parametrize(
    "sent", [encode_frame(HELLO), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\0" * 70_000, b""]
)
def test_whoever_shows_no_certificate_gets_nothing(certificates, sent):
    """A caller without a TLS handshake gets no answer."""
    folder = certificates()

    async def use():
        async with Gateway(folder) as gateway:
            reader, writer = await asyncio.open_connection(HOST, gateway.port)
            writer.write(sent)
            writer.write_eof()
            try:
                answer = await asyncio.wait_for(reader.read(), 10)
            except ConnectionResetError:
                answer = b""
            writer.close()
            assert await gateway.admits(folder / "mixed-0")
            return answer

    answer = run(use())

    assert b"sha256" not in answer
    assert b"TDML" not in answer


def test_a_client_without_a_certificate_is_refused(certificates, caplog):
    """A TLS client without a certificate is refused."""
    folder = certificates()

    async def use():
        async with Gateway(folder) as gateway:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.load_verify_locations(folder / "mixed-0" / "ca.crt")
            stream, writer = await asyncio.open_connection(HOST, gateway.port, ssl=context)
            writer.write(encode_frame(HELLO))
            with suppress(OSError):  # the alert that it gets may be lost in the end of the connection
                assert await asyncio.wait_for(stream.read(1), 5) == b""
            return gateway.registry.units()

    with caplog.at_level(logging.WARNING):
        assert run(use()) == []
    assert "no handshake: peer did not return a certificate" in caplog.text


def test_many_who_never_finish_a_handshake_keep_no_rank_out(certificates):
    """Many unfinished handshakes do not keep a rank out: the oldest makes room."""
    folder = certificates()

    async def use():
        async with Gateway(folder) as gateway:
            silent = [await asyncio.open_connection(HOST, gateway.port) for _ in range(3 * MAX_STRANGERS)]
            is_admitted = await gateway.admits(folder / "mixed-0")
            is_ended = [reader.at_eof() or reader.exception() is not None for reader, _ in silent]
            for _, writer in silent:
                writer.close()
            return is_admitted, sum(is_ended)

    is_admitted, num_ended = run(use())

    assert is_admitted
    assert num_ended >= 2 * MAX_STRANGERS


def test_renewed_certificates_are_used_without_a_restart(certificates):
    """Both ends use renewed files at the next connection."""
    folder = certificates("ours", now() - 48 * HOUR)

    async def use():
        async with Gateway(folder) as gateway:
            link = GatewayLink(GatewayAddress(HOST, gateway.port, gateway.trust(folder / "mixed-0")), HELLO, print)
            running = asyncio.create_task(link.run())
            await asyncio.sleep(0.3)
            assert gateway.registry.units() == []
            renewed = certificates("renewed")
            for file in renewed.glob("*/*"):
                (folder / file.relative_to(renewed)).write_bytes(file.read_bytes())
            while not gateway.registry.units():
                await asyncio.sleep(0.01)
            running.cancel()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gateway_connection, "RETRY_OTHER_S", 0.05)
        run(use())


def test_a_rank_says_nothing_to_one_that_is_not_the_gateway(certificates, capfd, monkeypatch):
    """A rank neither talks nor listens to a server with a unit's certificate."""
    monkeypatch.setattr(gateway_connection, "RETRY_OTHER_S", 0.05)
    folder, heard, received = certificates(), [], []
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "mixed-1" / "tls.crt", folder / "mixed-1" / "tls.key")

    async def serve(reader, writer):
        writer.write(encode_frame(Abort("a request")))
        heard.append(await reader.read())
        writer.close()

    async def use():
        async with await asyncio.start_server(serve, HOST, 0, ssl=server) as false_gateway:
            port = false_gateway.sockets[0].getsockname()[1]
            trust = Trust(Credentials(folder / "mixed-0", "client"), GATEWAY)
            running = asyncio.create_task(GatewayLink(GatewayAddress(HOST, port, trust), HELLO, received.append).run())
            said = ""
            while "tidemill: waiting for another gateway: " not in said:
                await asyncio.sleep(0.01)
                said += capfd.readouterr().err
            running.cancel()

    run(use())

    assert b"".join(heard) == b""
    assert received == []
