"""Listening sockets on exactly one address, and the sentence when the port cannot be had. Never a wildcard."""

import ipaddress
import socket

from runtime.errors import RuntimeFailure

__all__ = ["check_address", "listen"]


def listen(address: str, port: int, purpose: str) -> socket.socket:
    """A listening socket on the IP `address`, and nowhere else. Raises RuntimeFailure."""
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


def check_address(address: str) -> int:
    """The IP version of an address that a process may bind. Raises RuntimeFailure for names and wildcards."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        raise RuntimeFailure(f"--address must be an IP address, not {address!r}") from None
    if ip.is_unspecified:
        raise RuntimeFailure(f"--address must be one of this machine's addresses; {address} means all of them")
    return ip.version
