"""Which engine runs which model: the table is what SGLang's sources say, and a model that it cannot run is refused."""

import ast
import json
from dataclasses import replace
from functools import cache

import pytest

from planner.facts.engine_models import ENGINE_MODELS, MOVED_FORMS
from planner.facts.engines import ENGINES
from planner.facts.model import Dense
from planner.facts.quantisation import Quantisation
from planner.rules.check import check_document, check_spec
from planner.search.auto import decide
from planner.spec.yaml import parse_document
from tests.planner.engines.deployments import engine_refusals
from tests.planner.engines.test_documents import PAIR
from tests.planner.engines.wheels import require

SGLANG = ENGINE_MODELS["sglang"]["0.5.23"]
VLLM = ENGINE_MODELS["vllm"]["0.33.0"]
TEXT_MODELS = {"KimiK25ForConditionalGeneration": "DeepseekV3ForCausalLM"}

# Of each architecture of SGLang: the file and class that build the experts, and the class of a layer.
BUILT_BY = {
    "deepseek_v2.py": ("deepseek_v2.py", "DeepseekV2MoE", "DeepseekV2DecoderLayer"),
    "deepseek_v4.py": ("deepseek_v2.py", "DeepseekV2MoE", "DeepseekV4DecoderLayerBase"),
    "kimi_k25.py": ("deepseek_v2.py", "DeepseekV2MoE", "DeepseekV2DecoderLayer"),
    "glm4_moe.py": ("glm4_moe.py", "Glm4MoeSparseMoeBlock", "Glm4MoeDecoderLayer"),
    "glm4_moe_lite.py": ("glm4_moe_lite.py", "Glm4MoeLiteSparseMoeBlock", "Glm4MoeLiteDecoderLayer"),
    "mimo_v2.py": ("mimo_v2.py", "MiMoV2MoE", "MiMoV2DecoderLayer"),
    "qwen2_moe.py": ("qwen2_moe.py", "Qwen2MoeSparseMoeBlock", "Qwen2MoeDecoderLayer"),
    "qwen3_vl_moe.py": ("qwen3_moe.py", "Qwen3MoeSparseMoeBlock", "Qwen3MoeDecoderLayer"),
    "gpt_oss.py": ("gpt_oss.py", "GptOssSparseMoeBlock", "GptOssDecoderLayer"),
    "minimax_m2.py": ("minimax_m2.py", "MiniMaxM2MoE", "MiniMaxM2DecoderLayer"),
    "minimax_m3_vl.py": ("minimax_m3.py", "MiniMaxM3MoE", "MiniMaxM3DecoderLayer"),
    "qwen3_moe.py": ("qwen3_moe.py", "Qwen3MoeSparseMoeBlock", "Qwen3MoeDecoderLayer"),
    "qwen3_next.py": ("qwen2_moe.py", "Qwen2MoeSparseMoeBlock", "Qwen3HybridLinearDecoderLayer"),
    "qwen3_5.py": ("qwen2_moe.py", "Qwen2MoeSparseMoeBlock", "Qwen3_5LinearDecoderLayer"),
    "qwen3_5_text.py": ("qwen2_moe.py", "Qwen2MoeSparseMoeBlock", "Qwen3_5LinearDecoderLayer"),
    "minimax_m3.py": ("minimax_m3.py", "MiniMaxM3MoE", "MiniMaxM3DecoderLayer"),
    "GlmMoeDsaForCausalLM": ("deepseek_v2.py", "DeepseekV2MoE", "DeepseekV2DecoderLayer"),  # in glm4_moe.py
}


@pytest.fixture(scope="module")
def srt():
    """SGLang's sources, unpacked; skips where its wheel cannot be had."""
    return require("sglang") / "sglang/srt"


@cache
def parsed(path):
    """A source file."""
    return ast.parse(path.read_text())


