"""The rank's network thread: what it is told to send, and what it stops sending."""

import asyncio
import threading
from types import SimpleNamespace

from runtime.protocol.messages import Abort, Handover, Hello, Sampling
from runtime.worker.io_thread import Inbox, Network

HELLO = Hello("demo-prefill-0", "prefill", 0, 2, "node-0", 1, "sha256:unit", "sha256:kv", None, None)
HANDOVER = Handover("a", "", [1], [1, 1, 1], "fp32", 2, Sampling(4, 0.0, 1.0, 0, []))
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
    assert inbox.empty()
    assert network._handovers == {}
