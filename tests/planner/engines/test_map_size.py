"""Maps that SGLang reads from one file: what a ConfigMap cannot hold is refused before anything is applied."""

import json

import pytest

from planner.facts.map_files import export_map
from planner.families import MODELS
from planner.manifests.launch_parts import file_parts
from planner.rules.check import check_spec
from planner.rules.engine_limits import MAX_MAP_BYTES, most_redundant_experts
from tests.planner.engines.deployments import engine_refusals

SPEC = """\
version: 1
name: wide
model: {catalog: deepseek-r1, checkpoint: /models/r1}
engine: ENGINE
cluster: {gpu: h800, nodes: 500, gpus_per_node: 8}
prefill: {ep_size: 32, redundant_experts: 32, precision: fp8, max_request_tokens: 32768, max_batch_tokens: 16384}
decode: {ep_size: 1536, redundant_experts: REDUNDANT, precision: fp8, max_requests: 128, max_request_tokens: 32768}
"""


def refusals(folder, engine, redundant):
    """What the engine cannot do with such a map; nothing is planned. So many GPUs are another matter (S758)."""
    path = folder / "spec.yaml"
    path.write_text(SPEC.replace("ENGINE", engine).replace("REDUNDANT", str(redundant)))
    return [each for each in engine_refusals(check_spec(path)) if "S754" in each.rule]


def test_a_map_that_no_config_map_holds_is_refused(tmp_path):
    """With the nearest number that 1,536 GPUs can share; vLLM, which reads no map, has no such limit."""
    assert refusals(tmp_path, "sglang", 2816) == []
    (refusal,) = refusals(tmp_path, "sglang", 4352)

    assert refusal.path == "decode.redundant_experts"
    assert refusal.rule == "S754 must be at most 3,044 to run on sglang"
    assert refusal.fix.words == "nearest: 2816"
    assert refusals(tmp_path, "vllm", 4352) == []


@pytest.mark.parametrize("model", ["deepseek-r1"])
def test_the_largest_map_that_is_taken_fits(model):
    """As one part, even if every redundant expert is one with the longest number; one more would not."""
    shapes = MODELS[model]
    most = most_redundant_experts(shapes)
    row = [*range(shapes.num_routed_experts), *[shapes.num_routed_experts - 1] * most]
    moe_layers = shapes.num_layers - shapes.num_dense_layers

    text = export_map("sglang", [row] * moe_layers, 8, shapes.num_dense_layers)
    worst = json.dumps({"physical_to_logical_map": [row] * shapes.num_layers}) + "\n"

    assert [part.file for part in file_parts("unit", "map.json", "sha256:" + "0" * 64, text)] == ["map.json"]
    assert MAX_MAP_BYTES - 5 * shapes.num_layers < len(worst) <= MAX_MAP_BYTES
