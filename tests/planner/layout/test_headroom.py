"""A plan for SGLang promises no KV that SGLang does not have once it computes."""

import pytest
from hypothesis import given

from planner.facts.catalog import GPUS
from planner.layout.memory import RESERVE_BYTES, kv_bytes, split_memory, static_fraction
from planner.layout.working_memory import sglang_working_bytes
from tests.planner.layout.test_memory import DEEPSEEK, PAIR, Checked, laid_out, layouts

MIB = 2**20


@given(case=layouts())
def test_sglang_has_room_for_all_planned_kv_and_working_memory(case):
    """SGLang's KV pool is a share of the memory that is free before weights are loaded, less weights.

    The rest has room for activations, graphs and DeepEP's buffers.
    """
    model, gpu, phase, section = case
    layout, spec = laid_out(phase, section, model)
    plan = split_memory(Checked(model, gpu, spec, "sglang"), layout)
    if plan.missing_bytes <= 0:
        free = plan.gpu_bytes - RESERVE_BYTES
        planned = kv_bytes(plan.kv_tokens, plan.kv_bytes_per_token, plan.fixed_kv)
        fraction = static_fraction("sglang", plan.weight_bytes, planned, plan.gpu_bytes)
        working = max(sglang_working_bytes(phase, spec, plan.gpu_bytes), plan.activations + plan.cuda_graphs)

        assert fraction * free - plan.weight_bytes >= planned
        assert (1 - fraction + 0.0001) * free >= working + plan.buffers


@pytest.mark.parametrize(
    ("phase", "tokens", "gib", "expected"),
    [
        ("decode", 128, 80, 10_240),  # 512 + 2,048 x 1.5 + 128 x 2 + 128 are fewer
        ("decode", 128, 40, 512 + 3072 + 256 + 128),
        ("prefill", 16_384, 80, 512 + 24_576 + 1536 + 128),
    ],
)
def test_sglang_keeps_free_what_its_developers_found(phase, tokens, gib, expected):
    """A slow reference: its own default in MiB, as if one attention group were a server."""
    _, spec = laid_out(phase, {"ep_size": 32, "max_batch_tokens": tokens, "max_requests": 128})

    assert sglang_working_bytes(phase, spec, gib * 2**30) == expected * MIB


@pytest.mark.parametrize(("phase", "least", "most"), [("decode", 0.8, 0.85), ("prefill", 0.6, 0.7)])
def test_fractions_are_near_those_that_were_published(phase, least, most):
    """DeepSeek's decode on 80 GB ran with 0.835; prefill with steps of 16,384 tokens keeps far more free."""
    layout, spec = laid_out(phase, PAIR[phase])
    plan = split_memory(Checked(DEEPSEEK, GPUS["h800"], spec, "sglang"), layout)
    own = split_memory(Checked(DEEPSEEK, GPUS["h800"], spec), layout)
    planned = kv_bytes(plan.kv_tokens, plan.kv_bytes_per_token, plan.fixed_kv)

    assert least < static_fraction("sglang", plan.weight_bytes, planned, plan.gpu_bytes) < most
    assert (own.headroom, own.kv_tokens > plan.kv_tokens) == (0, True)
