"""The script of each pod of `doctor --probe`: connect to all others, then send to all of them at the same time.

    python3 -c SCRIPT INDEX NUM_PODS SERVICE PORT SECONDS DEADLINE_S

Its text is handed to `python3 -c` in whatever image the units have, ours or an engine's. So it uses the standard
library alone, and imports nothing of ours. Pods find each other by the names that a headless Service gives them, as
ranks do.

Every pod connects to every other, one connection a direction. A pod that has all of its connections reports to pod 0,
and once all have, pod 0 tells them to start. Then each sends to every other for SECONDS, and counts what it receives.

The result is one line of JSON where Kubernetes keeps a container's last words, of which it takes 4096 bytes:
    {"missing": [peers without a connection], "mb_per_s": [received from each peer; null from itself]}
"""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

__all__ = ["main"]

LAST_WORDS = "/dev/termination-log"
CHUNK = bytes(1 << 20)
RETRY_S = 0.2
READY, GO = b"R", b"G"

Connections = dict[int, socket.socket]  # by peer


def main(words: Sequence[str], last_words: str = LAST_WORDS) -> None:
    """Run one pod's part."""
    index, num_pods, service, port = int(words[0]), int(words[1]), words[2], int(words[3])
    seconds, deadline = float(words[4]), time.monotonic() + float(words[5])
    others = [peer for peer in range(num_pods) if peer != index]
    incoming: Connections = {}
    server = socket.create_server(("", port), backlog=num_pods)
    threading.Thread(target=_accept, args=(server, incoming), daemon=True).start()
    outgoing = _connect(index, others, service, port, deadline)
    while len(incoming) < len(others) and time.monotonic() < deadline:
        time.sleep(RETRY_S / 10)
    missing = [peer for peer in others if peer not in incoming or peer not in outgoing]
    rates: list[float | None] = [None] * num_pods
    if not missing and _agree(index, incoming, outgoing, deadline):
        rates = _exchange(num_pods, incoming, outgoing, seconds)
    Path(last_words).write_text(json.dumps({"missing": missing, "mb_per_s": rates}, separators=(",", ":")))


def peer_address(peer: int, service: str, port: int) -> tuple[str, int]:
    """Return the address where a peer listens."""
    return f"probe-{peer}.{service}", port


def _accept(server: socket.socket, incoming: Connections) -> None:
    """Take connections as they come; each begins with its peer's index."""
    while True:
        connection, _ = server.accept()
        incoming[int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")] = connection


def _connect(index: int, others: Iterable[int], service: str, port: int, deadline: float) -> Connections:
    """Connect to each peer, again and again while its name or its port is not there yet."""
    outgoing: Connections = {}

    def reach(peer: int) -> None:
        while time.monotonic() < deadline:
            try:
                connection = socket.create_connection(peer_address(peer, service, port), timeout=5)
            except OSError:
                time.sleep(RETRY_S)
                continue
            connection.settimeout(None)
            connection.sendall(index.to_bytes(4, "big"))
            outgoing[peer] = connection
            return

    _run_at_once(lambda peer=peer: reach(peer) for peer in others)  # type: ignore[misc]
    return outgoing


def _agree(index: int, incoming: Connections, outgoing: Connections, deadline: float) -> bool:
    """Wait until all pods have all their connections; return whether they did in time."""
    if index != 0:
        outgoing[0].sendall(READY)
        return _hears(incoming[0], GO, deadline)
    if not all(_hears(connection, READY, deadline) for connection in incoming.values()):
        return False
    for connection in outgoing.values():
        connection.sendall(GO)
    return True


def _hears(connection: socket.socket, word: bytes, deadline: float) -> bool:
    """Return whether the peer says `word` before the deadline."""
    connection.settimeout(max(deadline - time.monotonic(), RETRY_S))
    try:
        return connection.recv(1) == word
    except OSError:
        return False
    finally:
        connection.settimeout(None)


def _exchange(num_pods: int, incoming: Connections, outgoing: Connections, seconds: float) -> list[float | None]:
    """Send to all and receive from all; return the MB/s received from each."""
    rates: list[float | None] = [None] * num_pods
    stop = time.monotonic() + seconds

    def send(connection: socket.socket) -> None:
        try:
            while time.monotonic() < stop:
                connection.sendall(CHUNK)
            connection.shutdown(socket.SHUT_WR)
        except OSError:  # the peer has gone, and misses the rate
            return

    def receive(peer: int, connection: socket.socket) -> None:
        began, received, buffer = time.monotonic(), 0, bytearray(len(CHUNK))
        try:
            while size := connection.recv_into(buffer):
                received += size
        except OSError:
            return
        rates[peer] = round(received / (time.monotonic() - began) / 1e6, 1)

    sending = [lambda each=each: send(each) for each in outgoing.values()]
    receiving = [lambda pair=pair: receive(*pair) for pair in incoming.items()]
    _run_at_once([*sending, *receiving])
    return rates


def _run_at_once(calls: Iterable[Callable[[], None]]) -> None:
    """Run each in a thread of its own, and wait for all."""
    threads = [threading.Thread(target=each) for each in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])
