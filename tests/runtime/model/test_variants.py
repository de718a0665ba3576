"""Every variant of the DeepSeek family computes what transformers' own class computes.

Small random checkpoints that between them vary every field of `config.json` that the computation reads: V3 (R1 and
V3.1 have its config), V2, V2-Lite, both ways to write rotary positions. transformers reads the same files.
"""

import json
from collections import defaultdict
from dataclasses import asdict, fields
from itertools import product

import pytest
import torch
from transformers import DeepseekV2ForCausalLM, DeepseekV3ForCausalLM

from runtime.errors import CheckpointError
from runtime.expert_parallel.group import SoloGroup
from runtime.model.config import ModelConfig, read_model_config
from runtime.model.engine import Engine, EngineConfig
from runtime.model.rope import Yarn
from runtime.offline import greedy
from tests.runtime.closeness import LOGITS_TOLERANCE, count_undecided, relative_error, transformers_choices
from tests.runtime.random_checkpoints import V2, V2_LITE, V3, shapes, write_checkpoint

MAX_TOKENS = 12
PROMPT_LENGTHS = (1, 7, 20, 45)  # past the 16 positions that the stretched variants began with

MIN_YARN = {"factor": 4, "original_max_position_embeddings": 16}
YARN = MIN_YARN | {"beta_fast": 32, "beta_slow": 1}
OTHER_YARN = MIN_YARN | {"beta_fast": 1.5, "beta_slow": 0.4}
V3_YARN = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}
V2_YARN = YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}
YARN_OF_ANOTHER_LENGTH = {"factor": 2.5, "original_max_position_embeddings": 24, "beta_fast": 2.0, "beta_slow": 0.5}
# Of sizes that tensors have, no two alike: none can stand in for another.
OTHER_SIZES = {
    "vocab_size": 104, "hidden_size": 40, "intermediate_size": 56, "moe_intermediate_size": 28, "num_hidden_layers": 4,
    "first_k_dense_replace": 2, "num_attention_heads": 5, "num_key_value_heads": 5, "q_lora_rank": 14,
    "kv_lora_rank": 18, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 10, "n_routed_experts": 24,
    "n_shared_experts": 3, "n_group": 8, "topk_group": 3, "num_experts_per_tok": 7, "max_position_embeddings": 70,
    "rope_theta": 700.0,
    "rope_scaling": YARN_OF_ANOTHER_LENGTH | {"type": "yarn", "mscale": 0.6, "mscale_all_dim": 1.2},
}  # fmt: skip


def rename_positions(config):
    """Return the config with its positions written as newer tools write them."""
    theta, scaling = config["rope_theta"], config["rope_scaling"] or {"type": "default"}
    others = {key: value for key, value in config.items() if key not in ("rope_theta", "rope_scaling")}
    parameters = {key: value for key, value in scaling.items() if key != "type"}
    return others | {"rope_parameters": parameters | {"rope_type": scaling["type"], "rope_theta": theta}}


