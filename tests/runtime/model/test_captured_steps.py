"""Recorded steps equal computed ones, with a recorder that computes again at each replay.

So what is ours is tested on a CPU: what a replay reads and writes, which size is taken, and what it counts. CUDA graphs
are tried in `tests/gpu`.
"""

from itertools import pairwise

import pytest
import torch

from runtime.checkpoint import resolve
from runtime.expert_parallel.group import SoloGroup
from runtime.expert_parallel.masked import MaskedDispatcher
from runtime.model import deepseek
from runtime.model.captured_steps import CapturedSteps, captured_sizes
from runtime.model.config import read_model_config
from runtime.model.engine import Engine, EngineConfig
from runtime.model.forward_batch import Chunk
from tests.runtime.recorders import Counted, Recorder

MAX_REQUESTS, MAX_TOKENS, STEPS = 5, 200, 4


def loaded(overlap):
    folder = resolve("bundled:demo")
    config = read_model_config(folder)
    maps = [list(range(config.n_routed_experts))] * config.num_moe_layers
    options = {"deterministic": True, "overlap": overlap, "max_step_tokens": MAX_REQUESTS}
    return Engine(EngineConfig(folder, maps, torch.float32, **options), SoloGroup())


@pytest.fixture(scope="module", params=["none", "five_stage"])
def engine(request):
    return loaded(request.param)


@torch.inference_mode()
def continue_greedily(engine, num_requests, recorder=None):
    """Return greedy tokens and logits of requests that end one by one, by recorded steps if there is a `recorder`."""
    cache = engine.new_cache(MAX_REQUESTS * 256)
    captured = recorder and CapturedSteps(engine.model, cache, recorder, MAX_REQUESTS, MAX_TOKENS)
    prompts = [list(range(5, 5 + 60 + 3 * number)) for number in range(num_requests)]
    tables = [[] for _ in prompts]
    for prompt, table in zip(prompts, tables, strict=True):
        cache.allocate(table, len(prompt))
    chunks = [Chunk(prompt, 0, table) for prompt, table in zip(prompts, tables, strict=True)]
    tokens = engine.step(chunks, [], cache).argmax(-1).tolist()
    texts, found = [[token] for token in tokens], []
    for step in range(STEPS):
        running = range(min(step, num_requests - 1), num_requests)
        for number in running:
            cache.allocate(tables[number], len(prompts[number]) + len(texts[number]))
        decoding = [Chunk(texts[n][-1:], len(prompts[n]) + len(texts[n]) - 1, tables[n]) for n in running]
        logits = captured.next_logits(decoding) if captured else engine.step([], decoding, cache)
        for number, token in zip(running, logits.argmax(-1).tolist(), strict=True):
            texts[number].append(token)
        found.append(logits.clone())
    return texts, found


@pytest.mark.parametrize("num_requests", [1, 3, 5])
def test_recorded_steps_say_what_steps_say(engine, num_requests):
    """Recorded steps have the bits of computed ones, with and without copies, as requests grow, end and cross pages."""
    recorder = Recorder()
    texts, found = continue_greedily(engine, num_requests, recorder)
    expected_texts, expected = continue_greedily(engine, num_requests)

    assert texts == expected_texts
    assert all(one.equal(other) for one, other in zip(found, expected, strict=True))
    assert recorder.num_replays == STEPS


def test_numbers_on_their_way_to_the_device_are_not_overwritten(engine, monkeypatch):
    """A step waits until the inputs of the last one are copied."""
    cache, held = engine.new_cache(256), []
    with torch.inference_mode():
        captured = CapturedSteps(engine.model, cache, Recorder(), MAX_REQUESTS, MAX_TOKENS)
        numbers = captured._inputs._host[0]
        monkeypatch.setattr(cache.link, "make_wait", lambda device: lambda: held.append(numbers[:, 0].tolist()))
        for token in (7, 8, 9):
            captured.next_logits([Chunk([token], token, [0])])

    assert held == [[7, 7, 7, 8], [8, 8, 8, 9]]


def test_a_rank_without_requests_replays_a_step(engine):
    """A rank without requests replays a step, because its unit steps."""
    cache = engine.new_cache(64)
    with torch.inference_mode():
        captured = CapturedSteps(engine.model, cache, Recorder(), MAX_REQUESTS, MAX_TOKENS)

        assert captured.next_logits([]).shape == (0, engine.config.vocab_size)


def test_exchanges_of_a_replay_are_counted(monkeypatch):
    """A replay counts as many exchanges as a computed step."""

    def form(group, slots, _top_k, rows, _x, backend, room):
        return MaskedDispatcher(group, slots, room, rows, backend.ops)

    monkeypatch.setattr(deepseek, "new_dispatcher", form)
    engine, table = loaded("none"), []
    cache, traffic = engine.new_cache(256), engine.model.dispatcher.traffic
    cache.allocate(table, 64)
    decoding = [Chunk([7], 3, table)]
    with torch.inference_mode():
        captured = CapturedSteps(engine.model, cache, Counted(traffic), 1, 64)
        before = traffic.totals()
        expected = engine.step([], decoding, cache)
        of_a_step = traffic.totals() - before
        found = captured.next_logits(decoding)

        assert found.equal(expected)
    assert of_a_step.dispatches == of_a_step.combines == engine.config.num_moe_layers
    assert traffic.totals() - before - of_a_step == of_a_step


@pytest.mark.parametrize("max_requests", [1, 2, 3, 8, 9, 16, 64, 65, 100, 128, 1000])
def test_a_size_for_any_number_of_requests(max_requests):
    """There is a size for any number of requests, with few copies in large steps."""
    sizes = captured_sizes(max_requests)

    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (0, max_requests)
    assert all(size - before <= max(8, before, 1) and size - before <= 16 for before, size in pairwise(sizes))
