"""A request that comes with the tokens of lost ranks goes on as it would have without the loss."""

from dataclasses import replace

import pytest
import torch

from runtime.expert_parallel.group import SoloGroup
from runtime.model.engine import Engine, EngineConfig
from runtime.protocol.messages import Failed, Sampling
from tests.runtime.one_rank import Limits, Rank, Wish
from tests.runtime.random_checkpoints import V3, write_checkpoint

LIMITS = Limits(max_requests=4, max_request_tokens=64, max_batch_tokens=16, kv_tokens=1024)
NUM_TOKENS = 12
WISHES = [
    Wish("greedy", [5, 6, 7], Sampling(NUM_TOKENS, 0.0, 1.0, 0, [], num_logprobs=2)),
    Wish("drawn", [8, 9], Sampling(NUM_TOKENS, 1.0, 0.9, 3, [], num_logprobs=2)),
    Wish("penalised", list(range(20)), Sampling(NUM_TOKENS, 1.0, 1.0, 4, [], presence_penalty=1.5, num_logprobs=2)),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("checkpoint"), V3)
    return Engine(EngineConfig(checkpoint, [list(range(16))] * 2, torch.float32, deterministic=True), SoloGroup())


def serve(engine, kind, wishes, *, deterministic=True):
    """Return the messages about each of these requests, which run together."""
    rank = Rank(engine, kind, LIMITS, deterministic=deterministic)
    for wish in wishes:
        rank.ask(wish)
    rank.serve(SoloGroup())
    return rank.said


@pytest.fixture(scope="module")
def whole_answers(engine):
    """Return each request's tokens at ranks that are not lost."""
    return serve(engine, "mixed", WISHES)


@pytest.mark.parametrize("kind", ["mixed", "pair"])
@pytest.mark.parametrize("num_generated", [1, 5, NUM_TOKENS - 1])
def test_what_follows_is_what_would_have_followed(engine, whole_answers, kind, num_generated):
    """A replayed request continues with the same tokens, indices and logprobs to the last bit."""
    lost = [
        replace(wish, generated=tuple(token.token_id for token in whole_answers[wish.id][:num_generated]))
        for wish in WISHES
    ]

    assert serve(engine, kind, lost) == {wish.id: whole_answers[wish.id][num_generated:] for wish in WISHES}


def test_replayed_tokens_are_rows_of_decode(engine, whole_answers):
    """In deterministic mode the tokens are replayed as rows of decode, in fast mode they are prefilled in one step."""
    lost = replace(WISHES[0], generated=tuple(token.token_id for token in whole_answers["greedy"][:8]))
    fast, exact = (Rank(engine, "mixed", LIMITS, deterministic=deterministic) for deterministic in (False, True))
    for rank in (fast, exact):
        rank.ask(lost)
        rank.step()

    assert [token.index for token in fast.said["greedy"]] == [8]
    assert exact.said == {}
    exact.serve(SoloGroup())
    assert exact.said["greedy"] == whole_answers["greedy"][8:]


def test_rows_that_nobody_needs_are_replayed_in_and_no_more(engine, whole_answers):
    """A replay takes the rows that decoding requests leave of `max_requests`."""
    rank = Rank(engine, "mixed", LIMITS)
    rank.ask(WISHES[1])
    rank.step()
    lost = replace(WISHES[0], generated=tuple(token.token_id for token in whole_answers["greedy"][:9]))
    rank.ask(lost)
    rank.step()
    rows = rank.schedulers[0].schedule().decoding

    assert len(rows) == LIMITS.max_requests
    assert [row.start for row in rows if row.table is not rows[0].table] == [3, 4, 5]


def test_a_request_that_has_all_its_tokens_is_refused(engine):
    """A request that already has max_tokens is refused."""
    done = replace(WISHES[0], generated=(5,) * NUM_TOKENS)
    rank = Rank(engine, "mixed", LIMITS)
    said = []
    rank.say = said.append
    rank.ask(done)

    reason = f"it has {NUM_TOKENS} tokens already of the {NUM_TOKENS} that it asks for"
    assert said == [Failed("greedy", reason)]
