"""A body at the border of its limits is answered, or fails alone."""

import itertools
import json
import os
import random
from types import SimpleNamespace

import msgspec
import pytest
import torch

from runtime.expert_parallel.group import SoloGroup
from runtime.gateway.core.calls import ServedModel, read_completion
from runtime.gateway.core.generation import Choice
from runtime.gateway.core.tokenizer import Spelling
from runtime.gateway.edge.http_errors import ApiError
from runtime.model.engine import Engine, EngineConfig
from runtime.protocol.messages import Failed, FromGateway, FromRank, Prefill, Sampling
from runtime.serving import step_loop
from tests.runtime.one_rank import Limits, Rank, Wish, answer_alone
from tests.runtime.random_checkpoints import V3, write_checkpoint

NUM_COMBINATIONS, AT_A_TIME = 200 if os.environ.get("CI") else 50, 10
LIMITS = Limits(max_requests=32, max_request_tokens=32, max_batch_tokens=64, kv_tokens=2048)
BYSTANDERS = [
    Wish("greedy", [5, 6, 7], Sampling(12, 0.0, 1.0, 0, [])),
    Wish("drawn", [8, 9], Sampling(12, 1.0, 0.9, 3, [], num_logprobs=2)),
]
TINY = (5e-324, 1e-300, 1e-40, 1e-38, 1e-4)
BORDERS = {
    "temperature": (None, 0, 2, 1, *TINY, -1e-9, 2.0001),
    "top_p": (None, 1, 0.5, *TINY, 0, 1.0001),
    "top_k": (None, -1, 0, 1, 95, 96, 97, 2**31 - 1, -2, 2**31),
    "frequency_penalty": (None, -2, 0, 2, *TINY, -2.1),
    "presence_penalty": (None, -2, 0, 2, *TINY, 2.1),
    "repetition_penalty": (None, 1, 2, 0.01, 0.0099, *TINY, 0, -1, 2.1),
    "seed": (None, 0, -(2**63), 2**63 - 1, 2**63),
    "max_tokens": (None, 1, 9, 30, 31, 0),
    "min_tokens": (None, 0, 9, 30, -1),
    "logit_bias": (None, {}, {"0": 100, "95": -100, "7": 100}, {"96": 1}, {"5": 100.1}),
    "stop_token_ids": (None, [], [8, 8], list(range(95)), [96]),
    "ignore_eos": (None, True),
    "logprobs": (None, 0, 1, 20, 21, -1),
    "stop": (None, [], "\x00", "é", "a" * 256, ["a", "b", "c", "\U0010ffff"], "", "a" * 257, ["a"] * 17),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("checkpoint"), V3)
    config = EngineConfig(checkpoint, [list(range(16))] * 2, torch.float32, deterministic=True)
    return Engine(config, SoloGroup())


@pytest.fixture(scope="module")
def model():
    """Return the gateway's view of the engine's model, in which a token is the character of its id."""
    tokenizer = SimpleNamespace(
        num_token_ids=96,
        stop_ids=(7,),
        token_bytes=[bytes([number]) for number in range(96)],
        spell=lambda token_id: Spelling(chr(token_id), bytes([token_id])),
    )
    return ServedModel("tiny", LIMITS.max_request_tokens, tokenizer)


class WireRank(Rank):
    """A rank whose messages are encoded and decoded, as a socket would have them."""

    def __init__(self, engine, kind):
        super().__init__(engine, kind, LIMITS)
        self.failed = {}

    def ask(self, wish):
        self.phases[0].receive(msgspec.json.decode(msgspec.json.encode(wish.message()), type=FromGateway))

    def say(self, message):
        message = msgspec.json.decode(msgspec.json.encode(message), type=FromRank)
        if isinstance(message, Failed):
            self.failed[message.request_id] = message.reason
        else:
            super().say(message)


@pytest.fixture(scope="module")
def lone_answers(engine):
    """Return each bystander's answer when it is alone."""
    return {bystander.id: answer_alone(engine, SoloGroup(), bystander) for bystander in BYSTANDERS}


def serve_beside(rank, wishes, lone_answers):
    """Serve these wishes beside the bystanders to their ends. The bystanders' answers must not change."""
    for wish in (BYSTANDERS[0], *wishes, BYSTANDERS[1]):
        rank.ask(wish)
    rank.serve(SoloGroup())
    answers = rank.answers()
    assert {name: answers[name] for name in lone_answers} == lone_answers
    for name in lone_answers:
        del rank.said[name]


def random_bodies():
    """Yield (name, body) of random wishes, most of them in range."""
    rng = random.Random(16)
    for number in itertools.count():
        chosen = rng.sample(sorted(BORDERS), rng.randint(1, len(BORDERS)))
        yield f"wish {number}", {name: rng.choice(BORDERS[name]) for name in chosen}


def read(model, body):
    """Return the request, or None if the body is the caller's mistake."""
    raw = json.dumps({"model": "tiny", "prompt": [5, 6]} | body).encode()
    try:
        return read_completion(raw, model).prepare().requests[0]
    except ApiError as error:
        refused = error
    assert 400 <= refused.status < 500
    assert refused.param in BORDERS or refused.code == "context_length_exceeded"
    return None


