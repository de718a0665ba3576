"""A small right spec beside its model's config, and ways to write wrong ones."""

import json
from functools import cache

import pytest

from planner.compiler import run_passes
from planner.families.published import FOLDER
from planner.problems.errors import SpecError
from planner.rules.check import check_spec

SPEC = """\
version: 1
name: river
model:
  config: config.json
  checkpoint: bundled:demo
cluster:
  gpu: cpu
  nodes: 3
  gpus_per_node: 2
prefill:
  ep_size: 2
  redundant_experts: 4
  overlap: none
  precision: fp32
  max_requests: 8
  max_request_tokens: 2048
  max_batch_tokens: 2048
decode:
  units: 1
  ep_size: 4
  redundant_experts: 4
  overlap: none
  precision: fp32
  max_request_tokens: 2048
expert_load:
  alpha: 1.01
  seed: 0
gateway:
  port: 8000
kubernetes:
  namespace: tidemill
  image: tidemill-runtime:0.1.0
"""

CONFIG = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 5,
    "first_k_dense_replace": 1,
    "hidden_size": 192,
    "intermediate_size": 512,
    "moe_intermediate_size": 64,
    "vocab_size": 4096,
    "num_attention_heads": 6,
    "n_routed_experts": 32,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "max_position_embeddings": 2048,
}

INDEXED = CONFIG | {"model_type": "deepseek_v32", "index_n_heads": 2, "index_head_dim": 32}

COMPRESSED = {
    "model_type": "deepseek_v4",
    "num_hidden_layers": 4,
    "hidden_size": 192,
    "moe_intermediate_size": 64,
    "vocab_size": 4096,
    "num_attention_heads": 8,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 96,
    "o_groups": 4,
    "o_lora_rank": 32,
    "sliding_window": 128,
    "compress_ratios": [0, 4, 128, 4, 0],
    "index_n_heads": 2,
    "index_head_dim": 32,
    "hc_mult": 4,
    "n_routed_experts": 32,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 2048,
}

GROUPED = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 4,
    "hidden_size": 192,
    "intermediate_size": 512,
    "moe_intermediate_size": 64,
    "vocab_size": 4096,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 2048,
}


def published(name):
    """Return the config.json of a model of the catalog."""
    entries = json.loads((FOLDER / "published.json").read_text())
    return next(entry["config"] for entry in entries if name in entry["names"])


@pytest.fixture(scope="session")
def spec_text():
    """A right spec, one value a line."""
    return SPEC


@pytest.fixture(scope="session")
def with_line():
    """A function: the right spec with other text in place of a line (from 1)."""

    def replace(line, text, spec=SPEC):
        lines = spec.splitlines()
        lines[line - 1] = text
        return "\n".join(lines) + "\n"

    return replace


@pytest.fixture(scope="session")
def spec_folder(tmp_path_factory):
    """A folder with the model's config, another model's, broken ones, and load files."""
    return write_spec_folder(tmp_path_factory.mktemp("specs"))


