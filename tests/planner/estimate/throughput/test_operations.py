"""Operations and exchanges against published figures and the operators' tables; rows of engines are in `accuracy`."""

import json
from dataclasses import replace

import pytest

from planner.estimate.case import build_case
from planner.estimate.throughput import operations
from planner.estimate.throughput.copies import expected_copies
from planner.estimate.throughput.dimensions import Bytes
from planner.estimate.throughput.imbalance import sampling_imbalance
from planner.estimate.throughput.intervals import SCALED_WIDTH
from planner.estimate.throughput.kernels import kernels_json
from planner.estimate.throughput.machine import build_machine
from planner.estimate.throughput.point import OperatingPoint
from planner.estimate.throughput.predict import saturated_rate
from planner.estimate.throughput.stages import Exchange
from planner.estimate.throughput.work import work_of
from planner.facts.catalog import GPUS
from planner.facts.core_attention import least_heads
from planner.families import MODELS
from planner.layout.layout import lay_out
from planner.rules.check import check_document
from planner.spec.yaml import parse_document
from tests.planner.accuracy.published import DECODE, PREFILL, case_of

V3 = MODELS["deepseek-v3"]
H100, H800 = (build_machine(GPUS[name], name) for name in ("h100", "h800"))
MOE = next(layer for layer in work_of(V3, "fp8", "bf16").layers if layer.expert)


def test_work_of_a_layer_is_the_published_one():
    """278,528 operations over 1,152 bytes a token of KV; an expert of 44.05 MB; 374.2 MFLOP of projections."""
    attention = MOE.attention

    assert (attention.core_flops, attention.core_bytes) == (278_528, 1_152)
    assert attention.into_flops + attention.out_flops == pytest.approx(374.2e6, rel=0.001)
    assert MOE.expert.weights == pytest.approx(44.05e6, rel=0.001)
    assert attention.prompt_core_flops == 2 * 128 * 320


@pytest.mark.parametrize(
    ("slots", "pairs", "measured_us"), [(2, 512, 58.6), (2, 1024, 94.4), (8, 256, 161.8), (16, 16, 294.8)]
)
def test_routed_experts_take_the_published_time(slots, pairs, measured_us):
    """H100, uniform: 256 experts over 128, 128, 32 and 4 GPUs. The table has 16 rows of 16 for 64 experts of 8."""
    time = operations.routed_experts_time(H100, MOE.expert, slots, pairs)

    assert time * 1e6 == pytest.approx(measured_us, rel=0.17)


@pytest.mark.parametrize(
    ("engine", "gpu", "written", "computed"),
    [
        ("sglang", "h20", {"attention_precision": "fp8"}, {"tokens"}),
        ("sglang", "h20", {}, set()),  # its default kernel converts KV to BF16
        ("sglang", "gb200", {}, {"tokens"}),
        ("vllm", "h200", {}, {"tokens"}),
        ("vllm", "h200", {"kv_precision": "bf16"}, set()),
        ("tidemill", "h800", {}, set()),
    ],
)
def test_core_attention_is_in_fp8_where_an_engine_computes_it_so(engine, gpu, written, computed):
    """An option makes it FP8, or the engine's own choice where KV is in FP8; our engine computes in BF16."""
    pair = {"ep_size": 16, "precision": "fp8", "kv_precision": written.get("kv_precision", "fp8")}
    given = {"version": 1, "name": "a", "model": "deepseek-r1", "engine": engine, "decode": pair | written}
    cluster = {"gpu": gpu, "nodes": 8, "gpus_per_node": 4 if gpu == "gb200" else 8}
    spec = check_document(parse_document(json.dumps(given | {"cluster": cluster, "prefill": pair}), "a"))
    work = build_case(spec, lay_out(spec, "decode"), OperatingPoint(), Exchange(1, 1)).model

    assert {each for layer in work.layers for each in layer.attention.fp8_core} == computed


def test_core_attention_in_fp8_takes_as_much_less_as_published():
    """On H20 about 70 % faster than in BF16, and projections as long as before."""
    h20 = build_machine(GPUS["h20"], "h20")
    fast = replace(MOE.attention, fp8_core=frozenset({"tokens"}))
    none, slow, quick = (
        operations.attention_output_time(h20, work, 64, kv)
        for work, kv in ((MOE.attention, 0), (MOE.attention, 8192), (fast, 8192))
    )

    assert (slow - none) / (quick - none) == pytest.approx(1.7)


def test_low_latency_exchanges_take_what_was_published():
    """128 tokens at EP128 on H800: 192 and 369 us."""
    sent = 128 * 8 * sampling_imbalance(128, 1024) * 15 / 16
    dispatch = operations.low_latency_seconds(H800, "dispatch", Bytes(sent * 7392), 16)
    combine = operations.low_latency_seconds(H800, "combine", Bytes(sent * 14336), 16)

    assert dispatch * 1e6 == pytest.approx(192, rel=0.08)
    assert combine * 1e6 == pytest.approx(369, rel=0.08)


def test_a_gate_with_groups_keeps_tokens_on_fewer_nodes():
    """4 of 8 groups, two a node: 2.36 other nodes instead of 2.70."""
    grouped, free = (expected_copies(V3, 32, 4, groups_on_nodes=each).nodes for each in (True, False))

    assert (grouped, free) == (pytest.approx(2.357, abs=0.001), pytest.approx(2.70, abs=0.01))


def test_every_family_of_operators_has_residuals():
    """Each kind of GPU that was measured: points, mean and worst error beside its constants."""
    for kind in kernels_json()["gpus"].values():
        assert kind["constants"] or kind["like"]
        assert all(each["points"] >= 2 and each["mean"] <= 0.15 for each in kind.get("residuals", {}).values())