@pytest.mark.parametrize("kind", ["mixed", "pair"])
def test_every_wish_at_the_borders_is_answered_or_refused_alone(engine, lone_answers, model, kind):
    """Any combination of values in range is answered, and the requests beside it get their usual text."""
    wishes = ((name, read(model, body)) for name, body in random_bodies())
    asked = dict(itertools.islice(((name, wish) for name, wish in wishes if wish), NUM_COMBINATIONS))
    for names in batches(list(asked)):
        rank = WireRank(engine, kind)
        serve_beside(rank, [Wish(name, asked[name].prompt_ids, asked[name].sampling) for name in names], lone_answers)
        assert rank.failed == {}
        assert set(rank.said) == set(names)
        assert all(finish_reason(asked[name], rank.said[name], model) for name in names)


def batches(names):
    return [names[start : start + AT_A_TIME] for start in range(0, len(names), AT_A_TIME)]


def finish_reason(wish, tokens, model):
    """Return why the gateway says that the answer ended; it reads no further."""
    choice = Choice(0, wish, model.tokenizer)
    for token in tokens:
        choice.push(token)
        if choice.finish_reason:
            return choice.finish_reason
    return None


@pytest.mark.parametrize("penalty", [1e-38, 1e-40, 1e-300])
def test_a_penalty_that_overflows_is_the_callers_mistake(model, penalty):
    """A penalty that would make a NaN of the logits is refused at the gateway."""
    assert read(model, {"repetition_penalty": penalty}) is None
    assert read(model, {"repetition_penalty": 0.01}) is not None


UNFIT = {
    "an id too large": ({"prompt_ids": [96]}, "it has a token id outside the vocabulary of 96"),
    "a negative id": ({"prompt_ids": [5, -1]}, "it has a token id outside the vocabulary of 96"),
    "no prompt": ({"prompt_ids": []}, "its prompt has 0 tokens"),
    "a tiny penalty": ({"repetition_penalty": 1e-40}, "`$.repetition_penalty`"),
    "negative logprobs": ({"num_logprobs": -1}, "`$.num_logprobs`"),
    "a huge penalty": ({"frequency_penalty": 1e308}, "`$.frequency_penalty`"),
    "a bias of nothing": ({"logit_bias": {96: 1.0}}, "its logit_bias has a token id outside the vocabulary of 96"),
    "a huge bias": ({"logit_bias": {5: 1e308}}, "`$.logit_bias"),
    "a negative temperature": ({"temperature": -1.0}, "`$.temperature`"),
    "no tokens to make": ({"max_tokens": -5}, "`$.max_tokens`"),
}


@pytest.mark.parametrize("kind", ["mixed", "pair"])
@pytest.mark.parametrize(("changes", "reason"), UNFIT.values(), ids=UNFIT)
def test_what_a_rank_cannot_compute_fails_at_its_border(engine, lone_answers, kind, changes, reason):
    """A rank fails a request that it cannot compute, with the reason, and the others go on."""
    wishes = {"max_tokens": 4, "temperature": 1.0, "top_p": 1.0, "seed": 1, "stop_ids": []} | changes
    prompt_ids = wishes.pop("prompt_ids", [5])
    rank = WireRank(engine, kind)
    serve_beside(rank, [Wish("unfit", prompt_ids, Sampling(**wishes))], lone_answers)

    assert reason in rank.failed["unfit"]
    assert rank.said == {}


@pytest.mark.parametrize(
    ("host", "port", "ticket"),
    [
        *((None, None, "a"), ("127.0.0.1", 70000, "a"), ("127.0.0.1", 0, "a"), ("a\x00", 1, "a"), ("decode", 1, "a")),
        ("127.0.0.1", 1, None),
    ],
)
def test_a_prefill_rank_hands_nothing_over_to_nowhere(engine, lone_answers, host, port, ticket):
    """Without a usable address or a ticket, a request fails before anything of it is computed."""

    class Lost(Wish):
        def message(self):
            return Prefill(self.id, self.prompt_ids, self.sampling, host, port, ticket)

    rank = WireRank(engine, "pair")
    serve_beside(rank, [Lost("lost", [5], BYSTANDERS[0].sampling)], lone_answers)

    assert rank.failed["lost"].startswith("its KV cannot be sent on: ")
    assert rank.said == {}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_kv_that_is_no_number_costs_its_own_request(engine, lone_answers, temperature):
    """A request whose latents are NaN fails, greedy or drawn, and its neighbours go on."""

    class Spoiled(WireRank):
        def cross(self, handover, latents, prefix):
            if handover.request_id == "spoiled":
                latents = torch.full_like(latents, torch.nan)
            super().cross(handover, latents, prefix)

    rank = Spoiled(engine, "pair")
    serve_beside(rank, [Wish("spoiled", [5, 6], Sampling(4, temperature, 1.0, 1, [], num_logprobs=3))], lone_answers)

    assert rank.failed == {"spoiled": "the model's logits are not finite numbers"}
    assert len(rank.said["spoiled"]) == 1
    assert not rank.has_work()


def test_what_torch_cannot_draw_costs_its_own_request(engine, lone_answers, monkeypatch):
    """An error in sampling fails the request that caused it, with the error's text."""
    honest = step_loop.sample

    def sample(logits_V, sampling, *rest):
        if sampling.seed == 99:
            torch.multinomial(torch.full((3,), torch.nan), 1)
        return honest(logits_V, sampling, *rest)

    monkeypatch.setattr(step_loop, "sample", sample)
    rank = WireRank(engine, "mixed")
    serve_beside(rank, [Wish("unlucky", [5], Sampling(4, 1.0, 1.0, 99, []))], lone_answers)

    assert rank.failed["unlucky"].startswith("its next token cannot be drawn: ")
