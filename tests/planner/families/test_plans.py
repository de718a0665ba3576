"""Models of each family, planned: KV that does not grow is reserved, and what is published plans."""

import json

import pytest

from planner.facts.digest import pretty_json
from planner.facts.quantisation import FORMATS, KV_BYTES
from planner.families import MODELS
from planner.families.published import FOLDER
from planner.layout.weights import weights_of
from planner.plan.fit import check_fit
from planner.plan.load import load_plan
from planner.report.text import plan_text
from planner.rules.check import check_spec
from tests.planner.conftest import CONFIG
from tests.planner.families.model_parts import parameters_of
from tests.templates.gpu_plans import SPEC as GPU_SPEC

# A node that holds a model of half a terabyte.
SPEC = {
    "version": 1,
    "name": "node",
    "engine": "vllm",
    "model": {"catalog": "gpt-oss-120b", "checkpoint": "/models/it"},
    "cluster": {"gpu": "b200", "nodes": 1, "gpus_per_node": 8},
    "mixed": {"ep_size": 8, "max_request_tokens": 32768, "max_batch_tokens": 8192, "max_requests": 16},
}
CONTEXTS = (1, 127, 128, 129, 4096, 65536)


@pytest.fixture
def planned(found_of):
    """A function: the plan of a model of the catalog."""

    def plan(name, **section):
        model = SPEC["model"] | {"catalog": name}
        return found_of(json.dumps(SPEC | {"model": model, "mixed": SPEC["mixed"] | section}, indent=1))

    return plan


@pytest.mark.parametrize("name", MODELS)
def test_kv_is_never_more_than_what_is_reserved(name):
    """What grows and what does not, of every number of tokens, in every type of KV."""
    model = MODELS[name]
    for value in KV_BYTES.values():
        for tokens in CONTEXTS:
            reserved = tokens * model.kv_bytes_per_token(value) + model.kv_bytes_per_request(tokens, value)

            assert model.kv_bytes(tokens, value) <= reserved
            if tokens % 128 == 0:  # whole entries
                assert reserved - model.kv_bytes(tokens, value) < tokens


def test_windows_are_reserved_for_each_request(planned, tmp_path):
    """18 layers keep 128 tokens of 8 heads; a plan's JSON and its text say so, and the JSON is read back."""
    few, many = (planned("gpt-oss-120b", max_requests=number) for number in (16, 48))
    of_request = 18 * 128 * 2 * 8 * 64 * 2
    memory = few.plan.as_json()["memory"]["mixed"]
    in_kv = memory["kv_tokens"] * memory["kv_bytes_per_token"] + 16 * of_request
    (container,) = (each["container"] for each in few.plan.launch_documents.values() if each["kind"] == "vllm")

    assert memory["kv_bytes_per_request"] == of_request
    assert few.memory[0].fixed_kv == 16 * of_request
    assert 0 <= few.memory[0].free - in_kv < 64 * memory["kv_bytes_per_token"]
    assert many.memory[0].free - many.memory[0].fixed_kv < few.memory[0].free - few.memory[0].fixed_kv
    assert "KV bytes per request" in plan_text(few.plan, full=True)
    assert str(in_kv) in container["args"]
    assert load_plan(pretty_json(few.plan.as_json()).encode(), tmp_path / "plan.json").digest == few.plan.digest


def test_a_model_without_windows_says_nothing_of_them(planned):
    """Plans of models whose KV only grows are as they were."""
    plan = planned("minimax-m2.7", precision="fp8")

    assert "kv_bytes_per_request" not in plan.plan.as_json()["memory"]["mixed"]
    assert "bytes per request" not in plan_text(plan.plan, full=True)
    assert "towers" not in plan.plan.as_json()["memory"]["mixed"]["weights"]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_checkpoint_of_another_method_says_itself_what_it_is_in(engine, found_of, spec_folder):
    """Engines refuse to start where --quantization is not the checkpoint's quant_method; such a plan is read back."""
    group = {"weights": {"num_bits": 4, "type": "float", "group_size": 16}, "targets": ["Linear"]}
    said = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}
    entries = json.loads((FOLDER / "published.json").read_text())
    config = entries[0]["config"] | {"quantization_config": said}
    (spec_folder / "packed.json").write_text(json.dumps(config))
    model = {"config": "packed.json", "checkpoint": "/models/it"}
    section = SPEC["mixed"] | {"attention_tp": 8}
    plan = found_of(json.dumps(SPEC | {"engine": engine, "model": model, "mixed": section}, indent=1))
    (document,) = (each for each in plan.plan.as_json()["launch_documents"].values() if each["kind"] == engine)

    assert document["precision"] == "fp4"
    assert document["quant_method"] == "compressed-tensors"
    assert "--quantization" not in str(document["container"])
    assert load_plan(pretty_json(plan.plan.as_json()).encode(), spec_folder / "plan.json")


