"""Where a GPU's bytes go: published sizes, laws, and what a misfit says."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.facts.catalog import GPUS
from planner.facts.engines import OURS
from planner.families import MODELS
from planner.layout.layout import lay_out
from planner.layout.memory import KV_PAGE_TOKENS, split_memory
from planner.layout.weights import weights_of, with_expansion, with_padding
from planner.layout.working_memory import activation_bytes, buffer_bytes, sparse_buffer_bytes, vllm_sampler_bytes
from planner.problems.errors import InfeasibleError
from planner.problems.fix import apply_change
from planner.report.text import plan_text
from planner.spec.schema import Spec

DEEPSEEK = MODELS["deepseek-v3"]

# A spec of the published shapes; `h800-one-pair.yaml` without its comments.
PAIR = {
    "version": 1,
    "name": "pair",
    "model": "deepseek-r1",
    "cluster": {"gpu": "h800", "nodes": 60, "gpus_per_node": 8},
    "prefill": {
        "ep_size": 32,
        "redundant_experts": 32,
        "precision": "fp8",
        "max_request_tokens": 32768,
        "max_batch_tokens": 16384,
    },
    "decode": {
        "ep_size": 144,
        "redundant_experts": 32,
        "precision": "fp8",
        "max_requests": 128,
        "max_request_tokens": 32768,
    },
}

# Derived by hand in the project's facts from the published shapes; GB of 1e9 bytes.
PARTS = {"attention": 11.41 + 1.02, "dense": 1.19, "shared": 2.55, "gates": 0.21, "embedding": 3.71, "slot": 2.554}


@pytest.mark.parametrize(("part", "expected"), PARTS.items())
def test_parts_of_the_weights_are_as_derived_by_hand(part, expected):
    """Within 2 % each, in FP8 with scales."""
    assert getattr(weights_of(DEEPSEEK, "fp8"), part) / 1e9 == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("num_slots", "expected"), [(9, 43.1), (4, 30.3), (2, 25.2), (32, 101.8)])
def test_weights_a_gpu_are_as_published(num_slots, expected):
    """EP32, EP72, EP144 and EP8 of the published model, within 1 %."""
    assert weights_of(DEEPSEEK, "fp8").total(num_slots) / 1e9 == pytest.approx(expected, rel=0.01)


def test_tied_embeddings_are_one_matrix():
    """Half of what two take, 1.85 GB less on each GPU of DeepSeek-V3's size."""
    tied, plain = (weights_of(model, "fp8") for model in (replace(DEEPSEEK, ties_embeddings=True), DEEPSEEK))

    assert tied.embedding * 2 == plain.embedding
    assert plain.total(2) - tied.total(2) == 129_280 * 7168 * 2


@pytest.mark.parametrize("name", MODELS)
def test_bf16_takes_twice_as_much_as_what_fp8_halves(name):
    """Gates and embeddings are never in FP8; experts are, and their scales add less than 0.1 %."""
    fp8, bf16 = (weights_of(MODELS[name], precision) for precision in ("fp8", "bf16"))

    assert (bf16.gates, bf16.embedding) == (fp8.gates, fp8.embedding)
    assert fp8.slot == pytest.approx(bf16.slot / 2, rel=0.001)
    assert bf16.attention / 2 < fp8.attention < bf16.attention


