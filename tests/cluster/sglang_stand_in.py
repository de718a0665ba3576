"""Run in a pod instead of SGLang: it reads the rendered arguments as SGLang does, meets its peers, and answers.

`python sglang_stand_in.py server|router SOURCES ARGUMENT...`, where SOURCES is the folder of SGLang's unpacked wheel.

    server   parses and checks by SGLang's own code, reads the expert map, and binds where it is told. The first pod
             waits for the others at `--dist-init-addr`; the others answer `/health` once they have met it. A request is
             answered with what came, and takes the seconds that its text says (`wait 3`).
    router   is SGLang's router itself.

On SIGTERM the first pod answers what it has begun, then leaves, and the others leave with it, as SGLang does
(sglang 0.5.23 entrypoints/engine.py: "Non-zero ranks cannot drain on their own"). Like SGLang it heeds no signal before
it has met its peers. No model is loaded, and nothing of SGLang but its parser and its router is run.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MEET_TIMEOUT_S = 120
RETRY_S = 0.2
NUM_LAYERS = 61


class Server(ThreadingHTTPServer):
    """Answers each request in a thread, and waits for these threads when it is closed."""

    daemon_threads = False
    is_leaving = False


class Handler(BaseHTTPRequestHandler):
    """What the router and the kubelet ask a server."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        """Health, metrics, and what the server is."""
        self._answer({"status": "ready"}, 503 if self.server.is_leaving else 200)

    def do_POST(self):
        """A request: what came, and where."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        word, _, seconds = str(body.get("text", "")).partition(" ")
        time.sleep(float(seconds) if word == "wait" else 0)
        self._answer({"text": os.environ["POD_IP"], "meta_info": {"id": "0"}, "came": body})

    def _answer(self, document, status=200):
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = True

    def log_message(self, *arguments):
        """Say nothing of probes."""


def serve(arguments):
    """Meet, then answer until SIGTERM or, on pods that are not the first, until the first leaves."""
    rows = json.loads(Path(arguments.init_expert_location).read_text())["physical_to_logical_map"]
    assert len(rows) == NUM_LAYERS
    is_first = arguments.node_rank == 0
    told = threading.Event()
    peers = meet(arguments) if arguments.nnodes > 1 else []
    signal.signal(signal.SIGTERM, lambda *_: told.set() if is_first else print("waiting for the first", flush=True))
    server = Server((arguments.host, arguments.port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"pod {arguments.node_rank} of {arguments.nnodes} answers at {server.server_address}", flush=True)
    if not is_first:
        threading.Thread(target=lambda: (peers[0].recv(1), told.set()), daemon=True).start()
    while not told.wait(1):
        pass
    server.is_leaving = True
    server.shutdown()
    server.server_close()
    for each in peers:
        each.close()


def meet(arguments):
    """Return the connections between the first pod and each other one, once all are there."""
    host, _, port = arguments.dist_init_addr.rpartition(":")
    deadline = time.monotonic() + MEET_TIMEOUT_S
    if arguments.node_rank == 0:
        listener = patiently(lambda: socket.create_server((host, int(port))), deadline)
        listener.settimeout(MEET_TIMEOUT_S)
        return [listener.accept()[0] for _ in range(arguments.nnodes - 1)]
    return [patiently(lambda: socket.create_connection((host, int(port))), deadline)]


def patiently(act, deadline):
    """Try until the first pod's name resolves, and it listens."""
    while True:
        try:
            return act()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)


def main(kind, sources, *words):
    """Parse as SGLang does, and go on."""
    sys.path.insert(0, sources)
    from tests.planner.engines.ask_sglang import parsed_command, parsed_router

    if kind == "server":
        serve(parsed_command(list(words)))
        return
    from sglang_router.router import Router

    Router.from_args(parsed_router(list(words))).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
