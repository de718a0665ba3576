"""What the files of quantised checkpoints say, module by module, held by sums of hand and by a slow reference."""

import json
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.facts.model import Model
from planner.families import model_of, read_model_config
from planner.families.module_names import NAME_WAYS, ModuleNames, Unreadable, spell_module
from planner.families.published import FOLDER
from planner.layout.weights import weights_of
from planner.problems.finding import Finding

PUBLISHED = {
    name: each["config"] for each in json.loads((FOLDER / "published.json").read_text()) for name in each["names"]
}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
NVFP4_BYTES, BF16_BYTES = 0.5625, 2

# Six layers of DeepSeek-V3's, the first dense, small enough for a sum over every module
SMALL = PUBLISHED["deepseek-v3"] | {
    "num_hidden_layers": 6,
    "first_k_dense_replace": 1,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "moe_intermediate_size": 256,
    "q_lora_rank": 512,
    "num_attention_heads": 16,
}
QUERY, VALUE = 16 * (128 + 64), 16 * 128
ATTENTION = {
    "self_attn.q_a_proj": 1024 * 512,
    "self_attn.q_b_proj": 512 * QUERY,
    "self_attn.kv_a_proj_with_mqa": 1024 * (512 + 64),
    "self_attn.o_proj": VALUE * 1024,
}
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def without(config):
    """Return a config that says nothing of quantisation."""
    return {key: value for key, value in config.items() if key != "quantization_config"}


def weights(config, said):
    """Return one GPU's weights of a checkpoint whose config says `said`, in the precision that this is."""
    model = model_of(without(config) | {"quantization_config": said}, "config.json")
    return weights_of(model, model.weights_in)


def modules(layer):
    """Return the size of each linear module of a layer of SMALL, one routed expert of all."""
    ffn = {"mlp": 2048} if layer == 0 else {"mlp.shared_experts": 256, "mlp.experts.0": 256}
    found = ATTENTION | {f"{place}.{each}": 1024 * size for place, size in ffn.items() for each in PROJECTIONS}
    return {f"model.layers.{layer}.{name}": size for name, size in found.items()}


ALL = {name: size for layer in range(6) for name, size in modules(layer).items()}
SPELLED = [
    lambda name: name,
    lambda name: f"{name}*",
    lambda name: f"language_model.{name}",
    lambda name: name.replace("model.", "model.language_model.", 1),
    lambda name: name.removeprefix("model."),
    lambda name: f"*{name.removeprefix('model.')}",
    lambda name: f"re:{name.replace('.', chr(92) + '.')}",
]


@given(st.dictionaries(st.sampled_from(sorted(ALL)), st.sampled_from(SPELLED)))
def test_each_module_that_is_left_out_is_counted_in_bf16(left_out):
    """The slow reference adds up every module, however the file spells the names of those that it leaves out."""
    said = NVFP4 | {"ignore": ["lm_head", *(spell(name) for name, spell in left_out.items())]}
    unquantised = weights_of(model_of(without(SMALL), "config.json"), "bf16")
    saved = sum(size * (BF16_BYTES - NVFP4_BYTES) for name, size in ALL.items() if name not in left_out)

    assert weights(SMALL, said).total(1) == unquantised.total(1) - saved


def names(where, num_layers, first=0):
    """Return the same entry for every layer."""
    return [where.replace("N", str(layer)) for layer in range(first, num_layers)]


QWEN = names("model.language_model.layers.N.linear_attn*", 60) + names("model.language_model.layers.N.self_attn*", 60)
# Each published list, in short, and by hand: GB of attention, dense layers, shared experts
LISTS = {
    "nvidia/DeepSeek-V3.1-NVFP4": (
        "deepseek-v3",
        [
            name
            for each in ("kv_a_proj_with_mqa", "kv_b_proj", "q_a_proj", "q_b_proj")
            for name in names(f"model.layers.N.self_attn.{each}", 61)
        ],
        (12.53, 0.67, 1.44),
    ),
    "nvidia/GLM-5.1-NVFP4": (
        "glm-5.1",
        [
            *("model.layers.0*", "model.layers.1.*", "model.layers.2.*", "model.layers.78*"),
            *names("model.layers.N.mlp.shared_experts*", 78, 3),
            *names("model.layers.N.self_attn*", 78, 3),
        ],
        (27.21, 1.36, 5.66),
    ),
    "nvidia/Kimi-K2.6-NVFP4": (
        "kimi-k2",
        [
            *("language_model.model.layers.0*", "mm_projector*", "vision_tower*"),
            *names("language_model.model.layers.N.mlp.shared_experts*", 61, 1),
            *names("language_model.model.layers.N.self_attn*", 61, 1),
        ],
        (12.34, 0.79, 5.28),
    ),
    "nvidia/MiniMax-M2.5-NVFP4": (
        "minimax-m2.5",
        names("model.layers.N.block_sparse_moe.gate", 62) + names("model.layers.N.self_attn*", 62),
        (5.46, 0, 0),
    ),
    "nvidia/Qwen3.5-397B-A17B-NVFP4": (
        "qwen3.5-397b-a17b",
        ["*.mlp.shared_expert.*", "model.visual*", *QWEN],
        (13.77, 0, 1.51),
    ),
}


