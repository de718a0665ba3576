"""Mutated bytes for every port of a deployment that really runs: `python -m tests.stacks.fire 2000` brings one up.

What is sent to a port is what it is there for, and then changed: frames of the runtime's protocol, HTTP requests, and
for gloo's ports what its own library says first. The gateway's port for ranks gets half in the clear, and half over
TLS with a unit's own certificate. Others' requests go on meanwhile. The port of torch's store is closed once a unit's
ranks have joined.
"""

import json
import socket
import ssl
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
from openai import OpenAI

from runtime.protocol.frames import encode_frame
from runtime.protocol.messages import Failed, Handover, Hello, Logprobs, Offer, Sampling, Token
from runtime.protocol.tls import Credentials
from tests.runtime.mutations import mutated_bytes, mutated_frames
from tests.stacks.deployments import HOSTS, Tidemill, listening, wait_until

__all__ = ["fire", "launch_files", "survives", "texts"]

PATIENCE_S = 0.05  # for an answer; gloo waits for more
PROMPTS = ["A storm came up from the south", "Why is the sea salt?", "Bread needs flour, water"]
HELLO = Hello("stranger", "decode", 0, 1, "node-9", 9, "sha256:unit", "sha256:kv", "127.0.0.1", 29600)
OFFER = Offer("mutated", "ticket", "sha256:kv", [5, 3, 80], "bf16")
HANDOVER = Handover("mutated", [5, 6, 8], [6], Sampling(2, 1.0, 0.9, 3, [1]))
SPOKEN = [Token("mutated", 0, 5, None, Logprobs(-0.5, [(1, -0.5)])), Failed("mutated", "no reason")]
BODY = b'{"model": "tidemill-demo", "prompt": [5, 6], "max_tokens": 1}'
HTTP = [
    b"GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n",
    b"GET /readyz HTTP/1.0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Type: application/json\r\n"
    + f"Content-Length: {len(BODY)}\r\n\r\n".encode()
    + BODY,
]
GLOO = [(number).to_bytes(8, "little") for number in (0, 1, 2**63)]  # a pair's number, which both ends agreed on


def fire(deployed: Tidemill, launch: dict[str, dict], frames_a_port: int, seed: int = 0) -> Counter[str]:
    """Send so many to each port, to all ports at once; how many ports of each kind there are."""
    ports = listening(deployed.processes())
    kinds = [_kind(port, launch) for _, port in ports]

    tls = _credentials(deployed, _any_unit(launch))

    def shoot(number: int) -> None:
        host, port = ports[number]
        for index, data in enumerate(_ammunition(kinds[number], launch, frames_a_port, seed + number)):
            _send(host, port, data, tls if kinds[number] == "registry" and index % 2 else None)

    with ThreadPoolExecutor(len(ports)) as threads:
        list(threads.map(shoot, range(len(ports))))
    return Counter(kinds)


def survives(deployed: Tidemill, attack: Callable[[], object]) -> object:
    """Attack while others ask, and assert that nobody of them notices and no process ends; what the attack said."""
    expected, processes = texts(deployed, PROMPTS), set(deployed.processes())
    is_over = threading.Event()

    def go_on() -> list[list[str]]:
        answers = [texts(deployed, PROMPTS)]
        while not is_over.is_set():
            answers.append(texts(deployed, PROMPTS))
        return answers

    with ThreadPoolExecutor(1) as others:
        answering = others.submit(go_on)
        try:
            said = attack()
        finally:
            is_over.set()
    assert all(answer == expected for answer in answering.result())
    assert texts(deployed, PROMPTS) == expected
    assert set(deployed.processes()) == processes
    assert {unit["state"] for unit in deployed.status()["units"]} == {"ready"}
    return said


def texts(deployed: Tidemill, prompts: Sequence[str | list[int]], max_tokens: int = 16) -> list[str]:
    """Greedy answers to the prompts."""
    client = OpenAI(base_url=f"http://{deployed.host}:8000/v1", api_key="none", max_retries=0)
    answer = client.completions.create(model="tidemill-demo", prompt=prompts, max_tokens=max_tokens, temperature=0)
    return [choice.text for choice in sorted(answer.choices, key=lambda choice: choice.index)]


def launch_files(deployed: Tidemill) -> dict[str, dict]:
    """The launch files that the processes were started with, by unit, and the gateway's."""
    (folder,) = (deployed.state / "tidemill").glob("*/launch")
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("*.launch.json"))]
    return {document.get("unit", "gateway"): document for document in documents}


def _kind(port: int, launch: dict[str, dict]) -> str:
    """What listens there: a port of the launch files, on a rank plus its local rank, or gloo's, which is any."""
    for document in launch.values():
        for name, first in document["ports"].items():
            if first <= port < first + 8 and (port == first or name in ("kv", "metrics")):
                return name
    return "gloo"


def _ammunition(kind: str, launch: dict[str, dict], number: int, seed: int) -> Iterator[bytes]:
    digest = launch["gateway"]["kv_digest"]
    if kind == "registry":
        unit = _any_unit(launch)
        own = {"unit": unit, "unit_digest": launch[unit]["unit_digest"], "kv_digest": digest}
        hello = msgspec.structs.replace(HELLO, **own)
        yield from mutated_frames(hello, b"", number // 2, seed)
        for data in mutated_frames(SPOKEN[seed % 2], b"", number - number // 2, seed):
            yield encode_frame(hello) + data
    elif kind == "kv":
        (dtype,) = {document["kv_cache"]["dtype"] for document in launch.values() if "kv_cache" in document}
        offer = msgspec.structs.replace(OFFER, kv_digest=digest, dtype=dtype)
        for data in mutated_frames(offer, b"", number, seed):
            yield data + encode_frame(HANDOVER)
    else:
        yield from mutated_bytes(GLOO if kind == "gloo" else HTTP, number, seed)


def _any_unit(launch: dict[str, dict]) -> str:
    return min(launch.keys() - {"gateway"})


def _credentials(deployed: Tidemill, unit: str) -> ssl.SSLContext:
    """Those of a real unit, so that what is sent comes past the handshake."""
    (folder,) = (deployed.state / "tidemill").glob(f"*/tls/{unit}")
    return Credentials(folder, "client").context


def _send(host: str, port: int, data: bytes, tls: ssl.SSLContext | None) -> None:
    with suppress(OSError), ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection((host, port), timeout=5))
        if tls is not None:
            connection = stack.enter_context(tls.wrap_socket(connection))
        connection.settimeout(PATIENCE_S)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(2**16):
            pass


def main() -> None:
    """Bring the demo up, fire, print what there was, and bring it down."""
    with tempfile.TemporaryDirectory() as folder:
        deployed = Tidemill(next(HOSTS), Path(folder))
        done = deployed.up(*sys.argv[2:])
        assert done.returncode == 0, done.stderr
        try:
            launch = launch_files(deployed)
            print(survives(deployed, lambda: fire(deployed, launch, int(sys.argv[1]))))
        finally:
            deployed.run("down")
            wait_until(lambda: not deployed.processes())


if __name__ == "__main__":
    main()
