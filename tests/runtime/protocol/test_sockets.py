"""Connections notice a silent end, by the options that the kernel gets; `tests/cluster` cuts a real network."""

import asyncio
import socket

from runtime.protocol import sockets
from runtime.protocol.sockets import VANISHED_AFTER_S, detect_vanished_peer, listen, write_or_hang_up


def test_a_silent_peer_is_given_up_within_the_deadline():
    """The kernel gives a silent peer up within `VANISHED_AFTER_S`, idle or sending."""

    async def options():
        server = await asyncio.start_server(lambda *_: None, sock=listen("127.0.0.1", 0, "test"))
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        detect_vanished_peer(writer)
        connection = writer.get_extra_info("socket")
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        values = [connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
        is_on = connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        writer.close()
        server.close()
        return is_on, *values

    is_on, idle_s, interval_s, probes, sending_ms = asyncio.run(options())

    assert is_on == 1
    assert idle_s + interval_s * probes == VANISHED_AFTER_S
    assert sending_ms == VANISHED_AFTER_S * 1000


def test_a_peer_that_reads_nothing_loses_the_connection(monkeypatch):
    """A peer that reads nothing loses the connection once too much is queued, and both ends see it closed."""
    monkeypatch.setattr(sockets, "MAX_UNREAD_BYTES", 2**20)

    async def run():
        hold = asyncio.Event()

        async def read_nothing(reader, writer):
            await hold.wait()
            writer.close()

        async with await asyncio.start_server(read_nothing, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            most = 0
            for _ in range(1000):
                write_or_hang_up(writer, bytes(2**17))
                most = max(most, writer.transport.get_write_buffer_size())
                await asyncio.sleep(0)
            assert await reader.read() == b""
            hold.set()
            writer.close()
        return most

    assert 2**20 < asyncio.run(run()) <= 2**20 + 2**17
