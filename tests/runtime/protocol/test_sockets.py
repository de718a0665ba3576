"""Connections that notice a silent end. `tests/cluster` cuts a real network; here, what the kernel was asked for."""

import asyncio
import socket

from runtime.protocol.sockets import VANISHED_AFTER_S, listen, notice_a_vanished_peer


def test_a_silent_peer_is_given_up_within_the_deadline():
    """Idle or sending: the kernel's own arithmetic comes to `VANISHED_AFTER_S`."""

    async def options():
        server = await asyncio.start_server(lambda *_: None, sock=listen("127.0.0.1", 0, "test"))
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        notice_a_vanished_peer(writer)
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
