"""A step whose logits count as a device's draws its tokens all at once, with the results of the host's draws.

The engine is deterministic, so that a request's logits do not depend on the requests beside it.
"""

from dataclasses import replace

import pytest
import torch

from runtime.expert_parallel.group import SoloGroup
from runtime.model.engine import Engine, EngineConfig
from runtime.protocol.messages import Embed, Embedding, Failed, Sampling
from runtime.serving import batched_sampling, step_loop
from tests.runtime.one_rank import Limits, Rank, Wish, tell_alone
from tests.runtime.random_checkpoints import V3, write_checkpoint

LIMITS = Limits(max_requests=16, max_request_tokens=64, max_batch_tokens=16, kv_tokens=2048)
NUM_TOKENS = 10
GREEDY = [
    Wish("greedy", [5, 6, 7], Sampling(NUM_TOKENS, 0.0, 1.0, 0, [], num_logprobs=2)),
    Wish("long", list(range(40)), Sampling(NUM_TOKENS, 0.0, 1.0, 0, [])),  # in chunks, which draw nothing
]
DRAWN = [
    Wish("all", [8, 9], Sampling(NUM_TOKENS, 1.0, 1.0, 3, [], num_logprobs=0)),
    Wish("nucleus", [10], Sampling(NUM_TOKENS, 0.3, 0.5, 3, [])),
    Wish("wide", [11], Sampling(NUM_TOKENS, 1.0, 0.99, 3, [], num_logprobs=20)),
    Wish("top_k", [12], Sampling(NUM_TOKENS, 1.0, 0.8, 3, [], top_k=4)),
]
REFERRED = [  # to the reference
    Wish("penalised", [13] * 4, Sampling(NUM_TOKENS, 1.0, 0.9, 4, [], presence_penalty=1.5, num_logprobs=2)),
    Wish("biased", [14], Sampling(NUM_TOKENS, 0.0, 1.0, 4, [], logit_bias={3: 5.0})),
]
LATE = Wish("late", [15], Sampling(NUM_TOKENS, 1.0, 0.9, 4, list(range(60)), min_tokens=5))  # needs the reference first


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("checkpoint"), V3)
    return Engine(EngineConfig(checkpoint, [list(range(16))] * 2, torch.float32, deterministic=True), SoloGroup())


@pytest.fixture
def on_a_device(monkeypatch):
    """Treat logits as a device's, with so few candidates that some nuclei are wider."""
    monkeypatch.setattr(step_loop, "_is_on_host", lambda logits: False)
    monkeypatch.setattr(batched_sampling, "NUM_BEST", 8)


class SpoilingRank(Rank):
    """A rank that keeps other messages than tokens apart, and spoils some requests' KV on its way."""

    def __init__(self, engine, kind):
        super().__init__(engine, kind, LIMITS)
        self.failed, self.embedded = {}, {}

    def say(self, message):
        if isinstance(message, Failed):
            self.failed[message.request_id] = message.reason
        elif isinstance(message, Embedding):
            self.embedded[message.request_id] = message.values
        else:
            super().say(message)

    def cross(self, handover, latents, prefix):
        if handover.request_id == "spoiled":
            latents = torch.full_like(latents, torch.nan)
        super().cross(handover, latents, prefix)


def serve(engine, kind, wishes):
    rank = SpoilingRank(engine, kind)
    for wish in wishes:
        rank.ask(wish)
    rank.serve(SoloGroup())
    assert rank.failed == {}
    return rank.said


@pytest.mark.parametrize("kind", ["mixed", "pair"])
def test_together_is_as_alone(engine, on_a_device, kind):
    """A request's tokens, logprobs and indices are the same to the last bit, alone or beside others."""
    wishes = [*GREEDY, *DRAWN, *REFERRED, LATE]

    assert serve(engine, kind, wishes) == {wish.id: tell_alone(engine, SoloGroup(), wish) for wish in wishes}


def test_greedy_and_referred_requests_answer_as_on_a_cpu(engine, monkeypatch):
    """Greedy requests, and those left to the reference, get the tokens of a CPU; logprobs differ by rounding only."""
    wishes = [*GREEDY, *REFERRED]
    expected = serve(engine, "mixed", wishes)
    monkeypatch.setattr(step_loop, "_is_on_host", lambda logits: False)
    found = serve(engine, "mixed", wishes)

    for name, tokens in expected.items():
        assert [drop_logprobs(token) for token in found[name]] == [drop_logprobs(token) for token in tokens]
        for here, there in zip(found[name], tokens, strict=True):
            if there.logprobs is not None:
                assert here.logprobs.chosen == pytest.approx(there.logprobs.chosen, abs=1e-5)


def drop_logprobs(token):
    """Return the token without its logprobs."""
    return token.index, token.token_id, token.finish_reason


@pytest.mark.parametrize("num_generated", [1, NUM_TOKENS - 1])
def test_a_lost_stream_goes_on_as_it_would_have(engine, on_a_device, num_generated):
    """A request that replays draws only from the last of its rows in a step."""
    whole = serve(engine, "mixed", DRAWN)
    lost = [
        replace(wish, generated=tuple(token.token_id for token in whole[wish.id][:num_generated])) for wish in DRAWN
    ]

    assert serve(engine, "mixed", lost) == {wish.id: whole[wish.id][num_generated:] for wish in DRAWN}


def test_a_prompt_that_embeds_draws_nothing(engine, on_a_device):
    """A prompt that embeds draws no token, and the request beside it gets its own tokens."""
    embeddings = []
    for wishes in ([], DRAWN):
        rank = SpoilingRank(engine, "mixed")
        rank.phases[0].receive(Embed("embeds", [5, 6, 7]))
        for wish in wishes:
            rank.ask(wish)
        rank.serve(SoloGroup())
        embeddings.append(rank.embedded)

    assert rank.said == serve(engine, "mixed", DRAWN)
    assert embeddings[0].keys() == embeddings[1].keys() == {"embeds"}
    assert embeddings[0] == embeddings[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_kv_that_is_no_number_costs_its_own_request(engine, on_a_device, temperature):
    """A request with NaN in its KV fails with the reference's sentence, and its neighbours go on."""
    rank = SpoilingRank(engine, "pair")
    for wish in (Wish("spoiled", [5, 6], Sampling(4, temperature, 1.0, 1, [])), *DRAWN):
        rank.ask(wish)
    rank.serve(SoloGroup())

    assert rank.failed == {"spoiled": "the model's logits are not finite numbers"}
    assert {name: tokens for name, tokens in rank.said.items() if name != "spoiled"} == serve(engine, "pair", DRAWN)
