"""In deterministic mode a request's bits depend on nothing but the request.

Not its neighbours in the batch, not its place among them, not how many ranks there are, which experts they hold, or
which run it is. Without the mode the same comparisons hold to rounding only (`test_attention.py`, `test_parity.py`).
"""

import os
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import RuntimeFailure
from runtime.expert_parallel.group import SoloGroup
from runtime.kernels.batch_invariant import TILE_POSITIONS, TILE_ROWS, Batched, BatchInvariant, check_machine
from runtime.model.engine import Engine, EngineConfig
from runtime.model.forward_batch import Chunk
from runtime.model.fp8 import Fp8Experts, Fp8Linear
from runtime.model.layers import GatedMlp, Linear, RmsNorm
from runtime.model.mla import LatentAttention
from runtime.model.moe import Gate, LocalExperts
from runtime.offline import greedy
from tests.runtime.closeness import median_row_error
from tests.runtime.random_checkpoints import V2_LITE, V3, write_checkpoint

DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn]
CLOSE = {torch.float32: (1e-6, 1e-6), torch.bfloat16: (0.008, 0.02), torch.float8_e4m3fn: (0.008, 0.1)}
EXAMPLES = 25 if os.environ.get("CI") else 8  # of each type and checkpoint
MAX_TOKENS = 24
MAX_REQUEST_TOKENS = 64
MAX_POSITIONS = 3 * TILE_POSITIONS

prompt = st.lists(st.integers(0, V3["vocab_size"] - 1), min_size=1, max_size=40)


@pytest.fixture(scope="module", params=[V3, V2_LITE], ids=["V3", "V2-Lite"])
def folder(request, tmp_path_factory):
    """Return a small random checkpoint."""
    return write_checkpoint(
        tmp_path_factory.mktemp("deterministic") / "checkpoint",
        request.param | {"max_position_embeddings": MAX_POSITIONS},
    )


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def engine(request, folder):
    return deterministic(folder, list(range(V3["n_routed_experts"])), request.param)


def deterministic(folder, layer_map, dtype):
    return Engine(EngineConfig(folder, [layer_map] * 2, dtype, deterministic=True), SoloGroup())


def decode(engine, requests):
    """Take one decode step for each (prompt, latents), after an arbitrary token."""
    cache = engine.new_cache(len(requests) * MAX_REQUEST_TOKENS)
    chunks = [Chunk([7], len(tokens), []) for tokens, _ in requests]
    for chunk, (_, latents) in zip(chunks, requests, strict=True):
        cache.allocate(chunk.table, chunk.end)
        cache.swap_in(chunk.table, latents)
    return engine.step([], chunks, cache)


@settings(max_examples=EXAMPLES)
@given(prompts=st.lists(prompt, min_size=1, max_size=6), order=st.randoms(use_true_random=False))
def test_neighbours_leave_a_requests_bits_alone(engine, prompts, order):
    """The logits and latents of prefill, and the logits of decode, are those of each request alone."""
    shuffled = order.sample(prompts, len(prompts))
    alone = [engine.prefill([tokens]) for tokens in shuffled]
    logits, latents = engine.prefill(shuffled)
    requests = list(zip(shuffled, latents, strict=True))
    decoded = decode(engine, requests)

    for number, (own_logits, own_latents) in enumerate(alone):
        assert torch.equal(logits[number], own_logits[0])
        assert torch.equal(latents[number], own_latents[0])
        assert torch.equal(decoded[number], decode(engine, requests[number : number + 1])[0])