def write_spec_folder(folder):
    """Write what `spec_folder` holds, and return the folder."""
    files = {
        "config.json": CONFIG,
        "stale/config.json": CONFIG,
        "stale/tidemill-checkpoint.json": {"version": 1, "config_digest": "sha256:0", "files": {}},
        "newer/config.json": CONFIG,
        "newer/tidemill-checkpoint.json": {"version": 2},
        "glm.json": {"model_type": "glm4_moe", "num_hidden_layers": 92, "hidden_size": 5120},
        "fp8.json": CONFIG | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
        "other_fp8.json": CONFIG | {"quantization_config": {"quant_method": "fp8", "weight_block_size": None}},
        "awq.json": CONFIG | {"quantization_config": {"quant_method": "awq", "bits": 4}},
        "fp4.json": CONFIG | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}},
        "beside/config.json": CONFIG,
        "beside/hf_quant_config.json": {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}},
        "torn/config.json": CONFIG,
        "torn/hf_quant_config.json": {"quantization": {"quant_algo": "NVFP4", "exclude_modules": "lm_head"}},
        "w4a8.json": CONFIG | {"quantization_config": {"quant_method": "w4afp8"}},
        "gpt2.json": {"model_type": "gpt2"},
        "dbrx.json": {"model_type": "dbrx", "ffn_config": {"moe_num_experts": 16}},
        "tower.json": {"model_type": "llava", "text_config": CONFIG},
        "towerless.json": {"model_type": "kimi_k25", "text_config": CONFIG},
        "other_text.json": {"model_type": "kimi_k25", "text_config": GROUPED, "vision_config": {}},
        "two_orders.json": INDEXED | {"mlp_layer_types": ["dense", "dense", "sparse", "sparse", "sparse"]},
        "miscounted.json": INDEXED | {"mlp_layer_types": ["dense", "sparse"]},
        "no_first.json": INDEXED | {"model_type": "glm_moe_dsa", "index_topk_pattern": "SFFFF"},
        "compressed.json": COMPRESSED,
        "strange_ratio.json": COMPRESSED | {"compress_ratios": [0, 4, 128, 8]},
        "v2_lite.json": CONFIG | {"model_type": "deepseek_v2", "n_group": None},
        "ungrouped.json": CONFIG | {"n_group": 5},
        "few_groups.json": CONFIG | {"topk_group": 5},
        "few_experts.json": CONFIG | {"num_experts_per_tok": 33},
        "unfinished.json": {key: value for key, value in CONFIG.items() if key != "hidden_size"} | {"kv_lora_rank": 0},
        "grouped.json": GROUPED,
        "sparse.json": GROUPED | {"decoder_sparse_step": 2},
        "all_dense.json": CONFIG | {"first_k_dense_replace": 5},
        "loads.json": [[100 + layer + expert for expert in range(32)] for layer in range(4)],
        "recorded.json": {"logical_count": [[[0] * 32, *[[5] * 32] * 4]] * 2},
        "few_layers.json": [[1] * 32] * 3,
        "unrecorded.json": {"logical_count": [[0] * 32, [5] * 32, [0] * 32, [5] * 32, [5] * 32]},
        "negative.json": [[1] * 31 + [-1]] * 4,
        "old_plan.json": {"version": 2, "units": []},
        "true_plan.json": {"version": True, "units": []},
        "no_units.json": {"version": 3},
        "half_plan.json": {"version": 3, "units": [{"name": "river-decode-0", "nodes": "node-0"}]},
        "odd_map.json": {
            "version": 3,
            "units": [
                {"name": "a", "phase": "decode", "index": 0, "nodes": ["n"], "ranks": 1}
                | {"why": "", "unit_digest": "", "expert_map": ""}
            ],
            "expert_maps": {"sha256:0": {"physical_to_logical": [[1, "2"]]}},
        },
        "ragged.json": [[1, 2], [1]],
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    (folder / "torn.json").write_text('{"model_type":')
    (folder / "pointer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    (folder / "page.json").write_text("<!DOCTYPE html><html></html>")
    prompts = [
        {"timestamp": 30_000 * number, "input_length": 1000, "output_length": 9, "hash_ids": [0, number]}
        for number in range(1, 9)
    ]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    (folder / "notes").mkdir()
    (folder / "notes" / "mine.txt").write_text("not ours")
    return folder


@pytest.fixture(scope="session")
def spec_file(spec_folder):
    """A function: the path of a file with that text, beside the model's config."""

    def write(text=SPEC, name="spec.yaml"):
        path = spec_folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture(scope="session")
def problems_of(spec_file):
    """A function: the problems that a spec text has, in the order of its lines."""

    def check(text):
        try:
            check_spec(spec_file(text, "checked.yaml"))
        except SpecError as error:
            return error.findings
        return ()

    return check


@pytest.fixture(scope="session")
def found_of(spec_file):
    """A function: what the passes find for a spec text, made once."""

    @cache
    def found(text=SPEC):
        return run_passes(check_spec(spec_file(text, "planned.yaml")))

    return found


@pytest.fixture(scope="session")
def plan_of(found_of):
    """A function: the plan of a spec text, made once."""
    return lambda text=SPEC: found_of(text).plan