def class_in(path, name):
    """A class of a file."""
    return next(node for node in parsed(path).body if isinstance(node, ast.ClassDef) and node.name == name)


def method_of(models, path, name, method):
    """A method of a class, its own or of a class that it extends, in this file or in one that it imports; or None."""
    found = class_in(path, name)
    own = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == method]
    if own:
        return own[0]
    imported = {
        alias.asname or alias.name: models / f"{node.module.split('.')[-1]}.py"
        for node in parsed(path).body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang.srt.models.")
        for alias in node.names
    }
    here = {node.name for node in parsed(path).body if isinstance(node, ast.ClassDef)}
    bases = [base.id for base in found.bases if isinstance(base, ast.Name) and base.id in here | imported.keys()]
    inherited = (method_of(models, imported.get(base, path), base, method) for base in bases)
    return next(filter(None, inherited), None)


def registered(path):
    """The names in a file's EntryClass."""
    (value,) = [
        node.value
        for node in parsed(path).body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "EntryClass"
    ]
    return {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}


def built_by(model):
    """File, class of the MoE block, and class of a layer."""
    return BUILT_BY.get(model.architecture) or BUILT_BY[model.file]


@pytest.mark.slow
@pytest.mark.parametrize("model_type", SGLANG)
def test_sglang_registers_the_architecture_and_reads_a_map_for_it(srt, model_type):
    """Under this name, in this file, with the hook that its expert-location reader asks: a row for every layer."""
    model = SGLANG[model_type]
    path = srt / "models" / model.file
    hook = method_of(srt / "models", path, model.architecture, "get_model_config_for_expert_location")

    assert model.architecture in registered(path)
    if model_type == "minimax_m3_vl":  # which asks its text model's class
        hook = method_of(srt / "models", srt / "models/minimax_m3.py", "MiniMaxM3SparseForCausalLM", hook.name)
    (num_layers,) = [node.value for node in ast.walk(hook) if getattr(node, "arg", None) == "num_layers"]
    assert ast.unparse(num_layers).endswith("config.num_hidden_layers")


@pytest.mark.parametrize("model_type", SGLANG)
def test_sglang_makes_slots_for_replicas_where_the_table_says_so(srt, model_type):
    """The number of experts that a layer is built with, and whether its block goes through DeepEP."""
    model = SGLANG[model_type]
    file, block, _ = built_by(model)
    body = class_in(srt / "models" / file, block)
    counts = [
        ast.unparse(keyword.value)
        for node in ast.walk(body)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "num_experts" and any(each.arg == "quant_config" for each in node.keywords)
    ]

    assert counts
    assert all("redundant" in count for count in counts) == model.replicas
    assert ("forward_deepep branch not implemented" in ast.unparse(body)) == (model.cannot is not None)
    assert "deepep" in ast.unparse(body)


def test_sglang_overlaps_the_layers_that_the_table_says(srt):
    """Two-batch overlap knows layers by the names of their classes, and DeepSeek-V4's in prefill only."""
    path = srt / "batch_overlap/operations_strategy.py"
    named = {node.value for node in ast.walk(class_in(path, "OperationsStrategy")) if isinstance(node, ast.Constant)}
    imported = {node.name for node in ast.walk(class_in(path, "OperationsStrategy")) if isinstance(node, ast.alias)}
    overlapping = {name for name in SGLANG if built_by(SGLANG[name])[2] in named | imported}

    assert overlapping == {name for name, model in SGLANG.items() if model.overlaps}
    assert [name for name in overlapping if built_by(SGLANG[name])[2] in imported] == ["deepseek_v4"]
    assert SGLANG["deepseek_v4"].overlaps == ("prefill",)
    assert "DeepseekV4 TBO only supports prefill" in path.read_text()


def test_the_tables_are_of_the_versions_that_we_speak_for():
    """Each version of an engine has its own, and both know the same models."""
    for engine, versions in ENGINE_MODELS.items():
        assert tuple(versions) == ENGINES[engine].versions
    assert SGLANG.keys() == VLLM.keys()


