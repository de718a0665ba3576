"""The rank's network thread sends what it is told to, and stops when nobody wants it any more."""

import asyncio
import socket
import threading
import time
from types import SimpleNamespace

import msgspec
import pytest
import torch

from runtime.errors import RuntimeFailure
from runtime.kernels.device import HostLink
from runtime.protocol.frames import encode_frame
from runtime.protocol.messages import Abort, Expect, Failed, Handover, Hello, Offer, Rejected, Sampling, State, Wait
from runtime.worker import io_thread
from runtime.worker.gateway_connection import GatewayAddress
from runtime.worker.io_thread import Calls, Inbox, Network

HELLO = Hello("demo-prefill-0", "prefill", 0, 2, "node-0", 1, "sha256:unit", "sha256:kv", None, None)
OFFER = Offer("a", "ticket", "", [1, 1, 1], "fp32")
HANDOVER = Handover("a", [1], [2], Sampling(4, 0.0, 1.0, 0, []))
PATIENCE_S = 60


class Sender:
    """A KV sender that sends nothing, until it is cancelled or told how to end."""

    def __init__(self, failure=None):
        self.begun, self.cancelled = threading.Event(), threading.Event()
        self.outgoing = None
        self._failure = failure

    async def send(self, host, port, outgoing):
        self.outgoing = outgoing
        self.begun.set()
        if self._failure is not None:
            raise self._failure
        try:
            await asyncio.sleep(60)
        finally:
            self.cancelled.set()

    def put(self, outgoing, *rows):
        outgoing.put(*rows)


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts its wake-ups and the calls that failed."""

    num_woken = num_failed = 0

    def call_soon_threadsafe(self, *arguments, **options):
        self.num_woken += 1
        return super().call_soon_threadsafe(*arguments, **options)

    def call_exception_handler(self, context):
        self.num_failed += 1


def test_a_loop_is_woken_once_for_all_calls_that_it_has_not_looked_at():
    """The loop is woken once for all waiting calls. They run in order, and one that fails does not stop the others."""
    loop, made = CountingLoop(), []
    calls = Calls(loop)
    for number in (1, 2, "three", 4):
        calls.call_soon(lambda number: made.append(number + 0), number)
    loop.run_until_complete(asyncio.sleep(0.01))
    first = loop.num_woken, loop.num_failed, list(made)
    calls.call_soon(made.append, 5)
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()

    assert first == (1, 1, [1, 2, 4])
    assert (loop.num_woken, made) == (2, [1, 2, 4, 5])


def test_no_call_is_lost_between_threads():
    """No call is lost, whether the loop looks or sleeps when a thread makes it."""
    loop, made = asyncio.new_event_loop(), []
    calls = Calls(loop)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    for number in range(5000):
        calls.call_soon(made.append, number)
    calls.call_soon(loop.stop)
    thread.join(PATIENCE_S)
    loop.close()

    assert made == list(range(5000))


def test_an_abort_cancels_the_transfer_and_reaches_the_phase():
    """An Abort ends the transfer at once, drops later latents, and reaches the phase."""
    sender, inbox = Sender(), Inbox()
    network = Network(GatewayAddress("127.0.0.1", 1), HELLO, inbox, sender)
    transfer = network.open_transfer("127.0.0.1", 1, OFFER, HostLink())
    assert not network.is_handing_over()
    transfer.put(0, 0, torch.ones(1, 1))
    assert network.is_handing_over()
    assert sender.begun.wait(PATIENCE_S)
    network._soon(network._receive, Abort("a"))

    assert sender.cancelled.wait(PATIENCE_S)
    assert inbox.get(timeout=PATIENCE_S) == Abort("a")
    wait_until(lambda: not network.is_handing_over())
    transfer.put(0, 1, torch.ones(1, 1))
    transfer.finish(HANDOVER)
    wait_until(lambda: sender.outgoing.handover is not None)
    assert sender.outgoing.held_bytes == 0
    assert not network.is_handing_over()
    assert inbox.empty()


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_transfer_that_nobody_wants_any_more_is_cancelled(is_begun):
    """A transfer is cancelled when its text has ended, whether or not it has begun."""
    sender = Sender()
    network = Network(GatewayAddress("127.0.0.1", 1), HELLO, Inbox(), sender)
    transfer = network.open_transfer("127.0.0.1", 1, OFFER, HostLink())
    if is_begun:
        transfer.put(0, 0, torch.ones(1, 1))
        assert sender.begun.wait(PATIENCE_S)
    transfer.cancel()

    wait_until(lambda: not network.is_handing_over())
    assert sender.cancelled.wait(PATIENCE_S if is_begun else 0) == is_begun


def test_a_transfer_that_fails_is_its_requests_failure():
    """If a transfer fails, the gateway hears that another rank may go on, and this rank drops the prompt."""
    inbox, failure = Inbox(), RuntimeFailure("its KV could not be sent")
    with socket.create_server(("127.0.0.1", 0)) as gateway:
        network = Network(GatewayAddress(*gateway.getsockname()), HELLO, inbox, Sender(failure))
        network.open_links()
        rank, _ = gateway.accept()
        with rank:
            rank.settimeout(PATIENCE_S)
            line = rank.makefile("rb")
            line.read(len(encode_frame(HELLO) + encode_frame(State("loading", 0.0))))
            network.open_transfer("127.0.0.1", 1, OFFER, HostLink()).put(0, 0, torch.ones(1, 1))

            failed = Failed("a", "its KV could not be sent", may_retry=True)
            assert line.read(len(encode_frame(failed))) == encode_frame(failed)
            assert inbox.get(timeout=PATIENCE_S) == Abort("a")
            wait_until(lambda: not network.is_handing_over())


def test_a_decode_rank_is_told_what_to_expect_and_what_not_to():
    """The KV receiver gets tickets and Aborts on the network's thread; the phase gets only Aborts."""
    told, inbox = [], Inbox()
    receiver = SimpleNamespace(
        serve=None, expect=lambda *ticket: told.append(ticket), abort=lambda request_id: told.append(request_id)
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        network = Network(GatewayAddress("127.0.0.1", 1), HELLO, inbox, SimpleNamespace())
        network.open_kv_port(listener, receiver)
        for message in (Expect("a", "ticket"), Abort("a")):
            network._soon(network._receive, message)

        assert inbox.get(timeout=PATIENCE_S) == Abort("a")
        assert told == [("a", "ticket"), "a"]
        network._soon(network._loop.stop)


def test_a_rank_that_the_gateway_refuses_loads_no_further():
    """A refused rank ends at its next progress report, long before its step loop."""
    with socket.create_server(("127.0.0.1", 0)) as gateway:
        network = Network(GatewayAddress(*gateway.getsockname()), HELLO, Inbox(), SimpleNamespace())
        network.say_loaded(0.02)
        network.open_links()
        rank, _ = gateway.accept()
        with rank:
            rank.sendall(encode_frame(Rejected("it is not wanted")))
            with pytest.raises(RuntimeFailure, match="the gateway refuses this rank: it is not wanted"):
                load(network)


def test_a_rank_whose_steps_go_on_says_its_state_again():
    """A rank whose loop turns sends its present state again."""
    with socket.create_server(("127.0.0.1", 0)) as gateway:
        network = Network(GatewayAddress(*gateway.getsockname()), HELLO, Inbox(), SimpleNamespace())
        network.say_state("ready")
        network.open_links()
        rank, _ = gateway.accept()
        with rank:
            rank.settimeout(PATIENCE_S)
            line, presented, state = rank.makefile("rb"), encode_frame(HELLO), encode_frame(State("ready"))
            heard = line.read(len(presented + state))
            network.repeat_state()

            assert heard == presented + state
            assert line.read(len(state)) == state


def test_a_rank_that_gets_no_requests_says_so_and_is_ready_for_new_gateways_alone(capsys, monkeypatch):
    """A refused rank is not ready until all gateways are new and none refuses it."""
    monkeypatch.setattr(io_thread, "LOOK_S", 0.01)
    loaded = msgspec.structs.replace(HELLO, kv_digest="sha256:kv-with-weights")
    with socket.create_server(("127.0.0.1", 0)) as gateway:
        network = Network(GatewayAddress(*gateway.getsockname()), HELLO, Inbox(), SimpleNamespace())
        network.say_hello_again(loaded)
        network.open_links()
        rank, _ = gateway.accept()
        with rank:
            rank.sendall(encode_frame(Wait("it loaded other weights")) * 2)
            wait_until(lambda: network.refusal)
            network.say_state("ready")
        rank, _ = gateway.accept()
        with rank:
            rank.settimeout(PATIENCE_S)
            said = b"".join(encode_frame(each) for each in (HELLO, loaded, State("joining"), State("ready")))
            assert rank.makefile("rb").read(len(said)) == said

    assert network.refusal is None
    assert capsys.readouterr().err == "tidemill: this rank gets no requests: it loaded other weights\n"


def load(network):
    """Report progress again and again, for as long as the test waits."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        network.say_loaded(0.04)
        time.sleep(0.01)
