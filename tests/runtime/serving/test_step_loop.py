"""All phases refuse a request beyond the unit's limits."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.messages import Failed, Sampling
from tests.runtime.on_cpu import new_cache
from tests.runtime.one_rank import Limits, Rank, Wish

MOST = 2 * PAGE_TOKENS
LIMITS = Limits(max_requests=4, max_request_tokens=MOST, max_batch_tokens=MOST, kv_tokens=MOST)


class FailureRank(Rank):
    """A rank that keeps failures apart from tokens."""

    def __init__(self, engine, kind):
        super().__init__(engine, kind, LIMITS)
        self.failed = {}

    def say(self, message):
        if isinstance(message, Failed):
            self.failed[message.request_id] = message.reason
        else:
            super().say(message)


def wish(name, prompt_tokens, max_tokens):
    return Wish(name, [1] * prompt_tokens, Sampling(max_tokens, 0.0, 1.0, 0, []))


def step_of_zeros(prefilling, decoding, cache):
    """Return equal logits for all tokens, and write latents of zeros."""
    for chunk in prefilling:
        for layer, pages in enumerate(cache.layers if chunk.sink else ()):
            chunk.sink(layer, chunk.start, torch.zeros(len(chunk.token_ids), pages.pages.shape[-1]))
    return torch.zeros(len(prefilling) + len(decoding), 4)


@pytest.mark.parametrize("kind", ["mixed", "pair"])
@pytest.mark.parametrize("too_long", [wish("too long", MOST, 1), wish("too long", MOST - 9, 10)])
def test_a_request_beyond_the_limits_fails_and_nobody_waits_behind_it(small_config, kind, too_long):
    """A request beyond the unit's limits fails at once, and one at the limit is served."""
    engine = SimpleNamespace(
        config=small_config,
        checkpoint=Path("/nowhere"),
        token_shape=(small_config.num_hidden_layers, small_config.latent_dim),
        new_cache=lambda num_tokens, *_: new_cache(small_config, num_tokens, torch.float32),
        step=step_of_zeros,
    )
    rank = FailureRank(engine, kind)
    for each in (too_long, wish("just", MOST - 10, 10)):
        rank.ask(each)
    for _ in range(12):
        rank.step()

    assert rank.failed == {"too long": f"it could grow to {MOST + 1} tokens, this unit takes {MOST}"}
    assert rank.done == {"just"}
    assert not rank.has_work()