@settings(max_examples=EXAMPLES)
@given(
    length=st.integers(1, MAX_POSITIONS),
    cuts=st.sets(st.integers(1, MAX_POSITIONS), max_size=5),
    neighbour=prompt,
)
def test_chunks_leave_a_requests_bits_alone(engine, length, cuts, neighbour):
    """A prompt in chunks beside other requests has the bits of the whole prompt."""
    tokens = [(7 * place) % V3["vocab_size"] for place in range(length)]
    (whole,), (latents,) = engine.prefill([tokens])
    cache = engine.new_cache(5 * TILE_POSITIONS)
    own, other, decoding = table(cache, len(tokens)), table(cache, len(neighbour)), table(cache, 1)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]
    for start, end in pairwise(bounds):
        chunks = [Chunk(neighbour, 0, other), Chunk(tokens[start:end], start, own)]
        logits = engine.step(chunks, [Chunk([3], 0, decoding)], cache)

    assert torch.equal(logits[1], whole)
    assert torch.equal(cache.copy_to_host(own, len(tokens)), latents)


def test_the_last_layer_computes_what_is_asked_for(engine):
    """The last layer's experts see only the prompts' last tokens, which get the same bits."""
    prompts = [list(range(length)) for length in (3, 30, 70)]
    everywhere, before = engine.prompt_logits(prompts), engine.model.load.rows.sum(1)
    logits, _ = engine.prefill(prompts)
    tokens = (engine.model.load.rows.sum(1) - before) / engine.config.num_experts_per_tok

    assert torch.equal(logits, torch.stack([logits_of_prompt[-1] for logits_of_prompt in everywhere]))
    assert tokens.tolist() == [3 + 30 + 70, 3]


def table(cache, num_tokens):
    """Return a table with pages for `num_tokens` tokens."""
    pages = []
    cache.allocate(pages, num_tokens)
    return pages


def test_any_map_gives_the_same_bits(folder, engine):
    """Any order of experts and any redundant ones give the same bits, whichever replicas a run uses."""
    prompts = [list(range(length)) for length in (3, 30)]
    expected = engine.prompt_logits(prompts)
    generator = torch.Generator().manual_seed(3)
    for redundant in (0, 4, 16):
        slots = torch.cat((torch.arange(16), torch.randperm(16, generator=generator)[:redundant]))
        shuffled = slots[torch.randperm(len(slots), generator=generator)].tolist()
        other = deterministic(folder, shuffled, engine.backend.dtype)
        for _ in range(2):
            assert all(map(torch.equal, other.prompt_logits(prompts), expected))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_is_the_same_model(folder, dtype):
    """Both ways to compute a step agree up to rounding, and are as near to FP32 as their type allows."""
    prompts = [list(range(length)) for length in (1, 20, 40)]
    experts = [list(range(V3["n_routed_experts"]))] * 2
    in_fp32, fast, exact = (
        torch.cat(Engine(EngineConfig(folder, experts, kind, deterministic), SoloGroup()).prompt_logits(prompts))
        for kind, deterministic in ((torch.float32, False), (dtype, False), (dtype, True))
    )
    between, from_fp32 = CLOSE[dtype]

    assert median_row_error(fast, exact) < between
    assert median_row_error(fast, in_fp32) < from_fp32
    assert median_row_error(exact, in_fp32) < from_fp32


@pytest.mark.whole
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "fp8"])
def test_text_and_logits_do_not_depend_on_ranks_map_or_run(prompts, generate, redundant_map, tmp_path, dtype):
    """The command at EP 1, 2 and 4, each with another map and other neighbours, gives equal tokens and bits."""
    prompts = prompts[:9]
    flags = ("--dtype", dtype, "--deterministic", "--max-tokens", MAX_TOKENS)
    backwards = [layer[::-1] for layer in redundant_map]
    expected = generate(prompts, *flags, "--logits", tmp_path / "1.npz")
    at_ep2 = generate(prompts, *flags, "--ep", 2, "--logits", tmp_path / "2.npz", expert_map=redundant_map)
    at_ep4 = generate(prompts[::-1], *flags, "--ep", 4, "--logits", tmp_path / "4.npz", expert_map=backwards)
    one, two, four = (np.load(tmp_path / f"{ep}.npz", allow_pickle=False) for ep in (1, 2, 4))

    assert at_ep2 == expected
    assert at_ep4[::-1] == expected
    for number in range(len(prompts)):
        assert np.array_equal(one[str(number)], two[str(number)])
        assert np.array_equal(one[str(number)], four[str(len(prompts) - 1 - number)])


