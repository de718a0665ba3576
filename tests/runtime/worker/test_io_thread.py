"""The rank's network thread: what it is told to send, and what it stops sending."""

import asyncio
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from runtime.errors import RuntimeFailure
from runtime.protocol.frames import encode_frame
from runtime.protocol.messages import Abort, Handover, Hello, Rejected, Sampling, State
from runtime.worker.io_thread import Inbox, Network

HELLO = Hello("demo-prefill-0", "prefill", 0, 2, "node-0", 1, "sha256:unit", "sha256:kv", None, None)
HANDOVER = Handover("a", "", [1], [1, 1, 1], "fp32", [2], Sampling(4, 0.0, 1.0, 0, []))
PATIENCE_S = 10


def test_an_abort_cancels_the_handover_and_reaches_the_phase():
    """The sending ends at once, the rank goes on, and the phase hears of the Abort all the same."""
    begun, cancelled = threading.Event(), threading.Event()

    async def send(*_):
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    inbox = Inbox()
    network = Network("127.0.0.1", 1, HELLO, inbox, SimpleNamespace(send=send))
    network.hand_over("127.0.0.1", 1, HANDOVER, None)
    assert begun.wait(PATIENCE_S)
    network._soon(network._receive, Abort("a"))

    assert cancelled.wait(PATIENCE_S)
    assert inbox.get(timeout=PATIENCE_S) == Abort("a")
    deadline = time.monotonic() + PATIENCE_S
    while network._handovers and time.monotonic() < deadline:
        time.sleep(0.01)
    assert network._handovers == {}
    assert inbox.empty()


def test_a_rank_that_the_gateway_refuses_loads_no_further():
    """The next part of its tensors ends it, long before there is a step loop that reads the inbox."""
    with socket.create_server(("127.0.0.1", 0)) as gateway:
        network = Network(*gateway.getsockname(), HELLO, Inbox(), SimpleNamespace())
        network.say_loaded(0.02)
        network.open_link()
        rank, _ = gateway.accept()
        with rank:
            rank.sendall(encode_frame(Rejected("it is not wanted")))
            with pytest.raises(RuntimeFailure, match="the gateway refuses this rank: it is not wanted"):
                load(network)


def test_a_rank_whose_steps_go_on_says_its_state_again():
    """The state that it has: a gateway that hears nothing gives the rank up."""
    with socket.create_server(("127.0.0.1", 0)) as gateway:
        network = Network(*gateway.getsockname(), HELLO, Inbox(), SimpleNamespace())
        network.say_state("ready")
        network.open_link()
        rank, _ = gateway.accept()
        with rank:
            rank.settimeout(PATIENCE_S)
            line, presented, state = rank.makefile("rb"), encode_frame(HELLO), encode_frame(State("ready"))
            heard = line.read(len(presented + state))
            network.say_still_here()

            assert heard == presented + state
            assert line.read(len(state)) == state


def load(network):
    """Report progress again and again, for as long as a test has patience."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        network.say_loaded(0.04)
        time.sleep(0.01)
