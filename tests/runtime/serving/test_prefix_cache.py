"""Prompts that find their beginnings in the cache: to the last bit as if all of them were computed."""

import json
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from msgspec import structs

import runtime.demo
from runtime.expert_parallel.group import SoloGroup
from runtime.kv.index import NAME_BYTES
from runtime.kv.tiers import host
from runtime.model.engine import Engine, EngineConfig
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.messages import Sampling
from runtime.serving import request
from tests.runtime.one_rank import Limits, Rank, Wish

DEMO = Path(runtime.demo.__file__).parent
LIMITS = Limits(max_requests=8, max_request_tokens=320, max_batch_tokens=96, kv_tokens=640)
NUM_HOST_BLOCKS = 24
NUM_CONVERSATIONS, NUM_MIXED = (30, 10) if os.environ.get("CI") else (12, 6)
NUM_SYSTEM_PROMPTS, NUM_TURNS = 3, (1, 1, 2, 3)
ABORTED = 1 / 8


@pytest.fixture(scope="module")
def engine():
    config = json.loads((DEMO / "config.json").read_text())
    layers = config["num_hidden_layers"] - config["first_k_dense_replace"]
    expert_map = [list(range(config["n_routed_experts"]))] * layers
    return Engine(EngineConfig(DEMO, expert_map, torch.float32, deterministic=True), SoloGroup())


class Recorded(Rank):
    """A rank, or pair, that keeps the latents of each request that is handed over."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.latents = {}

    def cross(self, handover, latents):
        self.latents[handover.request_id] = latents.clone()
        super().cross(handover, latents)


@dataclass(frozen=True)
class Turn:
    """What a user says, `choices` times at once; it continues `turn`, one before the last where he edits."""

    id: str
    words: list[int]
    num_choices: int
    salt: str
    aborted_after: int | None
    parent: "Turn | None" = field(repr=False, default=None)

    def wishes(self, said):
        """The requests, when the parent's first answer is in `said`."""
        prompt = self.prompt(said)
        for choice in range(self.num_choices):
            sampling = Sampling(5, float(choice > 0), 1.0, choice, [7], num_logprobs=2)
            yield Wish(f"{self.id}.{choice}", prompt, sampling, cache_salt=self.salt)

    def prompt(self, said):
        if self.parent is None:
            return self.words
        answer = [token.token_id for token in said[f"{self.parent.id}.0"]]
        return self.parent.prompt(said) + answer + self.words


def conversations(number, vocab_size, seed=0):
    """Turns of conversations that have system prompts in common; some continue an earlier turn than the last."""
    draw = random.Random(seed)

    def words(least, most):
        return [draw.randrange(8, vocab_size) for _ in range(draw.randint(least, most))]

    systems = [words(60, 110) for _ in range(NUM_SYSTEM_PROMPTS)]
    for conversation in range(number):
        turns, salt = [], draw.choice(["", "", "other"])
        for turn in range(draw.choice(NUM_TURNS)):
            parent = draw.choice(turns[-2:]) if turns else None
            said = words(1, 40) if parent else draw.choice(systems) + words(1, 20)
            aborted_after = draw.randint(0, 6) if draw.random() < ABORTED else None
            turns.append(
                Turn(f"{conversation}-{turn}", said, draw.choice((1, 1, 1, 1, 1, 3)), salt, aborted_after, parent)
            )
        yield turns


def converse(rank, plans, seed=0):
    """Let the users of all conversations speak, each after the answer that it continues; until all are answered."""
    draw = random.Random(seed)
    due = [turn for turns in plans for turn in turns]
    asked, aborts = {}, {}
    while due or rank.has_work():
        for turn in [turn for turn in due[:12] if turn.parent is None or f"{turn.parent.id}.0" in rank.done]:
            if draw.random() < 0.5:
                due.remove(turn)
                for wish in turn.wishes(rank.said):
                    asked[wish.id] = wish
                    rank.ask(wish)
                    if turn.aborted_after is not None and not wish.id.endswith(".0"):
                        aborts[wish.id] = turn.aborted_after
        for request_id in [each for each, steps in aborts.items() if steps == 0]:
            rank.abort(request_id)
        aborts = {request_id: steps - 1 for request_id, steps in aborts.items() if steps}
        rank.step()
    return asked


def differences(rank, reference):
    """The requests whose tokens or logprobs, as far as both said them, or whose latents differ."""
    common = rank.said.keys() & reference.said.keys()
    length = {each: min(len(rank.said[each]), len(reference.said[each])) for each in common}
    said = {each for each in common if rank.said[each][: length[each]] != reference.said[each][: length[each]]}
    handed = rank.latents.keys() & reference.latents.keys()
    return said | {each for each in handed if not torch.equal(rank.latents[each], reference.latents[each])}


@pytest.fixture(scope="module")
def plans(engine):
    return list(conversations(NUM_CONVERSATIONS, engine.config.vocab_size))


@pytest.fixture(scope="module")
def computed(engine, plans):
    """All conversations at a pair of ranks that shares nothing."""
    rank = Recorded(engine, "pair", LIMITS, block_digest=None)
    converse(rank, plans)
    return rank