@pytest.fixture(scope="module")
def executor():
    """The sources of vLLM's models and layers, unpacked; skips where its wheel cannot be had."""
    return require("vllm") / "vllm/model_executor"


@cache
def modules_of(executor):
    """Architecture -> its module, in vLLM's registry."""
    return {
        key.value: ast.literal_eval(value)[0]
        for node in ast.walk(parsed(executor / "models/registry.py"))
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple)
    }


def text_of(executor, module):
    """A module's text, or a package's for NVIDIA's GPUs."""
    if "." not in module:
        return (executor / f"models/{module}.py").read_text()
    folder = executor.parents[1] / module.replace(".", "/")
    files = [folder.with_suffix(".py")] if folder.with_suffix(".py").exists() else sorted(folder.rglob("*.py"))
    return "".join(each.read_text() for each in files if "amd" not in each.parts)


@pytest.mark.parametrize("model_type", VLLM)
def test_vllm_supports_architectures_as_the_table_says(executor, model_type):
    """vLLM's registry agrees. EPLB asks for a `MixtureOfExperts`, and of a multimodal model it asks the text model."""
    model, modules = VLLM[model_type], modules_of(executor)
    asked = TEXT_MODELS.get(model.architecture, model.architecture)

    assert modules[model.architecture] == model.file.removesuffix(".py")
    assert ("MixtureOfExperts" in text_of(executor, modules[asked])) == model.replicas


@cache
def supporting_eplb(executor):
    """Class of experts -> what its `supports_eplb` returns, of those that have one."""
    texts = (each.read_text() for each in (executor / "layers").rglob("*.py"))
    classes = [node for text in texts if "def supports_eplb" in text for node in ast.parse(text).body]
    return {
        node.name: ast.unparse(each.body[-1])
        for node in classes
        for each in getattr(node, "body", ())
        if getattr(each, "name", "") == "supports_eplb"
    }