VARIANTS = {
    "V3": V3 | {"rope_scaling": V3_YARN | {"type": "yarn"}},
    "V3, newer file": rename_positions(V3 | {"rope_scaling": V3_YARN | {"type": "yarn"}}),
    "V3, not stretched, weights not normalised": V3 | {"norm_topk_prob": False, "routed_scaling_factor": 1.0},
    "V3, newer file, one group, other norms": rename_positions(
        V3 | {"n_group": 1, "topk_group": 1, "rms_norm_eps": 1e-2, "rope_theta": 500.0}
    ),
    "V3, query not compressed": V3 | {"q_lora_rank": None, "first_k_dense_replace": 0, "v_head_dim": 12},
    "V3, all kinds of sharpening": V3
    | {"rope_scaling": OTHER_YARN | {"type": "yarn", "mscale": 0.7, "mscale_all_dim": 1.3}},
    "V3, sharpening left out": V3 | {"rope_scaling": {"type": "yarn"} | MIN_YARN},
    "V3, all groups eligible, two dense layers": V3
    | {"topk_group": 4, "first_k_dense_replace": 2, "num_experts_per_tok": 3, "n_shared_experts": 2},
    "V3, every size another": V3 | OTHER_SIZES,
    "V3, pairs of both halves": V3 | {"rope_interleave": False, "rope_scaling": V3_YARN | {"type": "yarn"}},
    "V3, head tied to embedding": V3 | {"tie_word_embeddings": True},
    "Kimi-K2": V3
    | {"model_type": "kimi_k2", "n_group": 1, "topk_group": 1, "n_routed_experts": 24}
    | {"rope_theta": 50000.0, "rope_scaling": V3_YARN | {"type": "yarn", "beta_fast": 1.0}},
    "V2": V2 | {"rope_scaling": V2_YARN | {"type": "yarn"}},
    "V2, not stretched, one group eligible": V2 | {"topk_group": 1, "routed_scaling_factor": 1.5, "rms_norm_eps": 1e-2},
    "V2, newer file, every size another, tied": rename_positions(V2 | OTHER_SIZES | {"tie_word_embeddings": True}),
    "V2-Lite": V2_LITE | {"rope_scaling": V2_YARN | {"type": "yarn"}},
    "V2-Lite, newer file": rename_positions(
        {key: value for key, value in V2_LITE.items() if key != "scoring_func"} | {"n_group": None, "topk_group": None}
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def token_prompts():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(V3["vocab_size"], (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]


@pytest.fixture(scope="module", params=VARIANTS)
def checkpoint(request, tmp_path_factory):
    """Return a folder with the variant's checkpoint, in two shards."""
    number = list(VARIANTS).index(request.param)
    return write_checkpoint(
        tmp_path_factory.mktemp("variant") / "checkpoint", VARIANTS[request.param], number, num_shards=2
    )


@pytest.fixture(scope="module")
def transformers_model(checkpoint):
    """Return transformers' model of the checkpoint."""
    document = json.loads((checkpoint / "config.json").read_text())
    kind = DeepseekV2ForCausalLM if document["model_type"] == "deepseek_v2" else DeepseekV3ForCausalLM
    config = kind.config_class.from_dict(document | {"model_type": kind.config_class.model_type})
    return kind.from_pretrained(checkpoint, config=config, dtype=torch.float32).eval()


def compute_ours(folder):
    config = read_model_config(folder)
    return Engine(
        EngineConfig(folder, [list(range(config.n_routed_experts))] * config.num_moe_layers, torch.float32), SoloGroup()
    )


@torch.inference_mode()
def compute_logits(model, tokens):
    return model(torch.tensor([tokens])).logits[0]


def test_logits_are_transformers_logits(checkpoint, transformers_model, token_prompts):
    """Logits equal transformers' at every position of every prompt, to 1e-4 of the largest."""
    found = compute_ours(checkpoint).prompt_logits(token_prompts)
    worst = max(
        relative_error(mine, compute_logits(transformers_model, tokens))
        for mine, tokens in zip(found, token_prompts, strict=True)
    )
    print(f"largest relative logit error: {worst:.1e}")

    assert worst < LOGITS_TOLERANCE


def test_greedy_text_is_transformers_text(checkpoint, transformers_model, token_prompts):
    """Decoding over the latent cache chooses transformers' most likely token at every position."""
    outputs = greedy(compute_ours(checkpoint), SoloGroup(), token_prompts, MAX_TOKENS, set())
    logits = [
        compute_logits(transformers_model, prompt + output)
        for prompt, output in zip(token_prompts, outputs, strict=True)
    ]

    assert count_undecided(token_prompts, outputs, transformers_choices(token_prompts, outputs, logits), logits) <= 1


FIXED_BY_TYPE = {  # what the other type is there for, or `test_what_is_not_computed_is_refused_by_name` refuses
    "deepseek_v3": {"scoring_func", "topk_method"},
    "deepseek_v2": {"scoring_func", "norm_topk_prob", "rope_interleave"},
}
IN_FP8_ONLY = {"power_of_two_scales"}  # transformers computes in FP32: `test_loading.py`


@pytest.mark.parametrize("model_type", FIXED_BY_TYPE)
def test_between_them_the_variants_vary_every_field(model_type, tmp_path):
    """Every field that the computation reads has two values among the variants of its model type."""
    values = defaultdict(set)
    for config in [config for config in VARIANTS.values() if config["model_type"] == model_type]:
        (tmp_path / "config.json").write_text(json.dumps(config))
        read = asdict(read_model_config(tmp_path))
        yarn = read.pop("yarn")
        values["yarn"].add(yarn is not None)
        for field, value in [*read.items(), *(yarn or {}).items()]:
            values[field].add(value)
    all_fields = {field.name for kind in (ModelConfig, Yarn) for field in fields(kind)}

    assert {field for field in all_fields if len(values[field]) < 2} == FIXED_BY_TYPE[model_type] | IN_FP8_ONLY


def test_both_ways_to_write_positions_are_among_them():
    """Each model type writes positions both ways, each with and without YaRN."""
    written = {
        (config["model_type"], name, bool(parameters) and parameters.get("rope_type", parameters.get("type")) == "yarn")
        for config in VARIANTS.values()
        if config["model_type"] in FIXED_BY_TYPE
        for name, parameters in [
            ("rope_parameters", config["rope_parameters"])
            if "rope_parameters" in config
            else ("rope_scaling", config["rope_scaling"])
        ]
    }

    assert written == set(product(FIXED_BY_TYPE, ("rope_parameters", "rope_scaling"), (False, True)))


def test_the_variants_differ(tmp_path, token_prompts):
    """Variants with weights of the same shapes have different logits, so every field counts."""
    configs = [V3, *(VARIANTS[name] for name in VARIANTS if name.startswith("V3, "))]
    configs = [config for config in configs if shapes(config) == shapes(V3)]
    assert len(configs) == 7
    engines = [compute_ours(write_checkpoint(tmp_path / str(number), config)) for number, config in enumerate(configs)]
    logits = [engine.prompt_logits(token_prompts[-1:])[0] for engine in engines]

    for number, one in enumerate(logits):
        for other in logits[number + 1 :]:
            assert (one - other).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topk_method": "greedy"}, "topk_method is 'greedy', this runtime computes only 'noaux_tc'"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax', this runtime computes only 'sigmoid'"),
        ({"model_type": "deepseek_v2", "scoring_func": "softmax", "topk_method": "greedy"}, "norm_topk_prob is True"),
        ({"model_type": "llama"}, "model_type is 'llama', this runtime computes only 'deepseek_v3' and 'kimi_k2' and"),
        ({"rope_interleave": None}, "rope_interleave is None, this runtime computes only True and False"),
        (
            V2 | {"rope_interleave": False, "scoring_func": "softmax"},
            "rope_interleave is False, this runtime computes only True",
        ),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', this runtime computes only False and True"),
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2"),
        ({"n_group": None}, "n_group is None, a number is needed"),
        ({"n_group": 3}, "n_group (3) does not divide n_routed_experts (16)"),
        ({"n_group": 16}, "n_group (16) leaves less than two of 16 experts in a group"),
        ({"topk_group": 1, "num_experts_per_tok": 5}, "num_experts_per_tok (5) is more than the 4 eligible experts"),
        ({"n_group": 0}, "n_group is 0, a whole number of at least 1 is needed"),
        ({"topk_group": 5}, "topk_group (5) is more than n_group (4)"),
        ({"hidden_size": 64.5}, "hidden_size is 64.5, a whole number of at least 1 is needed"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok is 0, a whole number of at least 1 is needed"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1,000,000,000, a whole number of at most 10,000 is"),
        ({"vocab_size": 2**40}, "vocab_size is 1,099,511,627,776, a whole number of at most 2,147,483,647 is needed"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace is -1, a whole number of at least 0 is needed"),
        ({"model_type": ["deepseek_v3"]}, "model_type is ['deepseek_v3'], this runtime computes only"),
        ({"rope_theta": None}, "rope_theta is None, a positive number is needed"),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, "rope_scaling is of type 'linear'"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "rope_scaling.original_max_position_embeddings is None"),
        ({"rope_scaling": V3_YARN | {"type": "yarn", "mscale": 0}}, "needs both mscale and mscale_all_dim"),
        ({"rope_scaling": V3_YARN | {"type": "yarn", "truncate": False}}, "rope_scaling has ['truncate']"),
        ({"rope_scaling": V3_YARN, "rope_parameters": V3_YARN}, "has both rope_scaling and rope_parameters"),
        ({"rope_scaling": 4}, "rope_scaling is 4, an object is needed"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_computed_is_refused_by_name(tmp_path, changes, words):
    """A value that is not computed is refused with its key and the values that are."""
    (tmp_path / "config.json").write_text(json.dumps(V3 | changes))
    with pytest.raises(CheckpointError) as error:
        read_model_config(tmp_path)

    assert words in str(error.value)
    assert "\n" not in str(error.value)
