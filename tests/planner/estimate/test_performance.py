"""What plans predict: DeepSeek's published system, what is derived, and what is not predicted."""

import json
from pathlib import Path

import pytest

import stacks
from planner.cli import main
from planner.compiler import run_passes
from planner.report.text import plan_text
from planner.report.timeline import explain_layers
from planner.rules.check import change_spec, check_spec
from tests.planner.layout.test_memory import PAIR

SPEC = Path(stacks.__file__).parent / "specs" / "h800-one-pair.yaml"
NODE = 14_800  # published output of a decode node


@pytest.fixture(scope="module")
def pair():
    """The plan of one prefill unit and one decode unit of the published system."""
    return run_passes(check_spec(SPEC))


@pytest.fixture(scope="module")
def performance(pair):
    """Its predictions."""
    return pair.plan.as_json()["performance"]


def test_the_published_decode_is_predicted(performance):
    """14.8k tokens/s a node within 8 %, at 45 to 52 ms: nothing is fitted to them."""
    decode = performance["decode"]

    assert decode["tokens_per_s_per_node"]["mid"] == pytest.approx(NODE, rel=0.08)
    assert 45 <= decode["latency_ms"]["mid"] <= 52
    assert decode["kv_tokens_in_use"] == 88 * 4989
    assert 1.5 < decode["imbalance"] < 1.9  # two slots a GPU


def test_the_published_prefill_follows_from_its_utilisation(performance):
    """73.7k tokens/s a node, hits counted; the spec's utilisation is fitted to it."""
    prefill = performance["prefill"]

    assert prefill["tokens_per_s_per_node_with_hits"]["mid"] == pytest.approx(73_700, rel=0.01)
    assert prefill["operating_point"]["utilisation"] == 0.539


def test_a_prefill_step_has_no_more_prompts_than_max_requests(performance):
    """A rank that runs one prompt at once computes 1,311 tokens in a step, whatever its limit of tokens is."""
    values = {"prefill.max_requests": 1, "operating_point.prefill.step_tokens": None}
    alone = run_passes(change_spec(check_spec(SPEC), values)).plan.as_json()["performance"]["prefill"]
    full = performance["prefill"]

    assert (full["operating_point"]["step_tokens"], alone["operating_point"]["step_tokens"]) == (16_384, 1311)
    assert alone["tokens_per_s_per_gpu"]["mid"] < 0.7 * full["tokens_per_s_per_gpu"]["mid"]


def test_an_engine_that_nobody_measured_has_no_narrow_range(performance):
    """A factor of two below, and no more above than its kernels give."""
    for each in performance.values():
        rates = each["tokens_per_s_per_gpu"]

        assert each["evidence"]["family"] == "none"
        assert rates["low"] == pytest.approx(rates["mid"] / 2, rel=1e-3)
        assert rates["mid"] < rates["high"] <= 2 * rates["mid"]


def test_predictions_are_not_deployed(pair):
    """Another operating point, other predictions, the same digest."""
    other = run_passes(change_spec(check_spec(SPEC), {"operating_point.decode.requests": 44, "slo.tpot_ms": 45}))

    assert other.plan.digest == pair.plan.digest
    assert other.plan.as_json()["performance"]["decode"]["slo"]["tpot_ms"]["met"] is True
    assert pair.plan.as_json()["performance"]["decode"] != other.plan.as_json()["performance"]["decode"]


@pytest.mark.parametrize(("utilisation", "is_kept"), [(1.0, False), (0.5, True)])
def test_a_phase_that_is_asked_for_all_it_makes_keeps_no_ttft(utilisation, is_kept):
    """Prompts wait longer and longer; text, JSON and a warning say so. The warning's fix keeps the promise."""
    values = {"slo.ttft_ms": 60_000, "operating_point.prefill.utilisation": utilisation}
    plan = run_passes(change_spec(check_spec(SPEC), values))
    text = " ".join(plan_text(plan.plan).split())
    missed = [each for each in plan.plan.warnings if each.rule.startswith("W115")]

    assert ("slo.ttft_ms of 60,000 is kept, even at the slowest speed" in text) is is_kept
    assert ("without waiting: at 100% utilisation the queue grows without end" in text) is not is_kept
    assert plan.plan.as_json()["performance"]["prefill"]["slo"]["ttft_ms"]["met"] is is_kept
    assert [each.changes for each in missed] == ([] if is_kept else [({"operating_point.prefill.utilisation": None},)])


def test_mixed_units_tell_both_of_their_latencies():
    """Whoever promises a TTFT reads the one that keeps it, with its range. It is of whole ms from a second on."""
    plan = run_passes(change_spec(check_spec(SPEC.with_name("h200-single-node.yaml")), {"slo.ttft_ms": 3000}))
    found = plan.speed[0].prediction.ttft_seconds
    lines = [line.split() for line in plan_text(plan.plan).splitlines()]
    ttft = [f"{each * 1e3:,.0f}" for each in (found.mid, found.low, found.high)]

    assert ["TTFT", "ms,", "mean", *ttft] in lines
    assert ["TPOT", "ms,", "mean"] in [line[:3] for line in lines]


def test_what_is_not_modelled_says_why(tmp_path, capsys):
    """No figure, but a reason: the speed of a GPU whose rates nobody gave."""
    change = {"cluster": {"gpu": {"name": "own", "memory": "190GB"}, "nodes": 60, "gpus_per_node": 8}}
    path = tmp_path / "spec.yaml"
    path.write_text(json.dumps(PAIR | change))
    status = main(["plan", str(path), "--format", "json"])
    performance = json.loads(capsys.readouterr().out)["performance"]

    assert status == 0
    assert "rates of own" in performance["decode"]["not_predicted"]