def test_a_tower_is_on_every_gpu(planned):
    """Kimi-K2.5's takes 0.9 GB, beside INT4 experts with a scale for 32 weights."""
    plan = planned("kimi-k2.5")
    weights = plan.plan.as_json()["memory"]["mixed"]["weights"]

    assert weights["towers"] == 2 * MODELS["kimi-k2.5"].tower_weights == pytest.approx(0.94e9, rel=0.01)
    assert weights["routed"] == 48 * 60 * 3 * 7168 * 2048 * (16 + 2) // 32
    assert "towers" in plan_text(plan.plan, full=True)


def test_the_bundled_runtime_loads_no_tower(found_of):
    """Kimi-K2.5 in FP8 on 16 H200: nothing but the folder of such a checkpoint is lacking to run it."""
    cluster = {"gpu": "h200", "nodes": 2, "gpus_per_node": 8}
    spec = {key: value for key, value in SPEC.items() if key != "engine"} | {"cluster": cluster, "model": "kimi-k2.5"}
    plan = found_of(json.dumps(spec | {"mixed": SPEC["mixed"] | {"ep_size": 16, "precision": "fp8"}}, indent=1))

    assert [problem.rule[:4] for problem in plan.refusals] == ["S702"]
    assert (plan.memory[0].weights.towers, "towers" in plan_text(plan.plan, full=True)) == (0, False)


def test_layers_that_a_table_routes_record_nothing(tmp_path):
    """SGLang's recording of DeepSeek-V4-Flash has 43 rows, of which the first three are zeros: equal loads there."""
    counts = [[0] * 256] * 3 + [[1 + expert % 7 for expert in range(256)]] * 40
    (tmp_path / "loads.json").write_text(json.dumps({"logical_count": counts}))
    (tmp_path / "spec.yaml").write_text(
        "version: 1\nname: hashed\nmodel: deepseek-v4-flash\ncluster: {gpu: h200, gpus_per_node: 8, nodes: 2}\n"
        "mixed: {ep_size: 16, precision: fp8, kv_precision: fp8}\nexpert_load: {file: loads.json}\n"
    )
    loads = check_spec(tmp_path / "spec.yaml").measured_loads

    assert loads[:3] == ((1,) * 256,) * 3
    assert loads[3:] == tuple(map(tuple, counts[3:]))


@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("name", ["deepseek-v4-flash", "gpt-oss-120b", "qwen3.5-35b-a3b"])
def test_no_precision_is_larger_than_bf16_or_smaller_than_its_weights(name, precision):
    """A slow reference: parameters times the bits of BF16, FP32, and four bits."""
    model = MODELS[name]
    found, parts = weights_of(model, precision), parameters_of(model)
    total = found.total(model.num_routed_experts)
    largest = sum(parts.values()) * (4 if precision == "fp32" else 2)

    assert sum(parts.values()) / 2 < total < largest * 1.01


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(("written", "warned"), [({}, 2), ({"kv_precision": "bf16"}, 0), ({"kv_precision": "fp8"}, 0)])
def test_kv_that_makers_say_is_fp8_is_not_planned_in_bf16_unsaid(tmp_path, engine, written, warned):
    """The engine is told BF16 as well, so the plan holds; but it has room for half the tokens."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    quantisation = {"quant_algo": None, "kv_cache_quant_algo": "FP8"}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": quantisation}))
    phases = {phase: GPU_SPEC[phase] | written for phase in ("prefill", "decode")}
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(GPU_SPEC | {"engine": engine} | phases))
    found = [each for each in check_fit(check_spec(path)).warnings if each.rule.startswith("W113")]

    assert len(found) == warned
    for each in found:
        assert "the checkpoint's hf_quant_config.json says FP8 for KV" in each.rule
        assert each.fix.changes == ({"prefill.kv_precision": "fp8", "decode.kv_precision": "fp8"},)


def test_deepseek_v4_drafts_with_a_layer_of_windowed_attention():
    """Its MTP module has experts as other layers have, and reads the last tokens alone."""
    layer = MODELS["deepseek-v4-pro"].draft_layer

    assert layer.attention.ratio == 0
    assert layer.attention.indexer is None
    assert layer.ffn.num_routed == 384
