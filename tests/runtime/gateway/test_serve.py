"""The gateway as a process: its ports, its end, and its sentence when it cannot start."""

import http.client
import json
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from runtime.errors import RuntimeFailure
from runtime.gateway.serve import run
from runtime.launch import read_gateway_launch
from runtime.protocol.messages import Abort, State, Token


@pytest.mark.parametrize("name", ["http", "registry", "metrics"])
def test_a_taken_port_is_one_sentence(start_gateway, name):
    """A taken port is one sentence with address, port and purpose, and nothing is served."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        gateway = start_gateway(ports={name: port}, wait=False)
        status = gateway.process.wait(10)

    assert status == 1
    assert gateway.log() == f"tidemill: cannot listen on 127.0.0.1:{port} ({name}): address already in use\n"


@pytest.mark.parametrize(("address", "complaint"), [("0.0.0.0", "means all of them"), ("gateway", "must be an IP")])
def test_only_one_address_is_bound(gateway, address, complaint):
    """A wildcard or a name as address is refused."""
    with pytest.raises(RuntimeFailure, match=complaint):
        run(read_gateway_launch(gateway.launch_file), address, drain_s=0)


def test_another_checkpoint_than_planned_is_refused(gateway):
    """A checkpoint with another config.json than the launch file's is refused."""
    launch = json.loads(gateway.launch_file.read_text())
    other = SimpleNamespace(uri=launch["checkpoint"]["uri"], config_digest="sha256:other")

    with pytest.raises(RuntimeFailure, match="sha256:other"):
        run(SimpleNamespace(checkpoint=other), "127.0.0.1", drain_s=0)


def test_sigterm_ends_the_process_cleanly(start_gateway):
    """SIGTERM ends the process with status 0, without a traceback, despite an idle client."""
    gateway = start_gateway()
    idle = http.client.HTTPConnection("127.0.0.1", gateway.ports["http"])
    idle.request("GET", "/health")
    idle.getresponse().read()

    assert gateway.stop() == 0
    assert "Traceback" not in gateway.log()
    for port in gateway.ports.values():
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
    idle.close()


def test_an_answer_that_runs_at_sigterm_ends_as_without(start_gateway, join, wait_until):
    """An answer that runs at SIGTERM is finished, while new callers are refused."""
    gateway = start_gateway()
    request_id, ranks, stream = start_stream(gateway, join, wait_until)

    gateway.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not takes_connections(gateway), "nobody is let in")
    ranks[1].say(Token(request_id, 1, 41, "length"))

    said = stream.read().decode()
    assert '"finish_reason":"length"' in said
    assert said.endswith("data: [DONE]\n\n")
    assert gateway.process.wait(60) == 0


@pytest.mark.whole
def test_an_answer_that_outlives_the_grace_ends_with_an_error(start_gateway, join, wait_until):
    """An answer that outlives the grace ends with an error event, and the ranks hear Abort."""
    gateway = start_gateway()
    request_id, ranks, stream = start_stream(gateway, join, wait_until)

    assert gateway.stop() == 0
    assert "the gateway is stopping" in stream.read().decode()
    assert ranks[1].hear() == Abort(request_id)
    assert "Traceback" not in gateway.log()


def start_stream(gateway, join, wait_until):
    """Start a stream. Return its request's id after the first token, the ranks of its two units, and the stream."""
    ranks = [join(at=gateway, phase=phase) for phase in ("prefill", "decode")]
    for rank in ranks:
        rank.say(State("ready"))
    wait_until(lambda: gateway.ready_report()["ready"], "the pair is ready")
    client = http.client.HTTPConnection("127.0.0.1", gateway.ports["http"])
    client.request("POST", "/v1/completions", json.dumps({"model": "org/tiny", "prompt": "mill", "stream": True}))
    request_id = ranks[0].hear().request_id
    ranks[0].say(Token(request_id, 0, 40, None))
    return request_id, ranks, client.getresponse()


def takes_connections(gateway):
    try:
        socket.create_connection(("127.0.0.1", gateway.ports["http"]), timeout=5).close()
    except (ConnectionRefusedError, ConnectionResetError):  # a listener that closes resets a half-made connection
        return False
    return True


def test_the_gateway_imports_no_torch():
    """The gateway imports no torch."""
    code = "import sys, runtime.gateway.serve; print('torch' in sys.modules)"

    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
