"""The script of each pod of `doctor --probe`: connect to all others, send to all at the same time, try the disk.

    python3 -c SCRIPT INDEX NUM_PODS SERVICE PORT SECONDS DEADLINE_S [FOLDER]

Its text is handed to `python3 -c` in whatever image the units have, ours or an engine's. So it uses the standard
library alone, and imports nothing of ours. Pods find each other by the names that a headless Service gives them, as
ranks do.

Every pod connects to every other, one connection a direction. A pod that has all of its connections reports to pod 0,
and once all have, pod 0 tells them to start. Then each sends to every other for SECONDS, and counts what it receives.

Where ranks keep KV in FOLDER, it then writes files without names there for SECONDS, and reads them back. Bytes that are
not on the disk do not count as written, and the page cache is told to forget them before they are read.

The result is one line of JSON where Kubernetes keeps a container's last words, of which it takes 4096 bytes:
    {"missing": [peers without a connection], "mb_per_s": [received from each peer; null from itself],
     "disk": {"bytes", "write_mb_per_s", "read_mb_per_s", "is_nameless"} or {"error"}, where there is a FOLDER}
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

__all__ = ["main"]

LAST_WORDS = "/dev/termination-log"
CHUNK = bytes(1 << 20)
FILES = 4  # files at a time: a rank reads with as many threads
MOST_CHUNKS = 1024  # the most chunks of a file
MOST_SHARE = 16  # a file takes at most 1 / 16 of the free bytes
RETRY_S = 0.2
READY, GO = b"R", b"G"

Connections = dict[int, socket.socket]  # peer's index -> connection


def main(words: Sequence[str], last_words: str = LAST_WORDS) -> None:
    """Run the probe in one pod, and write its result to the file `last_words`."""
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
    disk = {"disk": try_disk(words[6], seconds)} if words[6:] else {}
    Path(last_words).write_text(json.dumps({"missing": missing, "mb_per_s": rates, **disk}, separators=(",", ":")))


def peer_address(peer: int, service: str, port: int) -> tuple[str, int]:
    """Return the host name and the port at which a peer listens."""
    return f"probe-{peer}.{service}", port


def try_disk(folder: str, seconds: float) -> "dict[str, float | str]":
    """Return the size in bytes and the MB/s of the folder's disk, or `{"error": ...}` if it cannot be written to.

    No file is left in the folder.
    """
    files: list[int] = []
    try:
        name = f"tidemill-probe-{os.getpid()}-{time.time_ns()}"
        is_nameless = _links_nameless(folder, name)
        names = (f"{folder}/{name}-{number}" for number in range(FILES))
        files += (_open_nameless(folder) if is_nameless else _open_unlinked(each) for each in names)
        size = os.statvfs(folder)
        most = min(size.f_bavail * size.f_frsize // MOST_SHARE // len(CHUNK), MOST_CHUNKS)
        written = _measure_rate(files, lambda file: _write(file, most, time.monotonic() + seconds))
        rates = {"write_mb_per_s": written, "read_mb_per_s": _measure_rate(files, _read)}
        return {"bytes": size.f_blocks * size.f_frsize, "is_nameless": is_nameless, **rates}
    except OSError as error:
        return {"error": error.strerror or str(error)}
    finally:
        for file in files:
            os.close(file)


def _links_nameless(folder: str, name: str) -> bool:
    """Return whether a file created without a name (O_TMPFILE) can later be given one in `folder`, as ranks do.

    Raises OSError if the folder cannot be opened.
    """
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        file = _open_nameless(folder)
        try:
            os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=place)
            os.unlink(name, dir_fd=place)
        finally:
            os.close(file)
    except OSError:
        return False  # if nobody can write there at all, opening the next file raises
    finally:
        os.close(place)
    return True


def _open_nameless(folder: str) -> int:
    return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)


def _open_unlinked(name: str) -> int:
    file = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.unlink(name)
    return file


def _write(file: int, most: int, stop: float) -> int:
    """Write up to `most` chunks of CHUNK's size before the time `stop`, and sync them to the disk.

    Return the bytes written.
    """
    chunk, written = os.urandom(len(CHUNK)), 0  # a file system may compress zeros
    while written < most * len(chunk) and time.monotonic() < stop:
        written += os.write(file, chunk)
    os.fsync(file)
    return written


def _read(file: int) -> int:
    """Read a whole file from the disk, not from the page cache. Return the bytes read."""
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    done = 0
    while size := len(os.pread(file, len(CHUNK), done)):
        done += size
    return done


def _measure_rate(files: "list[int]", work: "Callable[[int], int]") -> float:
    """Run `work`, which returns bytes, on all files at once. Return the MB/s of all files together.

    Raises OSError if `work` fails on a file.
    """
    failed: list[OSError] = []
    done: list[int] = []

    def run(file: int) -> None:
        try:
            done.append(work(file))
        except OSError as error:
            failed.append(error)

    began = time.monotonic()
    _run_at_once(lambda file=file: run(file) for file in files)  # type: ignore[misc]
    if failed:
        raise failed[0]
    return round(sum(done) / (time.monotonic() - began) / 1e6, 1)


def _accept(server: socket.socket, incoming: Connections) -> None:
    """Accept peers' connections into `incoming`; each connection begins with its peer's index."""
    while True:
        connection, _ = server.accept()
        incoming[int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")] = connection


def _connect(index: int, others: Iterable[int], service: str, port: int, deadline: float) -> Connections:
    """Return a connection to each peer. Retry until the deadline while a peer's name or port does not exist yet."""
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
    """Wait until every pod has all its connections. Return whether that happened before the deadline."""
    if index != 0:
        outgoing[0].sendall(READY)
        return _hears(incoming[0], GO, deadline)
    if not all(_hears(connection, READY, deadline) for connection in incoming.values()):
        return False
    for connection in outgoing.values():
        connection.sendall(GO)
    return True


def _hears(connection: socket.socket, word: bytes, deadline: float) -> bool:
    """Return whether the peer sends `word` before the deadline."""
    connection.settimeout(max(deadline - time.monotonic(), RETRY_S))
    try:
        return connection.recv(1) == word
    except OSError:
        return False
    finally:
        connection.settimeout(None)


def _exchange(num_pods: int, incoming: Connections, outgoing: Connections, seconds: float) -> list[float | None]:
    """Send to and receive from all peers at once for `seconds`. Return the MB/s received from each pod, `[num_pods]`.

    The rate is None for this pod itself.
    """
    rates: list[float | None] = [None] * num_pods
    stop = time.monotonic() + seconds

    def send(connection: socket.socket) -> None:
        try:
            while time.monotonic() < stop:
                connection.sendall(CHUNK)
            connection.shutdown(socket.SHUT_WR)
        except OSError:  # the peer has gone: its rate is low or missing
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
    """Run each call in a thread of its own, and wait until all have returned."""
    threads = [threading.Thread(target=each) for each in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])
