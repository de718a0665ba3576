"""A prefill rank begins a transfer for requests that go on at a decode rank, and cancels it for those that end."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from runtime.protocol.messages import Abort, Sampling
from tests.runtime.on_cpu import new_cache
from tests.runtime.one_rank import Limits, Rank, Wish

LIMITS = Limits(max_requests=4, max_request_tokens=64, max_batch_tokens=4, kv_tokens=256)


class WatchedRank(Rank):
    """A pair of ranks that keeps its transfers."""

    def __init__(self, config, **options):
        def step(prefilling, decoding, cache):
            for chunk in prefilling:
                for layer in range(config.num_hidden_layers if chunk.sink else 0):
                    chunk.sink(layer, chunk.start, torch.zeros(len(chunk.token_ids), config.latent_dim))
            return torch.zeros(len(prefilling) + len(decoding), 4)

        engine = SimpleNamespace(
            config=config,
            checkpoint=Path("/nowhere"),
            token_shape=(config.num_hidden_layers, config.latent_dim),
            new_cache=lambda num_tokens, *_: new_cache(config, num_tokens, torch.float32),
            step=step,
        )
        super().__init__(engine, "pair", LIMITS, **options)
        self.transfers = []

    def open_transfer(self, *arguments):
        self.transfers.append(super().open_transfer(*arguments))
        return self.transfers[-1]


def wish(max_tokens, *, stop_ids=(), generated=()):
    return Wish("a", [1] * 6, Sampling(max_tokens, 0.0, 1.0, 0, list(stop_ids)), generated)


def test_a_request_of_one_token_is_not_offered(small_config):
    """A request of one token ends at prefill, so no transfer is opened."""
    rank = WatchedRank(small_config)
    rank.ask(wish(1))
    for _ in range(2):
        rank.step()

    assert (rank.done, rank.transfers) == ({"a"}, [])


@pytest.mark.parametrize(("deterministic", "is_offered"), [(True, True), (False, False)])
def test_the_last_token_of_a_request_that_comes_again(small_config, deterministic, is_offered):
    """A resumed request's last token is drawn here if its tokens are prefilled, and at decode if they are replayed."""
    rank = WatchedRank(small_config, deterministic=deterministic)
    rank.ask(wish(3, generated=(0, 0)))
    for _ in range(6):
        rank.step()

    assert (rank.done, len(rank.transfers)) == ({"a"}, int(is_offered))


def test_a_text_that_ends_with_its_first_token_is_not_handed_over(small_config):
    """If the first token ends the text, the transfer is cancelled."""
    rank = WatchedRank(small_config)
    rank.ask(wish(9, stop_ids=[0]))
    for _ in range(2):
        rank.step()

    assert rank.done == {"a"}
    assert [transfer.is_cancelled for transfer in rank.transfers] == [True]
    assert not rank.phases[1].has_work()


def test_an_abort_in_the_middle_of_a_prompt_cancels_its_transfer(small_config):
    """An Abort between two chunks of a prompt cancels the transfer that has begun."""
    rank = WatchedRank(small_config)
    rank.ask(wish(9))
    rank.step()
    rank.phases[0].receive(Abort("a"))

    assert [transfer.is_cancelled for transfer in rank.transfers] == [True]
    assert not rank.has_work()
