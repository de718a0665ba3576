"""A unit with prompts computes steps of every size before it is ready, if kernels are compiled in steps."""

from itertools import pairwise

import pytest
import torch

from runtime.checkpoint import resolve
from runtime.expert_parallel.group import SoloGroup
from runtime.kernels.gpu.ops import GpuOps
from runtime.model.config import read_model_config
from runtime.model.engine import Engine, EngineConfig
from tests.runtime.one_rank import Limits, Rank


@pytest.fixture(scope="module")
def engine():
    folder = resolve("bundled:demo")
    config = read_model_config(folder)
    maps = [list(range(config.n_routed_experts))] * config.num_moe_layers
    return Engine(EngineConfig(folder, maps, torch.float32), SoloGroup())


@pytest.fixture
def steps(engine, monkeypatch):
    """Record the engine's steps: (start, end) of each chunk of a prompt, and of each decoding request."""
    taken, step = [], engine.step

    def watched(prefilling, decoding, cache):
        taken.append([[(chunk.start, chunk.end) for chunk in chunks] for chunks in (prefilling, decoding)])
        return step(prefilling, decoding, cache)

    monkeypatch.setattr(engine, "step", watched)
    return taken


@pytest.fixture
def compiling_engine(engine, monkeypatch):
    monkeypatch.setattr(engine.backend.ops, "compiles_in_steps", True)


@pytest.mark.parametrize("kind", ["mixed", "pair"])
@pytest.mark.parametrize(("request_tokens", "batch_tokens"), [(100, 40), (24, 70), (32, 32), (1, 1)])
def test_prompts_of_every_size_are_computed_before_requests_come(
    engine, steps, compiling_engine, kind, request_tokens, batch_tokens
):
    """The sizes go from the largest step down to one token by halves; no chunk is longer than a request."""
    rank = Rank(engine, kind, Limits(4, request_tokens, batch_tokens, request_tokens))
    rank.phases[0].prepare()
    sizes = [sum(end - start for start, end in prefilling) for prefilling, _ in steps[1:]]

    assert (sizes[0], sizes[-1]) == (batch_tokens, 1)
    assert all(size // 2 == smaller for size, smaller in pairwise(sizes))
    assert max(end for prefilling, _ in steps for _, end in prefilling) == request_tokens


def test_the_first_step_is_the_one_that_needs_most_memory(engine, steps, compiling_engine):
    """The first step is the end of the longest request, beside a decoding request."""
    rank = Rank(engine, "mixed", Limits(4, 100, 40, 128))
    rank.phases[0].prepare()

    assert steps[0] == [[(60, 100)], [(0, 1)]]


def test_each_rank_computes_tokens_of_its_own(engine, compiling_engine, monkeypatch):
    """Each rank computes other tokens, because equal ones would overload the experts that they choose."""
    ids = []
    monkeypatch.setattr(engine, "step", lambda prefilling, decoding, cache: ids.append(prefilling[0].token_ids))
    for rank in (0, 1, 0):
        monkeypatch.setattr(engine, "_rank", rank)
        engine.warm_up(engine.new_cache(100), 100, 100)
    first, other, again = ids[0], ids[len(ids) // 3], ids[2 * len(ids) // 3]

    assert first == again != other
    assert len(set(first)) > 50


def test_nothing_of_it_is_left(engine, compiling_engine):
    """Afterwards all pages are free, and no expert has a load."""
    rank = Rank(engine, "mixed", Limits(4, 100, 40, 128))
    rank.phases[0].prepare()
    cache = rank.schedulers[0].cache

    assert cache.num_free_pages == cache.num_pages
    assert engine.model.load.rows.sum() == engine.model.load.sent.sum() == 0


def test_a_cpu_computes_nothing_beforehand(engine, steps):
    """A CPU computes no steps beforehand."""
    Rank(engine, "pair", Limits(4, 100, 40, 128)).phases[0].prepare()

    assert steps == []
    assert not engine.backend.ops.compiles_in_steps
    assert GpuOps.compiles_in_steps