@pytest.mark.parametrize("name", LISTS)
def test_published_lists_add_up_to_sums_of_hand(name):
    """Attention, dense layers and shared experts; routed experts are in NVFP4 in all of them."""
    model, left_out, expected = LISTS[name]
    config = PUBLISHED[model]
    found = weights(config, NVFP4 | {"ignore": ["lm_head", *left_out]})
    narrow = weights_of(model_of(without(config), "config.json"), "fp4").slot

    assert tuple(round(each / 1e9, 2) for each in (found.attention, found.dense, found.shared)) == expected
    assert found.slot == narrow


@pytest.mark.parametrize("entry", ["re:.*attn.*", "*attn*", "*attn.*"])
def test_linear_attention_is_left_out_by_a_part_of_its_name(entry):
    """Qwen3.5's own list names `linear_attn` and `self_attn`; a shorter one that means both leaves as much in BF16."""
    config = PUBLISHED["qwen3.5-397b-a17b"]
    short, long = (weights(config, NVFP4 | {"ignore": ["lm_head", *each]}) for each in ([entry], QWEN))

    assert short.attention == long.attention


MIXED = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
FP8_BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def group(num_bits, kind, size=None, targets=("Linear",), **more):
    """Return one group of compressed-tensors."""
    return {"weights": {"num_bits": num_bits, "type": kind, "group_size": size}, "targets": list(targets), **more}


