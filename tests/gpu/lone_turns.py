"""Turns of one rank's step loop, as a worker takes them: receive, vote, schedule, compute, draw, say the tokens.

It runs the product's own loop and phases. Played are the other ranks, which vote as this one does, and the gateway and
the decode ranks: what is said to them is encoded on a thread of its own, and latents end in the host's memory.
"""

import asyncio
import threading
import time
from dataclasses import dataclass

import torch

from runtime.protocol.frames import encode_frame
from runtime.protocol.messages import Failed, Handover, Prefill, Sampling
from runtime.serving.decode import ArrivedRequest
from runtime.worker.io_thread import Calls, Inbox
from runtime.worker.leaving import Leaving
from runtime.worker.pulse import Pulse
from runtime.worker.rank_metrics import RankMetrics
from runtime.worker.step_times import StepTimes
from runtime.worker.worker import LOAD_S, PHASES, run_step_loop
from tests.gpu.played_peers import PlayedGroup
from tests.runtime.one_rank import NO_SWITCH

__all__ = ["Turns", "arrivals", "prompts"]

DRAWN = {"temperature": 0.6, "top_p": 0.95, "stop_ids": []}  # as DeepSeek recommends for R1: its README.md
TOKEN = 7
MAX_TOKENS = 2  # of a prompt's answer: it moves to a decode rank after its first


class Turns:
    """A rank's phase, and the turns of its loop."""

    def __init__(self, rank):
        self._rank, self._outbox = rank, Outbox(rank.clock)
        self.phase = PHASES[rank.launch.phase](rank.engine, rank.launch, self._outbox, RankMetrics(rank.launch, 0))
        self.cache = self.phase._scheduler.cache

    def run(self, messages):
        """Take turns until these requests are done.

        Return the seconds of each turn, the spans of the last, if the clock is watching, and the tokens that were said.
        """
        inbox, pulse = Inbox(), StampedPulse(self._rank.clock)
        for message in messages:
            inbox.put(message)
        leaving, times = Leaving(Nobody()), StepTimes(self._rank.model.dispatcher.traffic.waits)
        leaving.begin()  # so the loop ends when no request is left
        pulse.repeat(self.phase.tell_load, LOAD_S)
        said_before = self._outbox.num_said
        group = PlayedGroup(self._rank.launch.rank_nodes())
        run_step_loop(self.phase, group, NO_SWITCH, inbox, leaving, pulse, times)
        turns = [after - before for before, after in zip(pulse.stamps, pulse.stamps[1:], strict=False)]
        return turns, pulse.spans, self._outbox.num_said - said_before


def arrivals(number, num_cached, num_tokens, latents):
    """Return requests that come from prefill ranks with the same latents, and get `num_tokens` tokens here."""
    return [
        ArrivedRequest(
            Handover(f"gateway/{seed}", [TOKEN] * num_cached, [TOKEN], _sampling(seed, num_tokens + 1)), latents
        )
        for seed in range(number)
    ]


def prompts(lengths):
    """Return prompts of these lengths, that a gateway sends and that go on at a decode rank."""
    place = {"kv_host": "127.0.0.1", "kv_port": 1, "kv_ticket": "ticket"}
    return [
        Prefill(f"gateway/p{seed}", [TOKEN] * length, _sampling(seed, MAX_TOKENS), **place)
        for seed, length in enumerate(lengths)
    ]


def _sampling(seed, max_tokens):
    return Sampling(seed=seed, max_tokens=max_tokens, **DRAWN)


class StampedPulse(Pulse):
    """A pulse that keeps when each turn began, and the clock's spans of the turn before."""

    def __init__(self, clock):
        super().__init__()
        self._clock, self.stamps, self.spans = clock, [], []

    def turn(self):
        self.stamps.append(time.perf_counter())
        self.spans = self._clock.take()
        super().turn()


class Nobody:
    """Lines to no gateway, for leaving."""

    def say_draining(self):
        pass

    def is_dismissed(self):
        return True

    def is_handing_over(self):
        return False


class Outbox:
    """Hands messages to a thread of its own, as `Network` does, which encodes them."""

    def __init__(self, clock):
        self._clock, loop, self.num_said = clock, asyncio.new_event_loop(), 0
        self._soon = Calls(loop).call_soon
        threading.Thread(target=loop.run_forever, name="played gateway", daemon=True).start()

    def say(self, message):
        assert not isinstance(message, Failed), message.reason
        self.num_said += 1
        self._soon(encode_frame, message)

    def say_load(self, load):
        self._soon(encode_frame, load)

    def open_transfer(self, host, port, offer, link, chain):
        return HostCopies(link, self._clock)


@dataclass
class HostCopies:
    """A transfer that ends in the host's memory."""

    link: object
    clock: object

    def __post_init__(self):
        self._held: list[torch.Tensor] = []

    def put(self, layer, start, latent_TC):
        """Copy as `RankTransfer` does: on the stream that computes."""
        with self.clock.span("KV out"):
            host_TC, _ = self.link.begin_to_host(latent_TC)
        self._held.append(host_TC)

    def finish(self, handover):
        self._held.clear()

    def cancel(self):
        self._held.clear()
