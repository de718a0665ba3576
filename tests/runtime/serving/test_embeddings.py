"""A prompt that embeds gets its embedding, whole or in chunks, beside other requests."""

import numpy as np
import pytest
import torch

from runtime.expert_parallel.group import SoloGroup
from runtime.model.engine import Engine, EngineConfig
from runtime.protocol.messages import Embed, Embedding, Sampling
from tests.runtime.one_rank import Limits, Rank, Wish, answer_alone

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [12], [5, 6, 7]]
OTHER = Wish("other", [20, 21, 22, 23, 24], Sampling(6, 0.0, 1.0, 0, []))


@pytest.fixture(scope="module")
def engine(demo, demo_config):
    """Return the demo's engine, with one rank."""
    contiguous = [list(range(demo_config.n_routed_experts))] * demo_config.num_moe_layers
    return Engine(EngineConfig(demo, contiguous, torch.float32), SoloGroup())


class EmbeddingRank(Rank):
    """A rank that keeps embeddings apart from tokens."""

    def __init__(self, engine, kind, chunk):
        super().__init__(engine, kind, Limits(4, 256, chunk, 512))
        self.embeddings = {}

    def say(self, message):
        if isinstance(message, Embedding):
            self.embeddings[message.request_id] = np.frombuffer(message.values, "<f4")
        else:
            super().say(message)


def expected(engine, prompt):
    """Return the last token's hidden state after the norm, scaled to length 1."""
    chunks, cache = engine._whole_prompts([prompt])
    with torch.inference_mode():
        state_D = engine.model.model.norm(engine.model(chunks, [], cache)[-1:]).float()[0]
    return (state_D / state_D.norm()).numpy()


@pytest.mark.parametrize("kind", ["mixed", "pair"])
@pytest.mark.parametrize("chunk", [2, 64])
def test_an_embedding_is_the_last_token_s_state(engine, kind, chunk):
    """An embedding is the last token's state, whole or in chunks; a request beside it is not disturbed."""
    rank = EmbeddingRank(engine, kind, chunk)
    rank.phases[0].receive(Embed("0", PROMPTS[0]))
    rank.ask(OTHER)
    for number, prompt in enumerate(PROMPTS[1:], 1):
        rank.phases[0].receive(Embed(str(number), prompt))
    while rank.has_work():
        rank.step()

    for number, prompt in enumerate(PROMPTS):
        np.testing.assert_allclose(rank.embeddings[str(number)], expected(engine, prompt), atol=1e-4)
    assert rank.answers() == {"other": answer_alone(engine, SoloGroup(), OTHER)}
