"""A prefill and a decode rank hand requests over through their real network threads."""

import time
from types import SimpleNamespace

from runtime.kv.host_memory import HostMemory
from runtime.kv.sender import KvSender
from runtime.launch import KvLayout
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.messages import Hello, Prefill, Sampling, Token
from runtime.protocol.sockets import listen
from runtime.serving.decode import DecodePhase
from runtime.serving.prefill import PrefillPhase
from runtime.worker.gateway_connection import GatewayAddress
from runtime.worker.io_thread import Inbox, Network
from runtime.worker.worker import _receiver
from tests.runtime.conversations import LIMITS, demo_engine
from tests.runtime.one_rank import NO_METRICS

HOST, PATIENCE_S = "127.0.0.1", 60
HELLO = Hello("unit", "decode", 0, 1, "node-0", 1, "sha256:unit", "sha256:kv", None, None)


class Rank:
    """One rank with its own network thread. It says nothing to gateways, and keeps its tokens."""

    def __init__(self, kind, engine):
        layers, latent_dim = engine.token_shape
        layout = KvLayout(11, "fp32", 4 * layers * latent_dim)
        self.launch = SimpleNamespace(limits=LIMITS, kv_digest="sha256:kv", kv_cache=layout, deterministic=True)
        self.sent, self.tokens, self.inbox = [], {}, Inbox()
        sender = KvSender(SimpleNamespace(count_transfer=lambda num_bytes, *_: self.sent.append(num_bytes)), 2**30)
        self.network = Network(GatewayAddress(HOST, 1), HELLO, self.inbox, sender)
        self.phase = kind(engine, self.launch, self, NO_METRICS, b"blocks")

    def say(self, message):
        if isinstance(message, Token):
            self.tokens.setdefault(message.request_id, []).append(message.token_id)

    def say_load(self, load):
        """Do nothing: there is no gateway."""

    def open_transfer(self, *arguments):
        return self.network.open_transfer(*arguments)

    def turn(self):
        """Take what came, and step if there is work."""
        while not self.inbox.empty():
            self.phase.receive(self.inbox.get())
        if self.phase.has_work():
            self.phase.step()


def test_a_second_turn_is_handed_over_without_what_the_decode_rank_has(free_port):
    """Its answer is the one that follows from all of its KV, of which only the new part was sent."""
    engine, port = demo_engine(), free_port()
    prefill, decode = Rank(PrefillPhase, engine), Rank(DecodePhase, engine)
    receiver = _receiver(decode.launch, engine, decode.inbox, HostMemory(), None)
    decode.network.open_kv_port(listen(HOST, port, "kv"), receiver)
    prompt = list(range(8, 8 + 2 * PAGE_TOKENS + 9))
    for name, words in (("first", prompt), ("same", prompt)):
        receiver.expect(name, "ticket")
        prefill.phase.receive(Prefill(name, words, Sampling(5, 0.0, 1.0, 0, []), HOST, port, "ticket"))
        deadline = time.monotonic() + PATIENCE_S
        while len(decode.tokens.get(name, [])) < 4 and time.monotonic() < deadline:
            prefill.turn()
            decode.turn()

    assert decode.tokens["same"] == decode.tokens["first"]
    assert [each.skipped for each in prefill.sent] == [0, 2 * PAGE_TOKENS * prefill.launch.kv_cache.bytes_per_token]
    cache = decode.phase.cache
    assert cache.num_free_pages == cache.num_pages