def through_host_memory(engine):
    """Limits whose cache has room for one longest request, so that most of what is found was in host memory."""
    num_layers, latent_dim = engine.token_shape
    block_bytes = num_layers * PAGE_TOKENS * latent_dim * 4
    return Limits(**{**structs.asdict(LIMITS), "kv_tokens": 320, "host_bytes": NUM_HOST_BLOCKS * block_bytes})


@pytest.mark.parametrize(("kind", "number"), [("pair", NUM_CONVERSATIONS), ("mixed", NUM_MIXED)])
def test_what_is_found_is_what_would_be_computed(engine, plans, computed, kind, number):
    """Tokens, logprobs and latents of every conversation are those of ranks that share nothing, bit for bit."""
    rank = Recorded(engine, kind, LIMITS)
    asked = converse(rank, plans[:number])

    assert differences(rank, computed) == set()
    assert rank.done >= {each for each in asked if each.endswith(".0")}
    assert computed.hits == {}
    assert len(rank.hits) > len(asked) / 3
    assert all(scheduler.cache.num_free_pages == scheduler.cache.num_pages for scheduler in rank.schedulers)


@pytest.mark.parametrize("kind", ["pair", "mixed"])
def test_what_went_through_host_memory_is_what_would_be_computed(engine, plans, computed, kind):
    """Also where the cache is so small that blocks leave it and come back all the time."""
    limits = through_host_memory(engine)
    rank = Recorded(engine, kind, limits)
    converse(rank, plans)
    held = [scheduler.cache.memory.held() for scheduler in rank.schedulers]

    assert differences(rank, computed) == set()
    assert rank.schedulers[0].hit_tokens["host"] > rank.schedulers[0].hit_tokens["device"] / 4
    assert all(each["swapped"] == 0 and each["blocks"] <= limits.host_bytes for each in held)
    assert all(scheduler.cache.num_free_pages == scheduler.cache.num_pages for scheduler in rank.schedulers)


def test_a_wrong_bit_in_host_memory_is_found(engine, plans, computed, monkeypatch):
    """The comparison sees one number of one block."""

    def copy(sources, targets):
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)
            target[0, -1, 0] += 2**-20

    monkeypatch.setattr(host, "_copy", copy)
    rank = Recorded(engine, "pair", through_host_memory(engine))
    converse(rank, plans[:NUM_MIXED])

    assert differences(rank, computed)


def test_a_wrong_block_is_found(engine, plans, computed, monkeypatch):
    """The comparison is no idle one: a name that stands for its own block alone is given to others' latents."""
    monkeypatch.setattr(request, "block_names", names_without_a_chain)
    rank = Recorded(engine, "pair", LIMITS)
    converse(rank, plans[:NUM_MIXED])

    assert differences(rank, computed)


def names_without_a_chain(root, token_ids):
    return [number.to_bytes(NAME_BYTES) for number in range(len(token_ids) // PAGE_TOKENS)]


@pytest.mark.parametrize("kind", ["pair", "mixed"])
def test_a_second_turn_computes_what_is_new(engine, kind):
    """And what follows the last whole block; the rank says how much it found. Another salt finds nothing."""
    rank = Recorded(engine, kind, LIMITS)
    prompt = list(range(8, 8 + 2 * PAGE_TOKENS))
    sampling = Sampling(2, 0.0, 1.0, 0, [])
    for turn, (words, salt) in enumerate([(prompt, ""), (prompt, ""), ([*prompt, 5], ""), ([*prompt, 5], "other")]):
        rank.ask(Wish(str(turn), words, sampling, cache_salt=salt))
        rank.serve(SoloGroup())
    scheduler = rank.schedulers[0]

    assert rank.hits == {"1": PAGE_TOKENS, "2": 2 * PAGE_TOKENS}
    assert (scheduler.queried_tokens["device"], scheduler.hit_tokens["device"]) == (
        8 * PAGE_TOKENS + 2,
        3 * PAGE_TOKENS,
    )


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("cache", ["device", "host"])
def test_the_next_turn_finds_the_answer_before_it(engine, deterministic, cache):
    """A rank that promises no bits computes what the user says, and a block's rest; another one the answer too."""
    limits = LIMITS if cache == "device" else through_host_memory(engine)
    rank = Rank(engine, "mixed", limits, deterministic=deterministic)
    first = list(range(8, 8 + PAGE_TOKENS + 9))
    sampling = Sampling(PAGE_TOKENS, 0.0, 1.0, 0, [])
    rank.ask(Wish("first", first, sampling))
    rank.serve(SoloGroup())
    (scheduler,) = rank.schedulers
    for _ in range(3):
        scheduler.rest()
    if cache == "host":
        table = []
        scheduler.cache.allocate(table, limits.kv_tokens)
        scheduler.cache.free(table)
    prompt = [*first, *rank.answers()["first"], 5, 6, 7]
    rank.ask(Wish("second", prompt, Sampling(1, 0.0, 1.0, 0, [])))
    rank.serve(SoloGroup())

    assert rank.hits["second"] == (PAGE_TOKENS if deterministic else 2 * PAGE_TOKENS)
    assert scheduler.hit_tokens[cache] == rank.hits["second"]