@pytest.mark.parametrize(
    "change",
    [
        {"model": "deepseek-v3.2"},
        {
            "model": "minimax-m3",
            "prefill.redundant_experts": 0,
            "decode.ep_size": 128,
            "decode.redundant_experts": 0,
            "operating_point.decode.requests": 64,
        },
    ],
)
def test_an_indexer_is_predicted_with_a_wide_range(change):
    """No kernel of sparse attention was measured, on whatever engine: over tokens or over blocks that are picked."""
    plan = run_passes(change_spec(check_spec(SPEC), change))
    decode = plan.plan.as_json()["performance"]["decode"]

    assert decode["evidence"]["why"] == "no kernel of this attention was measured"
    assert decode["tokens_per_s_per_gpu"]["low"] == pytest.approx(decode["tokens_per_s_per_gpu"]["mid"] / 2, rel=1e-3)


def test_the_plan_explains_a_layer(capsys):
    """Stages as a table, and a timeline whose lines fit a terminal; a point that nobody wrote is said to be derived."""
    main(["plan", str(SPEC), "--explain"])
    text = capsys.readouterr().out
    drawn = text[text.index("decode, us") :]

    assert "attention 1     6" in drawn
    assert max(map(len, text.splitlines())) <= 80
    assert drawn.count("compute") == 2
    assert "73,6" in text


def test_stages_are_those_of_the_layer_that_is_told():
    """gpt-oss has as many layers with a window as without: text, timeline and JSON are of one kind."""
    spec = check_spec(SPEC.with_name("h200-single-node.yaml"))
    changes = {"model": "gpt-oss-120b", "engine": "sglang", "mixed.ep_size": 8, "mixed.redundant_experts": 0}
    plan = run_passes(change_spec(spec, changes))
    performance, step = plan.plan.as_json()["performance"]["mixed"], plan.speed[0].prediction.step
    text = " ".join(explain_layers(plan.speed).split())

    assert len(step.moe_kinds) == 2
    assert sum(performance["stages_us"].values()) == pytest.approx(step.usual.timeline.seconds * 1e6, rel=0.01)
    assert performance["exposed_us"] == pytest.approx(step.usual.timeline.exposed * 1e6, rel=1e-4)
    assert f"In ms, {step.usual.count} such layers take" in text
    assert "other MoE layers" in text


@pytest.mark.parametrize(
    ("promise", "path", "more"),
    [
        ({"slo.tpot_ms": 40}, "operating_point.decode.requests", 1),
        ({"slo.ttft_ms": 2000}, "operating_point.prefill.step_tokens", 8192),
        ({"slo.ttft_ms": 4000, "operating_point.prefill": None}, "prefill.max_batch_tokens", 4096),
        (
            {"slo.ttft_ms": 3000, "operating_point.prefill.utilisation": None},
            "operating_point.prefill.utilisation",
            0.002,
        ),
    ],
)
def test_a_missed_promise_offers_the_most_load_that_keeps_it(promise, path, more):
    """It is kept with what is offered, and not with a little more, or with steps twice as long."""

    def missed(**values):
        plan = run_passes(change_spec(check_spec(SPEC), {**promise, **values}))
        return [each for each in plan.plan.warnings if each.rule.startswith("W115")]

    (first,) = missed()
    (offered,) = (each[path] for each in first.changes if path in each)

    assert f"{path} {offered}" in str(first.fix)
    assert missed(**{path: offered}) == []
    assert missed(**{path: offered + more})


@pytest.mark.parametrize(("promise", "most"), [({"slo.tpot_ms": 60}, 14), ({"slo.ttft_ms": 1300}, 50)])
def test_the_load_of_a_unit_without_an_operating_point_is_its_limit(promise, most):
    """So many requests keep the promise, and one more does not. The same tokens take more units, which is said."""

    def missed(**values):
        spec = check_spec(SPEC.with_name("h200-single-node.yaml"))
        plan = run_passes(change_spec(spec, promise | values))
        rate = plan.speed[0].prediction.tokens_per_s_per_gpu.mid
        return [each for each in plan.plan.warnings if each.rule.startswith("W115")], rate

    (first,), rate = missed()
    kept, less = missed(**{"mixed.max_requests": most})

    assert first.changes[1] == {"mixed.max_requests": most}
    assert kept == []
    assert missed(**{"mixed.max_requests": most + 1})[0]
    assert f"(the same tokens then take {rate / less:.3g} times as many units)" in str(first.fix)


def test_requests_of_mixed_units_are_those_of_the_traffic():
    """Without an operating point, a request of half the longest length is divided as the day's tokens are."""
    spec = check_spec(SPEC.parent / "h200-single-node.yaml")
    traffic = {"traffic": {"input_tokens": 3e8, "output_tokens": 1e8, "cache_hit_rate": 0.25}}
    alone, asked = (run_passes(each).speed[0].prediction.point for each in (spec, change_spec(spec, traffic)))

    assert (alone.prompt_tokens, alone.output_tokens, alone.computed_tokens) == (10_923, 5461, 10_923)
    assert (asked.prompt_tokens, asked.output_tokens, asked.computed_tokens) == (12_288, 4096, 9216)
