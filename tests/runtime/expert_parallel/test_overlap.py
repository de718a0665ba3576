"""Two micro-batches take turns, without any effect on what they compute."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.expert_parallel.group import SoloGroup
from runtime.expert_parallel.overlap import OVERLAPS, Pause
from runtime.model.engine import Engine, EngineConfig
from runtime.model.forward_batch import Chunk, cut
from tests.runtime.overlap_ranks import compute_all, contiguous_map
from tests.runtime.random_checkpoints import V3, write_checkpoint
from tests.runtime.rank_processes import run_ranks

BOTH = ["dual_batch", "five_stage"]
LONG = 151  # tokens: neither pages nor tiles end in its middle
PROMPT_LENGTHS = [3, 17, 1, 30, 8, 9, 16, 2, 5]


def layers(name, log, number=2):
    """A flow through `number` MoE layers that notes each stage."""
    for layer in range(number):
        log.append(f"{name}{layer} attention")
        yield Pause.HALF_ATTENDED
        log.append(f"{name}{layer} gate")
        yield Pause.GATED
        log.append(f"{name}{layer} dispatch")
        yield Pause.DISPATCHING
        log.append(f"{name}{layer} experts")
        yield Pause.COMBINING
        log.append(f"{name}{layer} combined")
        yield Pause.COMBINED
        log.append(f"{name}{layer} sum")
    return name.lower()


def test_none_is_one_flow_without_interruption():
    """Without overlap a flow's stages run in order, and its result comes back."""
    log, plain = [], []
    (result,) = OVERLAPS["none"].run([layers("A", log)])
    for _ in layers("A", plain):
        pass

    assert result == "a"
    assert log == plain


def test_dual_batch_puts_a_stage_of_the_other_between_issue_and_wait():
    """In dual_batch each dispatch and each combine has a stage of the other micro-batch behind it."""
    log = []
    results = OVERLAPS["dual_batch"].run([layers("A", log), layers("B", log)])

    assert results == ["a", "b"]
    assert log[:6] == ["A0 attention", "A0 gate", "A0 dispatch", "B0 attention", "B0 gate", "B0 dispatch"]
    assert log[6:8] == ["A0 experts", "B0 experts"]
    assert log[8:13] == ["A0 combined", "A0 sum", "A1 attention", "A1 gate", "A1 dispatch"]
    assert log[13] == "B0 combined"


def test_five_stage_puts_a_half_of_the_others_attention_behind_each_exchange():
    """In five_stage each exchange has half of the other's attention behind it, ten stages a layer."""
    log = []
    results = OVERLAPS["five_stage"].run([layers("A", log), layers("B", log)])
    start = log.index("A0 dispatch")

    assert results == ["a", "b"]
    assert log[start : start + 12] == [
        *("A0 dispatch", "B0 attention", "A0 experts", "B0 gate", "A0 combined", "B0 dispatch"),
        *("A0 sum", "A1 attention", "B0 experts", "A1 gate", "B0 combined", "A1 dispatch"),
    ]


@given(num_tokens=st.integers(0, 100), name=st.sampled_from(BOTH))
def test_halves_are_equal(num_tokens, name):
    """The halves of a step differ by one token at most, which the second has."""
    first, second = OVERLAPS[name].shares(num_tokens)

    assert first + second == num_tokens
    assert second - first in (0, 1)


@given(sizes=st.lists(st.integers(1, 30), max_size=6), start=st.integers(0, 9), where=st.integers(0, 180))
def test_a_cut_leaves_every_token_its_place(sizes, start, where):
    """A cut keeps all tokens in order, and splits one chunk at most, whose first part goes on."""
    chunks = [Chunk(list(range(size)), start, [number]) for number, size in enumerate(sizes)]
    before, after = cut(chunks, where)

    assert list_tokens(before + after) == list_tokens(chunks)
    assert len(list_tokens(before)) == min(where, sum(sizes))
    assert [chunk.goes_on for chunk in before + after].count(True) == len(before) + len(after) - len(chunks) <= 1
    assert not any(chunk.goes_on for chunk in [*before[:-1], *after])


def list_tokens(chunks):
    """Return (request, position, token) of each token."""
    return [
        (chunk.table[0], chunk.start + number, token)
        for chunk in chunks
        for number, token in enumerate(chunk.token_ids)
    ]


def test_one_prompt_is_two_micro_batches(tmp_path):
    """A prompt in two micro-batches has the logits of the whole prompt, bit for bit."""
    checkpoint = write_checkpoint(tmp_path / "long", V3 | {"max_position_embeddings": LONG})
    engine = Engine(
        EngineConfig(checkpoint, contiguous_map(checkpoint), torch.float32, deterministic=True), SoloGroup()
    )
    prompt = [token % V3["vocab_size"] for token in range(LONG)]
    (expected,), (latents,) = engine.prefill([prompt])
    for overlap in BOTH:
        engine.model.overlap = OVERLAPS[overlap]
        sizes = [step.sizes for step in engine.model._micro_batches([Chunk(prompt, 0, [0, 1, 2])], [])]
        (found,), (found_latents,) = engine.prefill([prompt])

        assert sizes == [(LONG // 2, 0), (LONG - LONG // 2, 0)]
        assert torch.equal(found, expected)
        assert torch.equal(found_latents, latents)


def test_flows_of_different_lengths_all_end():
    """When one flow ends, the other takes all turns."""
    log = []

    assert OVERLAPS["five_stage"].run([layers("A", log, 1), layers("B", log, 3)]) == ["a", "b"]
    assert OVERLAPS["five_stage"].run([layers("A", log, 3), layers("B", log, 0)]) == ["a", "b"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("overlap") / "checkpoint", V3)


@pytest.fixture(scope="module")
def prompts():
    return [[(7 * place + 11 * length) % V3["vocab_size"] for place in range(length)] for length in PROMPT_LENGTHS]


@pytest.fixture(scope="module")
def expected(checkpoint, prompts):
    """Return the results of one rank without overlap."""
    engine = Engine(
        EngineConfig(checkpoint, contiguous_map(checkpoint), torch.float32, deterministic=True), SoloGroup()
    )
    return {what: value.numpy() for what, value in compute_all(engine, prompts).items()}


@pytest.mark.parametrize("size", [2, 4, pytest.param(8, marks=pytest.mark.whole)])
def test_results_do_not_depend_on_overlap_or_ranks(size, checkpoint, prompts, expected, free_port, tmp_path):
    """EP 1, 2, 4 and 8 under each overlap have the same bits, in prefill and in decode."""
    (tmp_path / "prompts.json").write_text(json.dumps(prompts))
    run_ranks("overlap_ranks.py", size, free_port(), checkpoint, tmp_path)
    results = [np.load(tmp_path / f"{rank}.npz", allow_pickle=False) for rank in range(size)]
    ends = [0, *np.cumsum(PROMPT_LENGTHS)]
    tokens = [np.arange(start, end) for start, end in pairwise(ends)]

    for overlap in OVERLAPS:
        for rank in range(size):
            own = np.arange(len(prompts))[rank::size]
            if len(own):
                own_tokens = np.concatenate([tokens[number] for number in own])
                assert np.array_equal(results[rank][f"{overlap}_prefill"], expected["prefill"][own])
                assert np.array_equal(results[rank][f"{overlap}_latents"], expected["latents"][:, own_tokens])
                assert np.array_equal(results[rank][f"{overlap}_decode"], expected["decode"][:, own])