def packed(*groups, ignore=()):
    """Return the quantization_config that compressed-tensors writes."""
    numbered = {f"group_{index}": each for index, each in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": numbered, "ignore": list(ignore)}


EXPERTS = "re:.*mlp\\.experts\\.\\d+\\.(gate|up|down)_proj"
FORMS = [
    (FP8_BLOCKS, "fp8"),
    (FP8_BLOCKS | {"modules_to_not_convert": ["gate", "lm_head"]}, "fp8"),
    (FP8_BLOCKS | {"modules_to_not_convert": None}, "fp8"),
    (FP8_BLOCKS | {"expert_dtype": "fp4"}, "fp8_mxfp4"),
    (FP8_BLOCKS | {"moe_quant_algo": "NVFP4", "quant_algo": "MIXED_PRECISION", "ignore": ["*.attn.*"]}, "fp8_fp4"),
    (FP8_BLOCKS | {"moe_quant_algo": "INT4"}, "fp8 with experts in INT4"),
    ({"quant_method": "fp8"}, "fp8 without blocks of 128 x 128"),
    (NVFP4, "fp4"),
    ({"quant_algo": "W4A16_NVFP4", "ignore": ["lm_head"]}, "fp4"),
    ({"quant_algo": "FP8", "ignore": ["lm_head"]}, "fp8"),
    ({"quant_algo": "fp8_pb_wo", "ignore": ["lm_head"]}, "fp8"),
    ({"quant_algo": "W8A8_SQ"}, "W8A8_SQ of ModelOpt"),
    ({"quant_algo": None}, "bf16"),
    (
        MIXED
        | {
            "quantized_layers": {f"model.layers.{each}.mlp.experts": {"quant_algo": "NVFP4"} for each in range(1, 6)}
            | {f"model.layers.{each}.self_attn.q_b_proj": {"quant_algo": "MXFP8"} for each in range(6)}
        },
        "fp8_fp4",
    ),
    (MIXED | {"quantized_layers": {"lm_head": {"quant_algo": "FP8"}}}, "bf16"),
    (MIXED | {"quantized_layers": {"model.layers.1.mlp.experts": {"quant_algo": "INT5"}}}, "INT5 of ModelOpt"),
    (packed(group(4, "int", 32), ignore=["re:.*self_attn.*", "re:.*shared_experts.*"]), "w4a16"),
    (packed(group(4, "int", 128, [EXPERTS])), "w4a16"),
    (packed(group(4, "int", 48)), "INT4 by 48 of compressed-tensors"),
    (packed(group(4, "float", 16), ignore=["lm_head"]), "fp4"),
    (packed(group(4, "float", 16, [EXPERTS]), group(8, "float", None, ["re:.*self_attn.*"])), "fp8_fp4"),
    (packed(group(8, "float")), "fp8"),
    (
        packed({"weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [64, 64]}}),
        "FP8 in blocks of [64, 64] of compressed-tensors",
    ),
    (packed(group(4, "float", 16), ignore=["re:.*experts.*"]), "NVFP4 of compressed-tensors, without routed experts"),
    (packed(group(4, "float", 16, [EXPERTS]), group(8, "float", None, ["*layers.2*"])), "fp8_fp4"),
    (
        packed(group(8, "float", None, ["*layers.2*"]), group(4, "float", 16, [EXPERTS])),
        "FP8 and NVFP4 of compressed-tensors, with routed experts in fp8_plain and nvfp4",
    ),
    (packed(group(4, "int", 32, ["FusedMoE"])), "INT4 by 32 of compressed-tensors, for modules of the class FusedMoE"),
    (
        packed(group(8, "float", None, ["re:.*self_attn.*"]), group(4, "float", 16, ["FusedMoE"])),
        "NVFP4 of compressed-tensors, for modules of the class FusedMoE",
    ),
    (
        packed(group(4, "int", 32, ["re:.*block_sparse.*"]), ignore=["lm_head"]),
        "INT4 by 32 of compressed-tensors, for re:.*block_sparse.*, which no module is called",
    ),
    (packed(group(4, "int", 32, [])), "INT4 by 32 of compressed-tensors, for an empty list, which no module is called"),
    (packed(group(4, "int", 32, [EXPERTS]), ignore=["re:.*"]), "bf16"),
    (packed(group(4, "int", 32), ignore=["re:.*gate.*"]), "w4a16"),
    (MIXED | {"quantized_layers": {"decoder.0": {"quant_algo": "FP8"}}}, "MIXED_PRECISION of ModelOpt, for decoder.0"),
    (MIXED | {"quantized_layers": {"*self_attn*": {"quant_algo": "FP8"}, "*.experts*": NVFP4}}, "fp8_fp4"),
    (MIXED | {"quantized_layers": {"*": {"quant_algo": "FP8_BLOCK_SCALES"}}}, "fp8"),
    (NVFP4 | {"quant_method": "MODELOPT", "ignore": ["lm_head"]}, "fp4"),
    (packed(group(8, "int")), "8-bit int of compressed-tensors"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq, 4 bits by 128"),
    ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "awq, 4 bits by 64"),
    ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
    ({"quant_method": 5}, "of another form"),
]


@pytest.mark.parametrize(("said", "expected"), FORMS, ids=[str(index) for index in range(len(FORMS))])
def test_a_form_is_a_precision_or_is_called_by_its_name(said, expected, tmp_path):
    """A form that no precision says is named as its makers name it, so that its user knows what is meant."""
    (tmp_path / "config.json").write_text(json.dumps(without(SMALL) | {"quantization_config": said}))
    found = read_model_config(tmp_path / "config.json", "config.json")

    assert (found.other_quantization or found.model.weights_in).startswith(expected)


@pytest.mark.parametrize(
    ("said", "words", "other_method"),
    [
        (NVFP4 | {"ignore": ["lm_head"]}, "NVFP4", None),
        (FP8_BLOCKS, "FP8 in blocks of 128 x 128", None),
        ({"quant_algo": "FP8", "ignore": ["lm_head"]}, "FP8 of ModelOpt", "modelopt"),
        (packed(group(8, "float")), "FP8 of compressed-tensors", "compressed-tensors"),
        (packed(group(4, "float", 16)), "NVFP4 of compressed-tensors", "compressed-tensors"),
        (packed(group(4, "int", 32, [EXPERTS])), "INT4 experts by 32 beside BF16", None),
        (packed(group(4, "int", 128, [EXPERTS])), "INT4 by 128 of compressed-tensors", None),
        (packed(group(4, "float", 32, [EXPERTS])), "MXFP4 of compressed-tensors", "compressed-tensors"),
    ],
)
def test_the_makers_quant_method_is_kept(said, words, other_method):
    """Engines refuse a checkpoint if their option differs from its quant_method."""
    found = model_of(without(SMALL) | {"quantization_config": said}, "config.json").quantisation

    assert (found.words, found.other_method) == (words, other_method)


def test_what_experts_are_in_may_differ_from_the_rest():
    """NVFP4 experts beside MXFP8: 0.5625 and 1.03125 bytes a weight; what no list names stays in BF16."""
    listed = {f"model.layers.{layer}.mlp.experts": {"quant_algo": "NVFP4"} for layer in range(1, 6)}
    listed |= {f"model.layers.{layer}.self_attn.o_proj": {"quant_algo": "MXFP8"} for layer in range(6)}
    found = weights(SMALL, MIXED | {"quantized_layers": listed | {"lm_head": {"quant_algo": "NVFP4"}}})
    plain = weights_of(model_of(without(SMALL), "config.json"), "bf16")

    assert found.slot == 5 * 3 * 1024 * 256 * NVFP4_BYTES
    assert plain.attention - found.attention == 6 * VALUE * 1024 * (BF16_BYTES - 1.03125)
    assert plain.embedding - found.embedding == 129_280 * 1024 * (BF16_BYTES - NVFP4_BYTES)
    assert (found.dense, found.shared) == (plain.dense, plain.shared)


def test_an_mtp_module_is_the_layer_after_the_last():
    """DeepSeek-V3.1's is left out as `model.layers.61*`, Qwen's as `mtp*`."""
    plain, left_out = (
        model_of(without(SMALL) | {"quantization_config": NVFP4 | {"ignore": ["lm_head", *more]}}, "config.json")
        for more in ((), ("model.layers.6*",))
    )
    more = [weights_of(each.with_drafts(), "fp4").slot - weights_of(each, "fp4").slot for each in (plain, left_out)]

    assert more == [3 * 1024 * 256 * NVFP4_BYTES, 3 * 1024 * 256 * BF16_BYTES]


def named(name, family="deepseek_v3"):
    """Return every spelling of a module of a layer."""
    place, module = re.match(r"(.*?layers\.\d+)\.(.*)", name).groups()
    return spell_module(module, [place], family)


@pytest.mark.parametrize(
    ("entry", "module", "is_covered"),
    [
        ("gate", "model.layers.3.mlp.gate_proj", False),
        ("mlp.gate", "model.layers.3.mlp.gate", True),
        ("self_attn", "model.layers.3.self_attn.q_proj", True),
        ("model.layers.*.self_attn", "model.layers.3.self_attn.q_proj", True),
        ("model.layers.1", "model.layers.10.self_attn.q_proj", False),
        ("model.layers.1.*", "model.layers.10.self_attn.q_proj", False),
        ("model.layers.1*", "model.layers.10.self_attn.q_proj", True),
        ("*self_attn*", "model.layers.3.self_attn.q_proj", True),
        ("*.attn.*", "model.layers.3.self_attn.q_proj", True),
        ("layers.3*", "model.layers.3.self_attn.q_proj", True),
        ("layers.3.ffn.experts.7.w1", "model.layers.3.mlp.experts.0.gate_proj", True),
        ("model.layers.3.attn*", "model.layers.3.self_attn.q_proj", True),
        ("*experts.*.w[13]", "model.layers.3.mlp.experts.0.gate_proj", True),
        ("*experts.*.w[13]", "model.layers.3.mlp.experts.0.down_proj", False),
        ("model.layers.3.mlp.experts.gate_up_proj", "model.layers.3.mlp.experts.0.up_proj", True),
        ("model.layers.3.mlp.experts.gate_up_proj", "model.layers.3.mlp.experts.0.down_proj", False),
        ("re:.*experts\\.gate_up_proj", "model.layers.3.mlp.experts.0.up_proj", True),
        ("*.qkv_proj*", "model.layers.3.self_attn.q_proj", True),
        ("*up_proj*", "model.layers.3.mlp.experts.0.gate_proj", False),
        ("re:.*v_proj", "model.layers.3.self_attn.q_proj", False),
        ("*in_proj_b*", "model.layers.3.linear_attn.in_proj_a", False),
        ("*in_proj_ba", "model.layers.3.linear_attn.in_proj_a", True),
        ("model.layers.3.linear_attn.in_proj_qkvz", "model.layers.3.linear_attn.in_proj_z", True),
        ("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "model.layers.0.mlp.up_proj", True),
        ("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "model.layers.3.mlp.experts.0.up_proj", False),
        ("re:^(?!.*experts).*", "model.layers.3.mlp.experts.0.up_proj", False),
        ("re:^(?!.*experts).*", "model.layers.3.self_attn.o_proj", True),
        ("re:^(?!.*self_attn).*", "model.layers.3.self_attn.o_proj", False),
        ("re:^(?!.*self_attn).*", "model.layers.3.mlp.gate_proj", True),
        ("re:^(?!model\\.language_model).*", "model.layers.3.mlp.gate_proj", False),
        ("*mlp.experts.[0-9]*.gate_proj", "model.layers.3.mlp.experts.0.gate_proj", True),
        ("re:self_attn", "model.layers.3.self_attn.q_proj", False),
        ("mtp*", "mtp.layers.0.self_attn.q_proj", True),
        ("*", "model.layers.3.self_attn.q_proj", True),
        ("lm_head", "model.layers.3.self_attn.q_proj", False),
    ],
)
def test_an_entry_covers_modules_as_engines_read_it(entry, module, is_covered):
    """A glob is of the whole name, a regular expression from its beginning, any other of whole parts."""
    assert ModuleNames([entry]).cover(named(module)) is is_covered


@pytest.mark.parametrize(
    ("family", "entry", "module", "is_covered"),
    [
        ("qwen3_5_moe_text", "re:.*attn.*", "linear_attn.in_proj_qkv", True),
        ("qwen3_5_moe_text", "*attn*", "linear_attn.out_proj", True),
        ("qwen3_5_moe_text", "*attn.*", "linear_attn.in_proj_a", True),
        ("qwen3_5_moe_text", "*.attn.*", "self_attn.q_proj", False),
        ("qwen3_5_moe_text", "re:.*experts.*", "mlp.shared_experts.up_proj", False),
        ("qwen3_5_moe_text", "re:.*experts.*", "mlp.experts.0.up_proj", True),
        ("qwen3_next", "re:.*shared_expert\\..*", "mlp.shared_experts.up_proj", True),
        ("glm_moe_dsa", "re:.*shared_expert\\..*", "mlp.shared_experts.up_proj", False),
        ("glm_moe_dsa", "re:.*experts.*", "mlp.shared_experts.up_proj", True),
        ("minimax_m2", "*block_sparse_moe.experts.*.w[13]", "mlp.experts.0.up_proj", True),
        ("minimax_m2", "*block_sparse_moe.experts.*.w[13]", "mlp.experts.0.down_proj", False),
        ("qwen3_moe", "*.w[13]", "mlp.experts.0.up_proj", False),
        ("deepseek_v4", "*.indexer.q_b_proj", "self_attn.indexer.wq_b", True),
        ("deepseek_v4", "layers.3.attn.indexer.wq_b", "self_attn.indexer.wq_b", True),
    ],
)
def test_a_module_has_the_names_of_its_family(family, entry, module, is_covered):
    """Linear attention is `linear_attn`, and Qwen's shared expert is none of `experts`."""
    assert ModuleNames([entry]).cover(spell_module(module, ["model.layers.3"], family)) is is_covered


# As published: in llm-compressor's recipes, and the files of those who use it
PUBLISHED_EXPRESSIONS = [
    "re:.*self_attn.*",
    "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
    "re:^(?!.*experts).*",
    "re:.*self_attn.(kv_a_proj_with_mqa|q_a_proj)$",
    "re:^model\\.layers\\.[0-2]\\..*",
    "re:.*layers\\.\\d+\\..*(w[1-3]|gate_proj|up_proj|down_proj)$",
    "re:.*layers\\.(56|57|58|59|60|61|62|63)\\.mlp\\..*(gate|up|down)_proj$",
    "re:.*layers\\.([4-9]|\\d\\d+)\\.mlp\\.experts\\..*",
    "re:^model\\.layers\\.4[0-7]\\.mlp\\.experts(\\..*)?$",
    f"re:^model\\.layers\\.({'|'.join(map(str, range(61)))})\\.(self_attn\\.(q_proj|k_proj)|mlp\\.(up_proj))$",
    "re:.*model.*layers.*mlp.experts",
]


@pytest.mark.parametrize("expression", PUBLISHED_EXPRESSIONS)
def test_published_expressions_are_read(expression):
    """The bound on the work is above that of every published file."""
    read_so = model_of(
        without(SMALL) | {"quantization_config": NVFP4 | {"ignore": [expression, "lm_head"]}}, "config.json"
    )

    assert isinstance(read_so, Model)


@pytest.mark.parametrize(
    ("patterns", "reason"),
    [
        (["re:(a|a)*b"], "repeats a group"),
        (["re:(a+){9}b"], "repeats a group"),
        (["re:(?i)a"], "a group of a rare kind"),
        (["re:.*.*.*.*.*x"], "can match in more than 524,288 ways"),
        (["re:" + "(?:.|[a-z_.0-9])" * 24 + "Z"], "can match in more than 524,288 ways"),
        (["re:" + "(?:.|..)" * 28], "can match in more than 524,288 ways"),
        (["re:(.*)(.*)\\1\\2"], "can match in more than 524,288 ways"),
        (["re:" + "()" * 28], "can match in more than 524,288 ways"),
        (["re:" + ".?" * 28 + "Z"], "can match in more than 524,288 ways"),
        ([f"re:.*.*Q{n}" for n in range(3_900)], "and at most 536,870,912 are tried"),
        ([f"model.layers.1.{'a' * 400}{n}*" for n in range(400)], "and at most 131,072 are read"),
        (["*a" * 800 + "b"], "has more than 512 characters"),
        (["re:" + "(" * 9_999], "has more than 512 characters"),
        (["re:("], "is no regular expression"),
        (["re:[z-a]"], "is no regular expression"),
        (["re:a{99999999999999}"], "is no regular expression"),
    ],
)
def test_patterns_end_soon_or_are_refused(patterns, reason):
    """S314: they would be compiled for minutes, or tried for hours on names of fifty characters."""
    found = model_of(without(SMALL) | {"quantization_config": NVFP4 | {"exclude_modules": patterns}}, "config.json")

    assert isinstance(found, Finding)
    assert found.rule.startswith("S314")
    assert reason in found.reason


def test_too_long_lists_are_refused():
    """S314: a file of 16 MiB has room for 100,000 groups, and each would be matched with every module."""
    groups = [group(4, "float", 16, ["lm_head"]) for _ in range(12_000)]
    found = model_of(without(SMALL) | {"quantization_config": packed(*groups)}, "config.json")

    assert found.reason.startswith("its lists can match")


EXPRESSIONS = st.recursive(
    st.sampled_from(["a", ".", "[ab]", "a?", "a*", ".*", "b+", "a{1,3}", "\\w", ""]),
    lambda inner: (
        st.tuples(st.just("and"), st.lists(inner, min_size=2, max_size=4))
        | st.tuples(st.sampled_from(["or", "maybe"]), st.lists(inner, min_size=1, max_size=3))
    ),
    max_leaves=6,
)


def written(tree):
    """Return an expression as text."""
    if isinstance(tree, str):
        return tree
    kind, inner = tree
    if kind == "and":
        return "".join(map(written, inner))
    return f"({'|'.join(map(written, inner))}){'?' if kind == 'maybe' else ''}"


def ends(tree, name, start):
    """Return where each way ends in which an expression matches `name` from `start` on."""
    if isinstance(tree, str):
        return [end for end in range(start, len(name) + 1) if re.fullmatch(tree, name[start:end])]
    kind, inner = tree
    if kind == "and":
        found = [start]
        for each in inner:
            found = [end for begin in found for end in ends(each, name, begin)]
        return found
    return [end for each in inner for end in ends(each, name, start)] + [start] * (kind == "maybe")


@given(EXPRESSIONS, st.text("ab", max_size=8))
def test_an_expression_matches_in_no_more_ways_than_are_counted(tree, name):
    """The slow reference goes every way; the end of the name keeps a last repetition from having but one."""
    try:
        counted = ModuleNames([f"re:{written(tree)}$"]).num_ways - ModuleNames([]).num_ways
    except Unreadable:
        return

    assert len(ends(tree, name, 0)) <= counted


def test_names_are_shorter_than_a_repetition_is_counted():
    """The layers of a model have three digits at most."""
    longest = "model.layers.999"
    models = [model_of(without(each), "config.json") for each in PUBLISHED.values()]
    matrices = {(each.module, model.model_type) for model in models for each, _ in model.matrices() if each.module}
    names = [
        name
        for module, family in matrices
        for each in [spell_module(module, [longest], family)]
        for name in (*each.own, *each.fused)
    ]

    assert max(map(len, names)) < NAME_WAYS


def test_names_of_experts_are_one():
    """Mixed precision names each expert of each layer."""
    experts = ModuleNames(f"layers.{n % 9}.ffn.experts.{n}.w1*" for n in range(9_000))

    assert experts.cover(named("model.layers.8.mlp.experts.0.gate_proj"))


BESIDE = {"quantization": NVFP4 | {"exclude_modules": ["lm_head"]}, "producer": {"name": "modelopt"}}


def read(folder, **files):
    """Write SMALL without a quantization_config and these files beside it, and read it."""
    (folder / "config.json").write_text(json.dumps(without(SMALL)))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return read_model_config(folder / "config.json", "config.json")


def test_the_file_beside_config_says_what_that_does_not(tmp_path):
    """It is an input of the plan, by its digest."""
    found = read(tmp_path, hf_quant_config=BESIDE)

    assert found.model.weights_in == "fp4"
    assert found.model.quantisation.said_in == "hf_quant_config.json"
    assert list(found.beside) == ["hf_quant_config.json"]


@pytest.mark.parametrize(
    ("said", "kv"),
    [
        (NVFP4 | {"kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "fp8"}, "fp8"),
        (NVFP4 | {"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, "fp8"),
        (NVFP4 | {"kv_cache_quant_algo": None}, None),
        (NVFP4 | {"kv_cache_quant_algo": "NVFP4"}, None),
        (NVFP4 | {"kv_cache_quant_algo": ["FP8"], "kv_cache_scheme": "FP8"}, None),
        ({"quant_method": "gptq", "bits": 4, "kv_cache_quant_algo": "FP8"}, None),
    ],
)
def test_what_makers_say_for_kv_is_known(said, kv, tmp_path):
    """In config.json and in the file beside it, whatever weights are in; only ModelOpt's files are read for it."""
    beside = read(tmp_path, hf_quant_config={"producer": {}, "quantization": said})

    assert model_of(without(SMALL) | {"quantization_config": said}, "config.json").quantisation.kv == kv
    assert beside.model.quantisation.kv == kv


def test_config_is_read_before_the_file_beside_it(tmp_path):
    """So engines do it; a file that is not read is no input."""
    (tmp_path / "hf_quant_config.json").write_text("torn")
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    found = read_model_config(tmp_path / "config.json", "config.json")

    assert (found.model.weights_in, found.beside) == ("fp8", {})


@pytest.mark.parametrize(("name", "called"), [("quantize_config", "gptq, 4 bits"), ("quant_config", "awq, 4 bits")])
def test_other_makers_have_files_of_their_own(name, called, tmp_path):
    """Their forms have no precision here, and are called by their names."""
    assert read(tmp_path, **{name: {"bits": 4}}).other_quantization == called


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{torn", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ([], "it is of type list, not an object"),
        ({"quantization": 5}, "quantization is of type int, not an object"),
        ({"quantization": {"quant_algo": "NVFP4", "exclude_modules": "lm_head"}}, "exclude_modules is of type str"),
        ({"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["a", 5]}}, "exclude_modules[1] is of type int"),
        ({"quantization": {"quant_algo": ["NVFP4"]}}, "quant_algo is of type list, not a name"),
        ({"quantization": MIXED}, "quantized_layers is not an object of module names"),
        ({"quantization": MIXED | {"quantized_layers": {"a": 5}}}, "quantized_layers.a has no quant_algo"),
    ],
)
def test_a_broken_file_beside_config_is_refused_with_its_place(content, reason, tmp_path):
    """S314 names the file and the key."""
    found = read(tmp_path, hf_quant_config=content)

    assert isinstance(found, Finding)
    assert found.rule == "S314 must come with a hf_quant_config.json that can be read"
    assert reason in found.reason


def test_a_pipe_beside_config_is_not_waited_for(tmp_path):
    """Nobody writes to it."""
    os.mkfifo(tmp_path / "hf_quant_config.json")

    assert read(tmp_path).reason == "it is not a file"