def test_vllm_moves_experts_of_the_forms_in_the_table(executor):
    """Each one's class supports EPLB whatever the GPU; the base class, and so any other, does not."""
    found = supporting_eplb(executor)
    named = {each for forms in MOVED_FORMS["vllm"]["0.33.0"].values() for each in forms.values()}

    assert {found[each] for each in named} == {"return True"}
    assert found["FusedMoEMethodBase"] == "return False"
    assert not {"ModelOptFp8MoEMethod", "ModelOptMxFp8FusedMoE"} & found.keys()
    assert "TRITON" in found["CompressedTensorsWNA16MoEMethod"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A pair of units for each engine, whose model may be called another."""
    path = tmp_path_factory.mktemp("models") / "spec.yaml"
    found = {}
    for engine in ("sglang", "vllm"):
        path.write_text(PAIR.replace("ENGINE", engine).replace("OVERLAP", "dual_batch"))
        found[engine] = check_spec(path)
    return found


def refused(spec, model_type, num_experts=256):
    """What the engine cannot do with a model of this type: rules with their places."""

    def with_experts(layer):
        is_dense = isinstance(layer.ffn, Dense)
        return layer if is_dense else replace(layer, ffn=replace(layer.ffn, num_routed=num_experts))

    spec = replace(spec, model=replace(spec.model, model_type=model_type).with_layers(with_experts))
    return [f"{each.rule[:4]} {each.path}" for each in engine_refusals(spec)]


EACH = ("prefill", "decode")


@pytest.mark.parametrize(
    ("engine", "model_type", "found"),
    [
        ("sglang", "deepseek_v3", []),
        ("sglang", "kimi_k25", []),
        ("sglang", "deepseek_v4", ["S745 decode.overlap"]),
        ("sglang", "qwen3_next", [f"S745 {phase}.overlap" for phase in EACH]),
        (
            "sglang",
            "glm4_moe",
            [*(f"S754 {phase}.redundant_experts" for phase in EACH), *(f"S745 {phase}.overlap" for phase in EACH)],
        ),
        ("sglang", "gpt_oss", ["S709 model.catalog"]),
        ("vllm", "glm4_moe", []),
        ("vllm", "minimax_m2", [f"S754 {phase}.redundant_experts" for phase in EACH]),
        ("sglang", "llama4", ["S709 model.catalog"]),
        ("vllm", "llama4", ["S709 model.catalog"]),
    ],
)
def test_a_model_is_refused_for_what_its_class_does_not_do(pairs, engine, model_type, found):
    """32 redundant experts, many attention groups and overlap in both phases."""
    assert refused(pairs[engine], model_type) == found


@pytest.mark.parametrize(
    ("quantisation", "called"),
    [
        (Quantisation("fp8", "FP8 of ModelOpt", other_method="modelopt"), "FP8 of ModelOpt"),
        (Quantisation("fp4", "NVFP4 of compressed-tensors", other_method="compressed-tensors"), "NVFP4 of compressed"),
        (Quantisation("w4a16", "INT4 experts by 32 beside BF16"), "INT4 experts by 32"),
        (Quantisation("fp8", "FP8 of compressed-tensors", other_method="compressed-tensors"), None),
        (Quantisation("fp4", "NVFP4"), None),
    ],
)
def test_vllm_has_replicas_only_of_experts_that_it_can_move(pairs, quantisation, called):
    """It refuses to start with EPLB and experts of another form; without replicas it needs none."""
    spec = pairs["vllm"]
    of_form = replace(spec, model=replace(spec.model, quantisation=quantisation))
    for phase in EACH:
        section = spec.phase(phase).model_copy(update={"precision": quantisation.precision})
        of_form = replace(of_form, written=of_form.written.model_copy(update={phase: section}))
    without = of_form.with_numbers("prefill", {"redundant_experts": 0}).with_numbers("decode", {"redundant_experts": 0})
    reasons = [each.reason for each in engine_refusals(of_form) if each.rule.startswith("S754")]

    assert [called is not None and called in each for each in reasons] == ([] if called is None else [True, True])
    assert [each for each in engine_refusals(without) if each.rule.startswith("S754")] == []


@pytest.mark.parametrize(("engine", "is_replicated"), [("vllm", False), ("tidemill", True)])
def test_auto_takes_no_replicas_where_the_engine_has_none(engine, is_replicated):
    """MiniMax-M2's class in vLLM has one slot for each expert; the choice is for a plan that `render` takes."""
    unit = {"ep_size": 8, "redundant_experts": "auto", "max_request_tokens": 4096}
    data = {
        "version": 1,
        "name": "fixed",
        "model": {"catalog": "minimax-m2.5", "checkpoint": "/models/m"},
        "engine": engine,
        "cluster": {"gpu": "h200", "gpus_per_node": 8, "nodes": 1},
        "mixed": unit,
    }
    decided = decide(check_document(parse_document(json.dumps(data), "spec.yaml"))).spec

    assert (decided.phase("mixed").redundant_experts > 0) == is_replicated


def test_sglang_shares_no_model_between_more_gpus_than_experts(pairs):
    """Prefill has 32 GPUs; replicas do not help."""
    assert refused(pairs["sglang"], "qwen3_moe", 16) == ["S758 prefill.ep_size"]
    assert refused(pairs["vllm"], "qwen3_moe", 16) == []


def test_a_refusal_says_what_would_do(pairs):
    """Place, rule, reason and fix in one sentence."""
    spec = pairs["sglang"]
    said = [
        str(each.fix)
        for model_type in ("gpt_oss", "glm4_moe")
        for each in engine_refusals(replace(spec, model=replace(spec.model, model_type=model_type)))
    ]

    assert said == ["choose another engine", *["nearest: 0"] * 2, *["nearest: none"] * 2]
