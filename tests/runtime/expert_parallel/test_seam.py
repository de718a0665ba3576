"""A model's results do not depend on its dispatcher's form of rows, nor on where weights are applied."""

import pytest
import torch

from runtime.errors import RuntimeFailure
from runtime.expert_parallel import factory
from runtime.expert_parallel.dispatcher import LocalDispatcher, WeightsApplied
from runtime.model.forward_batch import Chunk
from tests.runtime.closeness import error_in_norm
from tests.runtime.masked_dispatcher import use_masked_dispatch
from tests.runtime.on_cpu import backend, new_cache

TOKENS = 21
CLOSE = {torch.float32: 1e-6, torch.bfloat16: 0.012}  # a part of the hidden states' norm


@torch.inference_mode()
def hidden_states(model, config, dtype):
    """Return the hidden states of a prompt and of a token after it, and the rows that experts got."""
    cache, table = new_cache(config, TOKENS + 1, dtype), []
    cache.allocate(table, TOKENS + 1)
    prompt = model([Chunk(list(range(TOKENS)), 0, table)], [], cache)
    return torch.cat((prompt, model([], [Chunk([7], TOKENS, table)], cache))), model.load.rows.clone()


@pytest.mark.parametrize("weights_applied", WeightsApplied)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_masked_rows_give_what_contiguous_rows_give(small_config, random_model, dtype, weights_applied):
    """Masked rows give the hidden states and counts of contiguous ones, whether experts or combine weigh."""
    expected, counts = hidden_states(random_model(small_config, dtype=dtype), small_config, dtype)
    masked = use_masked_dispatch(random_model(small_config, dtype=dtype), TOKENS, weights_applied)
    found, masked_counts = hidden_states(masked, small_config, dtype)

    assert error_in_norm(found, expected) < CLOSE[dtype]
    assert masked_counts.equal(counts)


def test_deterministic_experts_do_not_notice_the_form_of_their_rows(small_config, random_model):
    """In deterministic mode masked rows give the same bits as contiguous ones."""
    expected, _ = hidden_states(random_model(small_config, deterministic=True), small_config, torch.float32)
    masked = use_masked_dispatch(random_model(small_config, deterministic=True), TOKENS)

    assert hidden_states(masked, small_config, torch.float32)[0].equal(expected)


def test_rows_beyond_a_slots_count_do_not_matter():
    """Rows beyond a slot's count, NaN included, do not affect the others, and their results are 0."""
    generator = torch.Generator().manual_seed(0)
    rows, gate_up, down = (torch.randn(shape, generator=generator) for shape in [(3, 4, 8), (3, 12, 8), (3, 8, 6)])
    counts, ops = torch.tensor([4, 0, 1]), backend().ops
    clean = ops.masked_experts(rows, counts, gate_up, down)
    for slot, count in enumerate(counts.tolist()):
        rows[slot, count:] = torch.nan
    found = ops.masked_experts(rows, counts, gate_up, down)

    assert found.equal(clean)
    for slot, count in enumerate(counts.tolist()):
        expected = ops.expert(rows[slot, :count], gate_up[slot], down[slot])
        torch.testing.assert_close(found[slot, :count], expected)
        assert not found[slot, count:].any()


class Unordered(LocalDispatcher):
    """A dispatcher that adds in any order."""

    sums_in_order = False


def test_deterministic_mode_refuses_a_dispatcher_that_adds_in_another_order(small_config, random_model, monkeypatch):
    """Deterministic mode refuses a dispatcher without an order of sums, and the fast mode takes it."""
    monkeypatch.setattr(factory, "LocalDispatcher", Unordered)
    model = random_model(small_config)

    assert type(model.dispatcher) is Unordered
    with pytest.raises(RuntimeFailure, match="deterministic mode is not possible with Unordered"):
        random_model(small_config, deterministic=True)