def test_weights_of_four_bits_are_as_their_checkpoints_have_them():
    """NVFP4: 0.5625 B a weight of FFNs and of attention's output, BF16 elsewhere; W4A8: only routed experts in INT4."""
    expert = 58 * 3 * 7168 * 2048
    narrow, mixed, fp8 = (weights_of(DEEPSEEK, precision) for precision in ("fp4", "w4a8", "fp8"))
    output, rest = 128 * 128 * 7168, 1536 * (7168 + 128 * 192) + 7168 * 576 + 512 * 128 * 256

    assert (narrow.slot, mixed.slot) == (expert * 9 // 16, expert * (64 + 2) // 128)
    assert narrow.shared == narrow.slot
    assert narrow.attention == 61 * (output * 9 // 16 + 2 * rest)
    assert (mixed.attention, mixed.dense, mixed.shared) == (fp8.attention, fp8.dense, fp8.shared)


def test_the_indexer_costs_weights_and_kv():
    """Sparse attention adds its keys to the KV and its matrices to the weights of each layer."""
    plain, sparse = MODELS["deepseek-v3"], MODELS["deepseek-v3.2"]
    added = weights_of(sparse, "fp8").attention - weights_of(plain, "fp8").attention

    assert sparse.kv_bytes_per_token(2) - plain.kv_bytes_per_token(2) == 61 * (128 + 4)
    assert added / 61 == pytest.approx(1536 * 64 * 128 + 7168 * 128 + 2 * 7168 * 64, rel=0.001)


def test_grouped_attention_keeps_whole_keys_and_values():
    """94 layers x 2 x 4 heads x 128 values in BF16."""
    assert MODELS["qwen3-235b-a22b"].kv_bytes_per_token(2) == 94 * 2 * 4 * 128 * 2


def test_kv_in_fp8_is_half_of_bf16(compiled):
    """576 values of 61 layers, a byte each: twice as many tokens fit, and launch files say so."""
    fp8 = compiled(apply_change(PAIR, {"prefill.kv_precision": "fp8", "decode.kv_precision": "fp8"}))
    wide, narrow = compiled(PAIR).memory[1], fp8.memory[1]

    assert (wide.kv_bytes_per_token, narrow.kv_bytes_per_token) == (70_272, 35_136)
    assert narrow.kv_tokens // wide.kv_tokens == 2
    assert {each["kv_cache"]["dtype"] for each in fp8.plan.launch_documents.values() if each["kind"] == "unit"} == {
        "fp8"
    }
    assert {problem.rule[:4] for problem in fp8.refusals} >= {"S730"}
    assert ["KV precision" in plan_text(each.plan) for each in (fp8, compiled(PAIR))] == [True, False]


def test_sparse_attention_keeps_fp8_kv_with_scales_and_wide_rotated_keys():
    """As FlashMLA stores it: 512 values, four FP32 scales and 64 BF16 values, beside the indexer's key and scale."""
    assert MODELS["deepseek-v3.2"].kv_bytes_per_token(1) == 61 * (512 + 4 * 4 + 64 * 2 + 128 + 4)


def test_attention_over_four_gpus_is_a_quarter_of_its_heads():
    """A slow reference: of DeepSeek-V3's matrices those of heads are split, the two into latent space are not."""
    split = 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168  # queries, kv_b, output
    whole = 7168 * 1536 + 7168 * 576

    assert weights_of(DEEPSEEK.one_of(4), "bf16").attention == 61 * 2 * (split // 4 + whole)


def test_shared_attention_keeps_latent_kv_whole_and_splits_kv_heads():
    """Every head reads the one latent vector; four KV heads are split over four GPUs, and over eight held twice."""
    grouped = MODELS["qwen3-235b-a22b"]

    assert DEEPSEEK.one_of(4).kv_bytes_per_token(2) == DEEPSEEK.kv_bytes_per_token(2)
    assert [grouped.one_of(gpus).kv_bytes_per_token(2) for gpus in (2, 4, 8)] == [
        94 * 2 * heads * 128 * 2 for heads in (2, 1, 1)
    ]


def test_a_plan_says_how_attention_is_shared(compiled):
    """dp_size is GPUs over attention_tp; the other parts of the weights stay as they are."""
    alone, shared = (compiled(apply_change(PAIR, {"decode.attention_tp": gpus})).plan.as_json() for gpus in (1, 8))
    weights = [plan["memory"]["decode"]["weights"] for plan in (alone, shared)]

    assert [plan["phases"]["decode"]["dp_size"] for plan in (alone, shared)] == [144, 18]
    assert (shared["phases"]["decode"]["attention_tp"], shared["runnable"]) == (8, False)
    assert {part for part in weights[0] if weights[0][part] != weights[1][part]} == {"attention"}
    assert shared["memory"]["decode"]["activation_bytes"] < alone["memory"]["decode"]["activation_bytes"]


def test_a_unit_of_one_attention_group_shares_dense_weights(compiled):
    """A published layout: DeepSeek-R1's prefill as TP8 on one node of H20, 16,384 tokens a step, KV in FP8."""
    limits = {"max_request_tokens": 65_535, "max_batch_tokens": 16_384, "kv_precision": "fp8", "precision": "fp8"}
    spec = PAIR | {"cluster": {"gpu": "h20", "nodes": 3, "gpus_per_node": 8}}
    spec |= {"prefill": {"ep_size": 8, "attention_tp": 8} | limits, "decode": {"ep_size": 16} | limits}
    plan = compiled(spec)
    whole, shared = weights_of(DEEPSEEK, "fp8"), plan.memory[0].weights

    assert [getattr(whole, part) for part in ("dense", "shared", "embedding")] == [
        8 * getattr(shared, part) for part in ("dense", "shared", "embedding")
    ]
    assert shared.gates == whole.gates
    assert plan.memory[0].full_requests >= 1
    assert plan.memory[1].weights == whole  # sixteen groups that exchange tokens


def test_no_part_of_a_matrix_is_less_than_a_block():
    """2,048 channels over 32 GPUs are 64 each: of blocks of 128 two GPUs have the same one."""
    sixteenth, thirty_second = (weights_of(DEEPSEEK, "fp8", dense_tp=gpus).shared for gpus in (16, 32))

    assert thirty_second == sixteenth == weights_of(DEEPSEEK, "fp8").shared // 16


def test_a_unit_that_is_one_attention_group_has_no_dispatch_buffers():
    """Only what collectives need."""
    layout, spec = laid_out("prefill", {"ep_size": 16, "attention_tp": 16, "redundant_experts": 0})

    assert buffer_bytes(DEEPSEEK, layout, spec.max_requests) == 411_041_792


def test_low_latency_buffers_equal_the_librarys():
    """DeepEP's layout for 128 tokens, 7,168 channels and 288 experts, added up by hand.

    NVSHMEM allocates in pieces of 512 MiB, and DeepEP has a workspace.
    """
    dispatch_message, combine_message = 16 + 7168 * 2, 56 * 4 + 7168 * 2
    send, receive = 288 * 128 * combine_message, 288 * 128 * max(dispatch_message, combine_message)

    layout, _ = laid_out("decode", PAIR["decode"])
    pieces = math.ceil(2 * (send + receive + 288 * 4) / 2**29)
    assert pieces == 4
    assert buffer_bytes(DEEPSEEK, layout, 128) == 411_041_792 + pieces * 2**29 + 32 * 2**20


def test_a_unit_of_one_gpu_sends_nothing():
    """No dispatch, no buffers."""
    layout, spec = laid_out("prefill", {"ep_size": 1})

    assert buffer_bytes(DEEPSEEK, layout, spec.max_requests) == 0


def test_the_published_units_fit(compiled):
    """Prefill and decode of the published system, and decode holds its mean of 88 requests of 4,989 tokens."""
    prefill, decode = compiled(PAIR).memory

    assert (round(prefill.weight_bytes / 1e9, 1), round(decode.weight_bytes / 1e9, 1)) == (43.1, 25.2)
    assert decode.kv_bytes_per_token == 70_272
    assert decode.kv_tokens > 88 * 4_989


def test_plan_json_adds_up(compiled):
    """Weights, activations, buffers, reserve and KV are the GPU, to a page."""
    for memory in compiled(PAIR).plan.as_json()["memory"].values():
        parts = ("weights_bytes", "activation_bytes", "buffer_bytes", "reserve_bytes")
        rest = memory["gpu_bytes"] - sum(memory[part] for part in parts)
        page_bytes = KV_PAGE_TOKENS * memory["kv_bytes_per_token"]

        assert 0 <= rest - memory["kv_tokens"] * memory["kv_bytes_per_token"] < page_bytes
        assert sum(memory["weights"].values()) == memory["weights_bytes"]


@pytest.mark.slow
def test_a_request_takes_whole_pages(compiled):
    """One token beyond a page is a page more: what is left of it is nobody's."""
    pages = {tokens: compiled(decoding(max_request_tokens=tokens)).memory[1].full_requests for tokens in (64, 65, 128)}

    assert pages[64] // 2 == pages[65] == pages[128]


def test_less_kv_than_memory_holds_is_what_the_spec_allows(compiled):
    """In the plan, in how many requests fit, and in what the ranks are told."""
    plan = compiled(decoding(max_request_tokens=1000, max_kv_tokens=40_000))

    assert plan.memory[1].kv_tokens == 40_000
    assert plan.memory[1].full_requests == 40_000 // 1024


def test_ranks_on_cpus_have_no_memory_of_their_own(found_of):
    """They share the host's, whose size no spec states: the plan says nothing rather than something wrong."""
    assert found_of().plan.as_json()["memory"] == {}


def test_a_misfit_names_the_largest_part_the_shortage_and_a_fix(compiled):
    """S707: EP8 of the published model on 80 GB has more bytes of weights than the GPU's memory."""
    with pytest.raises(InfeasibleError) as error:
        compiled(PAIR | {"prefill": PAIR["prefill"] | {"ep_size": 8}})

    (problem,) = error.value.findings
    assert problem.message == (
        "prefill.ep_size (8) must leave room for the KV of one request (32,768 tokens, 2.3 GB), "
        "but 45.0 GB are missing; "
        "a GPU has 84.9 GB: weights need 112.1 GB (36 expert slots), activations 11.0 GB, buffers 0.8 GB, "
        "reserve 3.8 GB; "
        "nearest: prefill.ep_size 16"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"prefill": {"ep_size": 8}}, "prefill.ep_size"),
        ({"decode": {"ep_size": 8}}, "decode.ep_size"),
        ({"decode": {"max_requests": 4096}}, "decode.max_requests"),
        ({"prefill": {"max_batch_tokens": 200_000}}, "prefill.max_batch_tokens"),
        ({"cluster": {"nodes": 20}}, "cluster.nodes"),
        ({"cluster": {"nodes": 1}, "prefill": {"ep_size": 8}, "decode": {"ep_size": 8}}, "prefill.ep_size"),
    ],
)
def test_every_printed_change_would_do(wrong, path, compiled):
    """Each change that an infeasible spec is offered is applied, and the spec plans."""
    spec = {key: value | wrong.get(key, {}) if isinstance(value, dict) else value for key, value in PAIR.items()}
    with pytest.raises(InfeasibleError) as error:
        compiled(spec)

    problem = error.value.findings[0]
    assert problem.path == path
    assert 1 <= len(problem.changes) <= 3
    for change in problem.changes:
        compiled(apply_change(spec, change))


