"""Drafts: what verifying them costs and brings, and what the module that makes them takes."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stacks
from planner.compiler import run_passes
from planner.estimate.throughput.operations import attention_output_time
from planner.estimate.throughput.point import OperatingPoint
from planner.estimate.throughput.predict import saturated_rate
from planner.estimate.throughput.stages import Imbalance, decode_spans
from planner.estimate.throughput.step import decode_step
from planner.families import MODELS
from planner.rules.check import change_spec, check_spec
from tests.planner.accuracy.published import SERVICE_DECODE, case_of, row_named
from tests.planner.families.model_parts import parameters_of

SPEC = Path(stacks.__file__).parent / "specs" / "h800-one-pair.yaml"
DECODE = case_of(SERVICE_DECODE, Imbalance(1.5))
ALMOST = 1 - 1e-9


def rate_with(case, drafts, acceptance_rate, **changes):
    """Return the case's rate with so many drafts a request, and another point."""
    point = replace(case.point, draft_tokens=drafts, acceptance_rate=acceptance_rate, **changes)
    return saturated_rate(replace(case, point=point))


@pytest.mark.parametrize(("drafts", "rate", "accepted"), [(0, 0.85, 1), (1, 0.85, 1.85), (3, 1, 4), (2, 0.5, 1.75)])
def test_a_step_gives_a_token_and_the_drafts_before_the_first_wrong_one(drafts, rate, accepted):
    """1 + a + a^2 + ..., where a is the share of drafts that are right after right ones."""
    assert OperatingPoint(draft_tokens=drafts, acceptance_rate=rate).accepted_tokens == pytest.approx(accepted)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 256), st.integers(1, 30_000), st.integers(1, 6), st.floats(0, 1), st.floats(0, 1))
def test_drafts_cost_time_and_their_acceptance_pays_for_it(requests, kv_tokens, drafts, one, other):
    """Drafts that are all wrong only cost; more right ones are never slower; none bring more than all of them."""
    load = {"requests": requests, "kv_tokens": kv_tokens}
    without, low, high = rate_with(DECODE, 0, 0.0, **load), min(one, other), max(one, other)

    assert rate_with(DECODE, drafts, 0.0, **load) < without
    assert rate_with(DECODE, drafts, low, **load) <= rate_with(DECODE, drafts, high, **load) / ALMOST
    assert rate_with(DECODE, drafts, 1.0, **load) < (1 + drafts) * without


@pytest.mark.parametrize("drafts", [2, 3])
def test_drafts_of_few_requests_gain_as_much_as_in_sglang(drafts):
    """Two requests of 65,536 tokens a GPU on 16 H200, without overlapped scheduling on either side."""
    plain = "SGLang, decode EP16, 2 requests"
    names = (plain, f"{plain}, {drafts} drafts")
    with_drafts, without = (saturated_rate(case_of(name, Imbalance(1.05))) for name in reversed(names))
    published = [row_named(name).measured["tokens_per_s_per_gpu"] for name in names]

    assert with_drafts / without == pytest.approx(published[1] / published[0], rel=0.12)


def test_a_module_has_the_parameters_that_were_published():
    """11.5 B of DeepSeek-V3's, without the embedding and the head that it shares."""
    model = MODELS["deepseek-v3"]
    with_module, without = (sum(parameters_of(each).values()) for each in (model.with_drafts(), model))
    module = with_module - without

    assert module == pytest.approx(11.5e9, rel=0.011)


def test_a_plan_with_drafts_has_the_modules_memory_and_rates():
    """Both phases have one more layer of weights and KV; rates count accepted tokens, and the range is wide."""
    plan = run_passes(change_spec(check_spec(SPEC), {"decode.draft_tokens": 1}))
    document = plan.plan.as_json()
    decode, prefill = document["performance"]["decode"], document["performance"]["prefill"]

    assert {each["kv_bytes_per_token"] for each in document["memory"].values()} == {62 * 1152}
    assert decode["drafts"]["tokens_per_step_and_request"] == 1.85
    assert decode["tokens_per_s_per_gpu"]["mid"] == pytest.approx(88 * 1.85 / decode["step_ms"] * 1e3, rel=1e-3)
    assert decode["evidence"]["family"] == "none"
    assert prefill["drafts"]["ms"] > 0
    assert [problem.rule[:4] for problem in plan.refusals] == ["S734"]


def test_a_draft_is_a_row_of_its_own_and_reads_its_requests_kv_with_it():
    """64 requests with one draft each dispatch and compute as 128 requests do; their KV is read once for both rows."""
    case = DECODE
    layer = next(each for each in case.model.layers if each.expert)
    drafting, alone = decode_spans(case.setup, layer, 64, 4096, queries=2), decode_spans(case.setup, layer, 128, 4096)
    grouped = replace(layer.attention, core_flops=0.0)  # only reading its KV takes time

    assert {name for name in alone if drafting[name] != alone[name]} <= {"attention 2"}
    assert attention_output_time(case.machine, grouped, 64, 4096, 2) < attention_output_time(
        case.machine, grouped, 128, 4096
    )


def test_a_step_has_the_modules_passes():
    """The first over both rows of each request, and one more for a second draft: each is a layer and the head."""
    setup = DECODE.setup
    steps = [decode_step(setup, 88, 4989, drafts) for drafts in range(3)]

    assert steps[0].drafts == 0 < steps[1].drafts < steps[2].drafts
    for each in steps:
        assert each.seconds == each.moe_layers + each.dense_layers + each.head + each.drafts + each.host
    assert steps[1].drafts < steps[1].moe_layers / 20  # one of 59 layers, without overlap