def test_ranges_of_scaled_constants_cover_measurements():
    """At least 85 % of the points of four kinds of GPU are inside, each kind left out in turn."""
    found = kernels_json()["left_out"]

    assert found["points"] > 1000
    assert found["covered"] >= 0.85 * found["points"]
    assert found["width"] == SCALED_WIDTH


def test_an_indexer_pays_in_long_contexts_only():
    """V3.2 is V3 with an indexer: slower in short contexts, and faster in long ones because it reads 2,048 tokens.

    For a token of KV the indexer takes 64 heads of 128, 16,384 operations, and reads 132 bytes.
    """
    sparse = next(layer for layer in work_of(MODELS["deepseek-v3.2"], "fp8", "bf16").layers if layer.expert).attention
    gains = {}
    for tokens in (1024, 131_072):
        points = {DECODE: OperatingPoint(64, tokens), PREFILL: OperatingPoint(step_tokens=16_384, prompt_tokens=tokens)}
        for name, point in points.items():
            dense = replace(case_of(name), point=point)
            gains[dense.phase, tokens] = saturated_rate(
                replace(dense, model=work_of(MODELS["deepseek-v3.2"], "fp8", "bf16"))
            ) / saturated_rate(dense)

    assert (sparse.index_flops, sparse.index_bytes, sparse.core_bytes, sparse.window) == (16_384, 132, 1_152, 2_048)
    assert gains["decode", 1024] < 1 < 3 < gains["decode", 131_072]
    assert gains["prefill", 1024] < 1 < 2 < gains["prefill", 131_072]


def test_a_prompt_reads_a_window_that_fills_up():
    """The first tokens see few: a prompt of twice the window reads three quarters of it on average, a long one all."""
    seen = operations.seen_in_window

    assert [seen(context, 2048) for context in (100, 1024, 2048)] == [100, 1024, 1536]
    assert seen(65_536, 2048) == pytest.approx(2048, rel=0.01)


def test_vllm_fills_up_the_heads_of_sparse_attention():
    """Two Blackwells that share DeepSeek-V3.2's 128 heads both compute 128; four Hoppers compute 64 of 32 each."""
    model = MODELS["deepseek-v3.2"]

    def core(tp, heads):
        return next(iter(work_of(model, "fp8", "bf16", tp, 1, frozenset(), heads).layers)).attention.prompt_core_flops

    assert (least_heads("vllm", "gb300", None), least_heads("vllm", "h200", None)) == (128, 64)
    assert least_heads("vllm", "gb300", "fp8") == 64
    assert least_heads("sglang", "gb300", None) == 1
    assert core(1, 1) == core(2, 128) == 2 * core(2, 1)
    assert core(4, 64) == core(2, 1)
    dense = MODELS["deepseek-v3"]
    assert work_of(dense, "fp8", "bf16", 8, 1, frozenset(), 128) == work_of(dense, "fp8", "bf16", 8)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_of_the_catalog_has_its_work(name):
    """All layers are counted, and each takes operations before and after core attention."""
    model = MODELS[name]
    layers = work_of(model, "bf16", "bf16").layers

    assert sum(layers.values()) == len(model.layers)
    assert all(each.attention.into_flops > 0 and each.attention.out_flops > 0 for each in layers)


def test_compressed_attention_reads_a_window_and_entries():
    """DeepSeek-V4-Pro: 128 tokens and at most 1,024 entries of four tokens each, or all entries of 128 tokens each.

    A token and an entry take 128 heads x 4 x 512 operations and 584 bytes; two sites mix four streams of 14,336 bytes.
    """
    model = work_of(MODELS["deepseek-v4-pro"], "fp8_mxfp4", "fp8")
    by_ratio = {each.attention.tokens_per_entry: each.attention for each in model.layers}
    picked, all_entries = by_ratio[4], by_ratio[128]

    assert (picked.local, picked.window, all_entries.local, all_entries.window) == (128, 1024, 128, None)
    assert picked.core_flops == 262_144
    assert picked.core_bytes == 584
    assert model.stream_bytes == 2 * 14 * 14_336
    more = [
        operations.attention_output_time(H100, each, 256, 400_000)
        - operations.attention_output_time(H100, each, 256, 200_000)
        for each in (picked, all_entries)
    ]
    scores = operations.indexer_time(H100, picked, 256, 50_000, Bytes(256 * 50_000 * 132))
    assert more[0] == pytest.approx(scores)  # the picked entries are the same number
    assert more[1] > 0


def test_a_single_stream_is_not_mixed():
    """Only DeepSeek-V4 has several: others keep their step times to the microsecond."""
    assert work_of(V3, "fp8", "bf16").stream_bytes == 0
    assert operations.streams_time(H100, Bytes(0.0)) == 0


def test_linear_attention_takes_as_long_whatever_came_before():
    """Qwen3.5: a state is read and written for each request, and no KV; a scan takes its time token by token."""
    layers = work_of(MODELS["qwen3.5-397b-a17b"], "bf16", "bf16").layers
    linear, full = (
        {each.attention for each in layers if bool(each.attention.state_bytes) is is_linear}
        for is_linear in (True, False)
    )
    (linear,), (full,) = linear, full

    def decode(work, kv):
        return operations.attention_output_time(H100, work, 64, kv)

    assert linear.state_bytes == 64 * 128 * 128 * 4 + 3 * 12_288 * 2
    assert decode(linear, 100) == decode(linear, 100_000)
    assert decode(full, 100) < decode(full, 100_000)
    assert operations.prompt_attention_output_time(H100, linear, 8192, 100, 1) == pytest.approx(
        operations.prompt_attention_output_time(H100, linear, 8192, 100_000, 1)
    )
