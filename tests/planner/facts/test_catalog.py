"""The facts: sourced, complete, and nowhere else."""

import ast
import json
import re
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from planner.facts.catalog import ASSUMED, GPUS, MODELS, Gpu
from planner.facts.model_config import read_model_config

ROOT = Path(__file__).parents[3]
FIGURES = [
    field.name for field in fields(Gpu) if field.name not in ("device", "sources", "nvlink_leaves_node", "lacks_fp4")
]
SOURCE = re.compile(r"github\.com/[\w-]+/[\w.-]+ ([0-9a-f]{8} [\w/.{},-]+|issue [0-9]+|pull request [0-9]+)")
NAMES = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in (MODELS.keys() | GPUS.keys()) - {"cpu"}), re.I)

# Published totals, in billions of parameters: DeepSeek-V3 and V2 READMEs, Qwen3 and Kimi-K2 model cards. The total of
# V3 is without its MTP layer.
PARAMETERS = {
    "deepseek-v3": 671,
    "deepseek-v2": 236,
    "deepseek-v2-lite": 15.7,
    "qwen3-235b-a22b": 235,
    "kimi-k2": 1026,
}


@pytest.mark.parametrize("name", GPUS)
def test_every_figure_of_a_gpu_has_a_source(name):
    """A repository, a commit and a path, or an issue; or it is marked as assumed. Nothing else has a source."""
    gpu = GPUS[name]
    unsourced = [
        figure
        for figure, source in gpu.sources.items()
        if not (SOURCE.match(source) or source.startswith(f"{ASSUMED}: "))
    ]

    assert gpu.sources.keys() == {figure for figure in FIGURES if getattr(gpu, figure) is not None}
    assert unsourced == []


@pytest.mark.parametrize("name", sorted(GPUS.keys() - {"cpu"}))
def test_every_gpu_has_all_figures(name):
    """What a pass reads is there; only a mesh has a bandwidth of its own to one peer."""
    assert {figure for figure in FIGURES if getattr(GPUS[name], figure) is None} <= {"peer_gb_per_s"}


def test_the_links_of_a_mesh_add_up():
    """One to each other GPU of the domain."""
    meshes = [gpu for gpu in GPUS.values() if gpu.peer_gb_per_s]

    assert [gpu.peer_gb_per_s * (gpu.nvlink_domain - 1) for gpu in meshes] == [gpu.nvlink_gb_per_s for gpu in meshes]
    assert meshes


@pytest.mark.parametrize("name", sorted(GPUS.keys() - {"cpu"}))
def test_usable_memory_is_near_what_the_gpu_is_sold_as(name):
    """GB and GiB are not mixed up: between the nominal GB and the same number of GiB."""
    gpu = GPUS[name]

    assert gpu.nominal_gb * 1e9 <= gpu.usable_bytes <= gpu.nominal_gb * 2**30


def test_what_nobody_read_is_marked():
    """The list of assumed figures; one that is found leaves it."""
    assumed = [
        (name, figure)
        for name, gpu in GPUS.items()
        for figure, source in gpu.sources.items()
        if source.startswith(ASSUMED)
    ]

    assert assumed == [("gb200", "nominal_gb")]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_source(name):
    """A repository, a commit and a path."""
    assert SOURCE.match(MODELS[name].source)


@pytest.mark.parametrize(("name", "billions"), PARAMETERS.items())
def test_shapes_add_up_to_the_published_parameters(name, billions):
    """Counted by hand from the shapes, within 1 %."""
    assert parameters(MODELS[name]) / 1e9 == pytest.approx(billions, rel=0.01)


def test_latent_kv_is_as_published():
    """70,272 bytes a token in BF16, over 61 layers."""
    assert MODELS["deepseek-v3"].kv_bytes_per_token(2) == 70_272


def test_no_model_and_no_gpu_is_named_outside_the_catalog():
    """Code that asks for a name would plan only what it knows. Prose in docstrings may name them."""
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value[:40]}"
        for package in ("planner", "stacks", "runtime")
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name != "catalog.py"
        for node in strings(ast.parse(path.read_text()))
        if NAMES.search(node.value)
    ]
    named += [path.name for path in (ROOT / "templates").glob("*.j2") if NAMES.search(path.read_text())]

    assert named == []


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v3.2", "qwen3-235b-a22b"])
def test_a_config_of_the_same_shapes_is_the_same_model(name, tmp_path):
    """Written as its checkpoint writes it, a model of the catalog is read back as it is."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(as_config(MODELS[name])))
    found = read_model_config(path, "config.json")

    assert replace(found.model, source=MODELS[name].source) == MODELS[name]


def test_a_config_says_that_its_embeddings_are_tied(tmp_path):
    """Not so where it says nothing."""
    path, config = tmp_path / "config.json", as_config(MODELS["deepseek-v3"])
    for change, is_tied in (
        ({}, False),
        ({"tie_word_embeddings": True}, True),
        ({"tie_word_embeddings": False}, False),
    ):
        path.write_text(json.dumps(config | change))
        assert read_model_config(path, "config.json").model.ties_embeddings == is_tied


def as_config(model):
    """The config.json of a model's checkpoint."""
    attention = asdict(model.attention)
    config = {
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.dense_intermediate_size,
        "moe_intermediate_size": model.expert_intermediate_size,
        "vocab_size": model.vocab_size,
        "num_attention_heads": attention.pop("num_heads"),
        "num_experts_per_tok": model.num_experts_per_token,
        "max_position_embeddings": model.max_position_embeddings,
    }
    if model.weights_in == "fp8":
        config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    if "num_kv_heads" in attention:
        experts = {
            "model_type": "qwen3_moe",
            "num_experts": model.num_routed_experts,
            "head_dim": attention["head_dim"],
        }
        return config | experts | {"num_key_value_heads": attention["num_kv_heads"]}
    indexer = attention.pop("indexer")
    indexed = {"index_n_heads": indexer["num_heads"], "index_head_dim": indexer["head_dim"]} if indexer else {}
    experts = {
        "model_type": "deepseek_v32" if indexer else "deepseek_v3",
        "first_k_dense_replace": model.num_dense_layers,
        "n_routed_experts": model.num_routed_experts,
        "n_shared_experts": model.num_shared_experts,
        "n_group": model.num_expert_groups,
        "topk_group": model.num_groups_per_token,
    }
    return config | attention | indexed | experts


def strings(tree):
    """Every text in code, without docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]


def parameters(model):
    """The slow reference: every matrix of the model, from the definitions in DeepSeek-V3's inference/model.py."""
    h, a = model.hidden_size, model.attention
    if hasattr(a, "kv_lora_rank"):
        qk = a.qk_nope_head_dim + a.qk_rope_head_dim
        query = h * a.q_lora_rank + a.q_lora_rank * a.num_heads * qk if a.q_lora_rank else h * a.num_heads * qk
        latent = h * (a.kv_lora_rank + a.qk_rope_head_dim)
        expanded = a.kv_lora_rank * a.num_heads * (a.qk_nope_head_dim + a.v_head_dim)
        attention = query + latent + expanded + a.num_heads * a.v_head_dim * h
    else:
        attention = h * a.head_dim * (2 * a.num_heads + 2 * a.num_kv_heads)
    expert = 3 * h * model.expert_intermediate_size
    moe = (model.num_routed_experts + model.num_shared_experts) * expert + h * model.num_routed_experts
    dense = 3 * h * model.dense_intermediate_size
    layers = model.num_layers * attention + model.num_dense_layers * dense + model.num_moe_layers * moe
    return layers + 2 * model.vocab_size * h
