"""A decode rank counts the tokens that prefill has drawn."""

from pathlib import Path
from types import SimpleNamespace

import torch

from runtime.protocol.messages import Handover, Sampling
from runtime.serving.decode import ArrivedRequest, DecodePhase
from tests.runtime.on_cpu import new_cache

LOGITS = [3.0, 2.0, 1.0, -9.0]


class SameLogits:
    """An engine with the same logits in every step."""

    def __init__(self, config):
        self.config, self.checkpoint = config, Path("/nowhere")

    def new_cache(self, num_tokens, *_):
        return new_cache(self.config, num_tokens, torch.float32)

    def step(self, prefilling, decoding, cache):
        return torch.tensor([LOGITS] * len(decoding))


def answers(config, *arrivals, steps=3):
    """Return each request's tokens that decode sent."""
    said = []
    limits = SimpleNamespace(max_requests=4, max_batch_tokens=16, kv_tokens=256, host_bytes=0)
    launch = SimpleNamespace(limits=limits, deterministic=True)
    metrics = SimpleNamespace(watch_requests=lambda _: None, count_prompts=lambda *_: None)
    phase = DecodePhase(SameLogits(config), launch, SimpleNamespace(say=said.append, say_load=said.append), metrics)
    for message in arrivals:
        phase.receive(message)
    for _ in range(steps):
        phase.step()
    return {
        arrival.handover.request_id: [
            token.token_id for token in said if token.request_id == arrival.handover.request_id
        ]
        for arrival in arrivals
    }


def arrival(config, request_id, **sampling):
    latents = torch.zeros(config.num_hidden_layers, 2, config.latent_dim)
    wishes = {"max_tokens": 9, "temperature": 0.0, "top_p": 1.0, "seed": 0, "stop_ids": []} | sampling
    handover = Handover(request_id, [5, 6], [0], Sampling(**wishes))
    return ArrivedRequest(handover, latents)


def test_penalties_count_the_token_that_prefill_drew(small_config):
    """Penalties count the first token, which prefill drew, and each request has its own counts."""
    requests = [arrival(small_config, "plain"), arrival(small_config, "penalised", presence_penalty=1.5)]

    assert answers(small_config, *requests) == {"plain": [0, 0, 0], "penalised": [1, 0, 0]}


def test_max_tokens_counts_the_token_that_prefill_drew(small_config):
    """A request of three tokens draws two at decode."""
    assert answers(small_config, arrival(small_config, "short", max_tokens=3)) == {"short": [0, 0]}
