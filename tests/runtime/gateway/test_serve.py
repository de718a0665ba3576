"""The gateway as a process: its ports, its end, and what it says when it cannot start."""

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
    """The sentence has address, port and what the port is for; nothing is served then."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        gateway = start_gateway(ports={name: port}, wait=False)
        status = gateway.process.wait(10)

    assert status == 1
    assert gateway.log() == f"tidemill: cannot listen on 127.0.0.1:{port} ({name}): address already in use\n"


@pytest.mark.parametrize(("address", "complaint"), [("0.0.0.0", "means all of them"), ("gateway", "must be an IP")])
def test_only_one_address_is_bound(gateway, address, complaint):
    """A wildcard or a name is refused."""
    with pytest.raises(RuntimeFailure, match=complaint):
        run(read_gateway_launch(gateway.launch_file), address, drain_s=0)


def test_another_checkpoint_than_planned_is_refused(gateway):
    """The digest of config.json must be the launch file's."""
    launch = json.loads(gateway.launch_file.read_text())
    other = SimpleNamespace(uri=launch["checkpoint"]["uri"], config_digest="sha256:other")

    with pytest.raises(RuntimeFailure, match="sha256:other"):
        run(SimpleNamespace(checkpoint=other), "127.0.0.1", drain_s=0)


def test_sigterm_ends_the_process_cleanly(start_gateway):
    """Exit status 0, no traceback, ports free again, an idle client connection no obstacle."""
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


def test_an_answer_that_runs_at_sigterm_ends_as_without(start_gateway, join, until):
    """New callers are refused meanwhile, and the process ends with status 0 after it."""
    gateway = start_gateway()
    request_id, ranks, stream = stream_of_a_pair(gateway, join, until)

    gateway.process.send_signal(signal.SIGTERM)
    until(lambda: not takes_connections(gateway), "nobody is let in")
    ranks[1].say(Token(request_id, 1, 41, "length"))

    said = stream.read().decode()
    assert '"finish_reason":"length"' in said
    assert said.endswith("data: [DONE]\n\n")
    assert gateway.process.wait(60) == 0


@pytest.mark.whole
def test_an_answer_that_outlives_the_grace_ends_with_an_error(start_gateway, join, until):
    """SIGTERM leaves a running stream a few seconds, then ends it in words; the ranks hear Abort and nothing is cut."""
    gateway = start_gateway()
    request_id, ranks, stream = stream_of_a_pair(gateway, join, until)

    assert gateway.stop() == 0
    assert "the gateway is stopping" in stream.read().decode()
    assert ranks[1].hear() == Abort(request_id)
    assert "Traceback" not in gateway.log()


def stream_of_a_pair(gateway, join, until):
    """The id of a request that has its first token, the ranks of its two units, and its stream."""
    ranks = [join(at=gateway, phase=phase) for phase in ("prefill", "decode")]
    for rank in ranks:
        rank.say(State("ready"))
    until(lambda: gateway.ready_report()["ready"], "the pair is ready")
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
    """Its pod needs neither torch nor a GPU."""
    code = "import sys, runtime.gateway.serve; print('torch' in sys.modules)"

    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