def test_attention_over_more_gpus_is_offered_if_it_is_enough(compiled):
    """EP8 of the published model lacks 8 GB on one node of H20, and sharing attention leaves KV for all requests.

    The fix names an engine too, because the bundled runtime does not share attention.
    """
    limits = {"max_requests": 5, "max_request_tokens": 4096, "max_batch_tokens": 512}
    spec = {key: PAIR[key] for key in ("version", "name", "model")}
    spec |= {"cluster": {"gpu": "h20", "nodes": 1, "gpus_per_node": 8}}
    spec |= {"mixed": {"ep_size": 8, "precision": "fp8"} | limits}
    with pytest.raises(InfeasibleError) as error:
        compiled(spec)
    change, *_ = error.value.findings[0].changes

    assert change == {"engine": "sglang", "mixed.attention_tp": 8}
    assert compiled(apply_change(spec, change)).memory[0].full_requests >= limits["max_requests"]
    assert 1 <= compiled(apply_change(spec, {"mixed.attention_tp": 4})).memory[0].full_requests < limits["max_requests"]
    with pytest.raises(InfeasibleError):
        compiled(apply_change(spec, {"mixed.attention_tp": 2}))


def test_a_change_is_the_smallest_of_its_field(compiled):
    """One token more in a batch, and it does not fit any more."""
    spec = apply_change(PAIR, {"prefill.max_batch_tokens": 200_000})
    with pytest.raises(InfeasibleError) as error:
        compiled(spec)

    (most,) = (
        change["prefill.max_batch_tokens"]
        for change in error.value.findings[0].changes
        if "prefill.max_batch_tokens" in change
    )
    with pytest.raises(InfeasibleError):
        compiled(apply_change(spec, {"prefill.max_batch_tokens": most + 1}))


