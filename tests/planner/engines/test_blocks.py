"""GPUs that share a matrix in FP8 have whole blocks of it, or the spec is refused before a pod dies loading it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.families import MODELS
from planner.families.published import FOLDER
from planner.problems.errors import SpecError
from planner.rules.check import change_spec
from tests.planner.engines.deployments import engine_refusals
from tests.planner.engines.test_exchange import mixed
from tests.planner.families.test_quantised import FP8_BLOCKS, group, packed

NAMES = sorted(name for name in MODELS if not name.startswith("gpt-oss"))


def refused(spec):
    """Why a group cuts a matrix within a block; None where it does not."""
    return next((each for each in engine_refusals(spec) if each.rule.startswith("S772")), None)


def unit(model="deepseek-r1", engine="sglang", per_node=8, **section):
    """A mixed unit of one attention group, unless `section` says otherwise."""
    size = section.get("attention_tp", 1)
    spec = mixed(engine, {"gpus_per_node": per_node}, **({"ep_size": size} | section))
    return change_spec(spec, {"model.catalog": model})


@pytest.mark.parametrize(
    ("model", "attention_tp", "part"),
    [
        ("deepseek-r1", 32, "576 of the 18,432 channels of its dense layers"),
        ("glm-5", 32, "64 of the 2,048 channels of its shared experts"),
        ("kimi-k2", 64, "288 of the 18,432"),
        ("qwen3.5-397b-a17b", 16, "64 of the 1,024 channels of its shared experts"),
        ("deepseek-v4-pro", 16, "192 of the 3,072"),
        ("deepseek-r1", 16, None),
        ("qwen3.5-397b-a17b", 8, None),
        ("qwen3-235b-a22b", 64, None),  # has neither, and experts are not cut
    ],
)
def test_dense_layers_and_shared_experts_are_cut_by_the_whole_group(model, attention_tp, part):
    """In FP8 each part must be whole blocks of 128; in BF16 any part will do."""
    precision = "fp8_mxfp4" if model.startswith("deepseek-v4") else "fp8"
    section = {"attention_tp": attention_tp, "kv_precision": "fp8"}
    found = refused(unit(model, **section, precision=precision))

    assert found is None if part is None else part in found.reason
    assert refused(unit(model, **section, precision="bf16")) is None


def test_groups_that_exchange_rows_have_ffns_whole():
    """SGLang's do; vLLM's cut dense layers all the same, and queries are cut by every group."""
    assert refused(unit(ep_size=64, attention_tp=32, per_node=8)) is None
    assert refused(unit("kimi-k2", ep_size=128, attention_tp=64, per_node=8)).reason.startswith("each of 64 GPUs")
    assert refused(unit("deepseek-v2", "vllm", ep_size=32, attention_tp=16, per_node=16)) is None
    assert refused(unit("deepseek-v2-lite", "vllm", ep_size=8, attention_tp=2)).reason.startswith("each of 2 GPUs")


IN_BLOCKS = {"weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}}
DENSE, SHARED, ATTENTION = "model.layers.0.mlp", "re:.*shared_experts.*", "*self_attn*"


@pytest.mark.parametrize(
    ("said", "part"),
    [
        (FP8_BLOCKS, "dense layers"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}, None),
        (packed(group(8, "float")), None),
        (packed(IN_BLOCKS), "dense layers"),
        (FP8_BLOCKS | {"modules_to_not_convert": [SHARED]}, "dense layers"),
        (FP8_BLOCKS | {"modules_to_not_convert": [DENSE]}, "shared experts"),
        (FP8_BLOCKS | {"modules_to_not_convert": [DENSE, SHARED]}, "queries"),
        (FP8_BLOCKS | {"modules_to_not_convert": [DENSE, SHARED, ATTENTION]}, None),
    ],
)
def test_weights_without_blocks_may_be_split_anywhere(said, part, tmp_path):
    """FP8 with one scale per tensor may be split anywhere, like BF16; a reason names a part that has blocks."""
    published = json.loads((FOLDER / "published.json").read_text())
    config = next(each["config"] for each in published if "kimi-k2" in each["names"])
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | {"quantization_config": said}))
    spec = unit("kimi-k2", attention_tp=64, precision="fp8")
    found = refused(change_spec(spec, {"model": {"config": str(path), "checkpoint": "/models/kimi"}}))

    assert (found and found.reason.partition("channels of its ")[2].partition(",")[0]) == part


@given(model=st.sampled_from(NAMES), engine=st.sampled_from(["sglang", "vllm"]), data=st.data())
def test_what_is_offered_is_cut_between_blocks(model, engine, data):
    """Or words say what would do."""
    ep_size = data.draw(st.sampled_from([8, 16, 32, 64]))
    attention_tp = data.draw(st.sampled_from([size for size in (1, 2, 4, 8, 16, 32, 64) if size <= ep_size]))
    experts = MODELS[model].num_routed_experts
    section = {"ep_size": ep_size, "attention_tp": attention_tp, "redundant_experts": -experts % ep_size}
    try:
        spec = unit(model, engine, **section, kv_precision="fp8")
    except SpecError:
        return
    found = refused(spec)
    for change in getattr(found and found.fix, "changes", ()):
        assert refused(change_spec(spec, {"mixed.attention_tp": change["."]})) is None