@pytest.fixture(scope="module")
def without_replicas(prompts, generate):
    """Return the text of one rank that holds each expert once."""
    return generate(prompts[:6], "--deterministic", "--max-tokens", MAX_TOKENS)


@pytest.mark.whole
@pytest.mark.parametrize("split", ["equal", "local_first"])
def test_text_does_not_depend_on_the_split(prompts, generate, redundant_map, without_replicas, split):
    """On two nodes of two ranks, the split `local_first` gives the text of one rank without replicas."""
    flags = ("--deterministic", "--max-tokens", MAX_TOKENS, "--ep", 4, "--split", split, "--nodes", 2)

    assert generate(prompts[:6], *flags, expert_map=redundant_map) == without_replicas


def test_a_request_ends_alike_whoever_leaves_before_it(engine):
    """A request's greedy text is the one that it has alone, while neighbours finish."""
    prompts = [[5] * length for length in (1, 17, 30)]
    said_soon = greedy(engine, SoloGroup(), prompts[:1], 3, set())[0][-1]
    together = greedy(engine, SoloGroup(), prompts, MAX_TOKENS, {said_soon})
    alone = [greedy(engine, SoloGroup(), [tokens], MAX_TOKENS, {said_soon})[0] for tokens in prompts]

    assert len(together[0]) <= 3
    assert together == alone


@pytest.mark.parametrize("num_rows", [0, 1, TILE_ROWS - 1, TILE_ROWS, TILE_ROWS + 1, 5 * TILE_ROWS])
def test_tiles_cover_every_row_once(num_rows):
    """Functions with several tensors or results see every row once, in order, in full tiles."""
    seen = []

    def function(x, y):
        seen.append(len(x))
        return x + y, x * 2

    x, y = torch.randn(num_rows, 3, 2), torch.randn(num_rows, 3, 2)
    results = BatchInvariant().rows(function, x, y)

    assert all(map(torch.equal, results, Batched().rows(lambda x, y: (x + y, x * 2), x, y)))
    assert set(seen[: -(-num_rows // TILE_ROWS) or 1]) == {TILE_ROWS}


def test_a_machine_that_cannot_is_refused():
    """If a row's place in its tile matters, the rank refuses to serve."""
    with pytest.raises(
        RuntimeFailure, match="not possible on this machine: its kernels treat the rows of a tile of 16"
    ):
        check_machine([(lambda x: x + torch.arange(len(x))[:, None] * 1e-6, 8, torch.float32)])


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (Linear, "forward"),
        (Fp8Linear, "forward"),
        (RmsNorm, "forward"),
        (GatedMlp, "forward"),
        (Gate, "forward"),
        (LocalExperts, "expert"),
        (Fp8Experts, "first_expert"),
        (LatentAttention, "decode_without_cache"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_every_kind_of_row_function_is_asked_about(engine, monkeypatch, kind, method):
    """A machine is refused whichever row function depends on a row's place."""
    check_machine(engine.model.row_functions())
    if not any(isinstance(module, kind) for module in engine.model.modules()):
        assert kind in (LocalExperts if engine.backend.dtype == torch.float8_e4m3fn else Fp8Experts, Fp8Linear)
        return

    original = getattr(kind, method)

    def with_its_place(*arguments):
        results = original(*arguments)
        first, *others = results if isinstance(results, tuple) else (results,)
        return first + torch.arange(len(first))[:, None].to(first.dtype), *others

    monkeypatch.setattr(kind, method, lambda *arguments: unpack(with_its_place(*arguments)))
    with pytest.raises(RuntimeFailure, match="not possible on this machine"):
        check_machine(engine.model.row_functions())


def unpack(results):
    """Return a single result without its tuple."""
    return results if len(results) > 1 else results[0]


def test_a_rank_computes_on_one_thread(folder):
    """A deterministic rank computes on one thread, because kernels divide sums among threads."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        deterministic(folder, list(range(16)), torch.float32)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