@st.composite
def layouts(draw):
    """A model, a GPU, and a phase of any size."""
    model, gpu = draw(st.sampled_from(sorted(MODELS))), draw(st.sampled_from(sorted(GPUS.keys() - {"cpu"})))
    phase = draw(st.sampled_from(["prefill", "decode"]))
    experts = MODELS[model].num_routed_experts
    section = {
        "ep_size": draw(st.sampled_from([size for size in range(1, 385) if experts % size == 0])),
        "precision": draw(st.sampled_from(["fp8", "bf16"])),
        "max_requests": draw(st.integers(1, 1024)),
        "max_request_tokens": draw(st.integers(2, 100_000)),
        "max_batch_tokens": draw(st.integers(1, 100_000)),
    }
    return MODELS[model], GPUS[gpu], phase, section


@given(case=layouts())
def test_less_to_do_never_needs_more(case):
    """Fewer tokens, fewer requests, more GPUs a unit in prefill: no part of the working memory grows."""
    model, _, phase, section = case
    layout, spec = laid_out(phase, section, model)
    for field in ("max_requests", "max_request_tokens", "max_batch_tokens"):
        fewer = spec.model_copy(update={field: max(1, getattr(spec, field) // 2)})

        few, many = fewer.max_requests, spec.max_requests

        assert activation_bytes(model, layout, fewer, few) <= activation_bytes(model, layout, spec, many)
        assert buffer_bytes(model, layout, few) <= buffer_bytes(model, layout, many)


@given(case=layouts())
def test_a_fit_is_exact(case):
    """Either the KV of one request fits in what is left, or memory is short; never a negative number in a plan."""
    model, gpu, phase, section = case
    layout, spec = laid_out(phase, section, model)
    plan = split_memory(Checked(model, gpu, spec), layout)

    assert (plan.full_requests >= 1) is (plan.missing_bytes <= 0)
    assert plan.weight_bytes + plan.activations + plan.buffers + plan.reserve + plan.free == plan.gpu_bytes


class Checked:
    """As much of a ResolvedSpec as memory reads."""

    def __init__(self, model, gpu, section, engine=OURS):
        self.model = self.loaded_model = model
        self._gpu, self._section = gpu, section
        self.written = SimpleNamespace(engine_name=engine)

    def phase(self, _):
        return self._section

    def gpu_of(self, _):
        return self._gpu


@pytest.fixture
def compiled(found_of):
    """A function: the plan of a spec given as data."""
    return lambda spec: found_of(json.dumps(spec, indent=1))


def decoding(**changes):
    """The pair with another decode; short prompts, so that prefill's limit is the same."""
    sections = {"prefill": PAIR["prefill"], "decode": PAIR["decode"] | changes}
    tokens = sections["decode"]["max_request_tokens"]
    return PAIR | sections | {"prefill": sections["prefill"] | {"max_request_tokens": tokens}}


def laid_out(phase, section, model=DEEPSEEK):
    cluster = {"gpu": "h800", "nodes": 1, "gpus_per_node": 8}
    spec = Spec.model_validate({"version": 1, "name": "any", "model": "any", "cluster": cluster, phase: section})
    checked = SimpleNamespace(written=spec, phase=spec.phase, cluster=spec.cluster, model=model)
    return lay_out(checked, phase), spec.phase(phase)


def test_an_engine_has_latent_expansion_twice():
    """SGLang and vLLM keep kv_b as it is read, 1.0 GB of DeepSeek-V3 in FP8, beside 2.0 GB that queries absorb."""
    once = weights_of(DEEPSEEK, "fp8")
    twice = with_expansion(once, DEEPSEEK, "fp8")

    assert (twice.total(2) - once.total(2)) / 1e9 == pytest.approx(1.02, rel=0.01)
    assert twice.absorbed / 1e9 == pytest.approx(2.05, rel=0.01)
    grouped = MODELS["gpt-oss-120b"]
    assert with_expansion(weights_of(grouped, "bf16"), grouped, "bf16") == weights_of(grouped, "bf16")


def test_no_rank_reads_what_its_engine_makes_of_weights(compiled):
    """Start times count the checkpoint's kv_b once: what queries absorb is made on the GPU."""
    _, theirs = compiled(PAIR | {"engine": "sglang"}).memory

    assert theirs.weights.absorbed / 1e9 == pytest.approx(2.05, rel=0.01)
    assert theirs.read_bytes == theirs.weight_bytes - theirs.weights.absorbed


@pytest.mark.parametrize(("kv_bytes", "gb"), [(1, 6.04), (2, 5.54)])
def test_sparse_attention_reserves_five_requests_of_full_length_in_vllm(kv_bytes, gb):
    """Five in BF16 if KV is FP8, else the index keys of forty: with requests of a million tokens that is 6 GB."""
    assert sparse_buffer_bytes(MODELS["glm-5.2"], 2**20, kv_bytes) / 1e9 == pytest.approx(gb, rel=0.01)
    assert sparse_buffer_bytes(DEEPSEEK, 2**20, kv_bytes) == 0


def test_vllm_pads_experts_in_mxfp4():
    """Experts of gpt-oss, whose 2,880 channels are not whole tiles, take 9 % more; those of DeepSeek-V4 do not."""
    small, large = MODELS["gpt-oss-120b"], MODELS["deepseek-v4-pro"]
    kept, padded = weights_of(small, "mxfp4"), with_padding(weights_of(small, "mxfp4"), small, "mxfp4")

    assert padded.slot / kept.slot == pytest.approx(3072 * 2944 / 2880**2, rel=1e-6)
    assert padded.resident == kept.resident
    assert with_padding(weights_of(large, "fp8_mxfp4"), large, "fp8_mxfp4") == weights_of(large, "fp8_mxfp4")
    assert with_padding(weights_of(small, "bf16"), small, "bf16") == weights_of(small, "bf16")


def test_vllm_has_room_for_its_sampler():
    """1,024 requests of DeepSeek-V3 take 1.85 GB once, however short a decode step's other activations are."""
    section = {"ep_size": 8, "attention_tp": 8, "precision": "fp8", "max_requests": 1024, "max_request_tokens": 4096}
    _, spec = laid_out("decode", section)
    layout, _ = laid_out("decode", section)
    theirs, ours = (split_memory(Checked(DEEPSEEK, GPUS["h200"], spec, each), layout) for each in ("vllm", OURS))

    assert vllm_sampler_bytes(DEEPSEEK, 1024) / 1e9 == pytest.approx(1.85, rel=0.01)
    assert ours.activations < theirs.activations == vllm_sampler_bytes(DEEPSEEK, 1024)


def test_one_attention_group_keeps_no_room_for_other_groups():
    """Its GPUs have all tokens and dispatch none: 1,024 requests take under a fifth of what eight groups reserve."""
    section = {"ep_size": 8, "precision": "fp8", "max_requests": 1024, "max_request_tokens": 4096}
    alone, spec = laid_out("decode", section | {"attention_tp": 8})
    spread, many = laid_out("decode", section)

    assert activation_bytes(DEEPSEEK, alone, spec, 1024) < activation_bytes(DEEPSEEK, spread, many, 1024) / 5
