"""Listening sockets on exactly one address, never a wildcard, and connections that notice when their peer is gone.

A peer that reads nothing also counts as gone, because the data queued for it is limited (`write_or_hang_up`).

A process that dies closes its connections. A machine that loses power or its network closes none. So the kernel probes
the peer every few seconds, and gives up after `VANISHED_AFTER_S`.
"""

import asyncio
import ipaddress
import socket

from runtime.errors import RuntimeFailure

__all__ = [
    *("VANISHED_AFTER_S", "check_address", "has_peer_address", "is_connected", "is_local", "listen", "look_up"),
    *("detect_vanished_peer", "write_or_hang_up"),
]

KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 5, 2, 3
VANISHED_AFTER_S = KEEPALIVE_IDLE_S + KEEPALIVE_INTERVAL_S * KEEPALIVE_PROBES
TCP_ESTABLISHED = 1  # Linux, include/net/tcp_states.h
MAX_UNREAD_BYTES = 256 * 2**20  # assumed: enough for 250 prompts of 128k tokens at once, to a slow peer


def listen(address: str, port: int, purpose: str) -> socket.socket:
    """Return a socket that listens on the IP `address` only. Raises RuntimeFailure if it cannot."""
    version = check_address(address)
    listener = socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart need not wait for old connections
    try:
        listener.bind((address, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise RuntimeFailure(f"cannot listen on {address}:{port} ({purpose}): {str(error.strerror).lower()}") from None
    return listener


def look_up(name: str, own_address: str) -> str:
    """Return the IP address of `name`, of the same version as `own_address`.

    Raises gaierror if it cannot be resolved.
    """
    family = socket.AF_INET if ipaddress.ip_address(own_address).version == 4 else socket.AF_INET6
    (*_, (address, *_)), *_ = socket.getaddrinfo(name, None, family, socket.SOCK_STREAM)
    return str(ipaddress.ip_address(address))


def detect_vanished_peer(writer: asyncio.StreamWriter) -> None:
    """Make the connection fail once its peer has been silent for `VANISHED_AFTER_S`, idle or sending (tcp(7))."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
        (socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S),
        (socket.TCP_KEEPCNT, KEEPALIVE_PROBES),
        (socket.TCP_USER_TIMEOUT, VANISHED_AFTER_S * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def is_local(writer: asyncio.StreamWriter) -> bool:
    """Return whether both ends are on this machine's loopback interface."""
    peer = writer.get_extra_info("peername")
    return peer is not None and ipaddress.ip_address(peer[0]).is_loopback


def is_connected(writer: asyncio.StreamWriter) -> bool:
    """Return whether neither end has closed the connection. Unread data does not matter."""
    connection = writer.get_extra_info("socket")
    if connection.fileno() < 0:
        return False
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_ESTABLISHED


def has_peer_address(writer: asyncio.StreamWriter, address: str) -> bool:
    """Return whether the connection's other end has the IP `address`. An address in a message proves nothing."""
    host, *_ = writer.get_extra_info("peername")
    try:
        return ipaddress.ip_address(host.partition("%")[0]) == ipaddress.ip_address(address)
    except ValueError:  # it is no address
        return False


def write_or_hang_up(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Queue `data`, or close the connection if the peer has left more than MAX_UNREAD_BYTES unread."""
    if writer.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
        writer.transport.abort()  # readers of this connection find it closed
    else:
        writer.write(data)


def check_address(address: str) -> int:
    """Return the IP version of an address that a process may bind. Raises RuntimeFailure for names and wildcards."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        raise RuntimeFailure(f"--address must be an IP address, not {address!r}") from None
    if ip.is_unspecified:
        raise RuntimeFailure(f"--address must be one of this machine's addresses; {address} means all of them")
    return ip.version
