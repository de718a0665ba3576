"""Parameters by part: what a family's file makes of a config against transformers' own model of it, on no device."""

import random
from collections import Counter

import pytest

from planner.facts.model import Model
from planner.families import model_of
from planner.families.module_names import ModuleNames, spell_module
from planner.families.registry import FAMILIES, TOWERS
from tests.planner.families.model_parts import parameters_of

pytestmark = pytest.mark.slow  # torch and transformers take seconds to import, so the functions below do it

# Parameters of transformers' default configuration, in billions, where that is a published model.
BILLIONS = {
    "deepseek_v3": 671.0,
    "deepseek_v32": 671.9,
    "deepseek_v4": 284.3,
    "minimax_m2": 228.7,
    "gpt_oss": 116.8,
    "qwen3_next": 79.7,
    "mixtral": 46.7,
}

# Families that transformers knows by another name, or only beside a tower.
CALLED = {"kimi_k2": "deepseek_v3", "minimax_m3": "minimax_m3_vl_text", "qwen3_vl_moe_text": "qwen3_moe"}

# What transformers' default leaves out, by family.
GIVEN = {
    "deepseek_v2": {"num_experts_per_tok": 6, "first_k_dense_replace": 1},
    "qwen3_moe": {"head_dim": 128},
    "qwen3_vl_moe_text": {"head_dim": 128},
    "glm4_moe": {"head_dim": 128},
}

# Keys that a configuration is varied by, where its family has them.
VARIED = {
    "hidden_size": (256, 384, 640),
    "vocab_size": (1000, 5003),
    "num_hidden_layers": (5, 8, 11),
    "intermediate_size": (192, 320),
    "moe_intermediate_size": (64, 96),
    "dense_intermediate_size": (192, 320),
    "shared_intermediate_size": (64, 128),
    "shared_expert_intermediate_size": (64, 128),
    "num_attention_heads": (4, 8, 16),
    "n_routed_experts": (16, 32),
    "num_experts": (16, 32),
    "num_local_experts": (16, 32),
    "num_experts_per_tok": (2, 4),
    "n_shared_experts": (1, 2),
    "first_k_dense_replace": (0, 1, 3),
    "n_group": (1, 4),
    "topk_group": (1,),
    "q_lora_rank": (48, 96),
    "kv_lora_rank": (64, 32),
    "qk_nope_head_dim": (32, 16),
    "qk_rope_head_dim": (16, 8),
    "v_head_dim": (32, 64),
    "index_n_heads": (2, 4),
    "index_head_dim": (32, 64),
    "index_topk_freq": (1, 2, 4),
    "num_key_value_heads": (1, 2, 4),
    "head_dim": (32, 64),
    "use_qk_norm": (False, True),
    "attention_bias": (False, True),
    "tie_word_embeddings": (False, True),
    "linear_conv_kernel_dim": (2, 4),
    "linear_key_head_dim": (16, 32),
    "linear_value_head_dim": (16, 32),
    "linear_num_key_heads": (2, 4),
    "linear_num_value_heads": (4, 8),
    "full_attention_interval": (2, 4),
    "o_groups": (2, 4),
    "o_lora_rank": (32, 64),
    "hc_mult": (2, 4),
    "num_hash_layers": (0, 3),
    "compress_ratios": ([0, 4, 128, 4, 128] * 3, [128, 0, 4, 4, 0] * 3),
    "qkv_bias": (False, True),
    "mlp_only_layers": ([0, 1], [0, 1], []),
}
EXTRA = {  # keys that transformers reads and does not list
    "deepseek_v4": ("num_hash_layers", "compress_ratios"),
    "glm_moe_dsa": ("index_topk_freq",),
    "qwen3_next": ("full_attention_interval",),
    "qwen3_5_moe": ("full_attention_interval",),
}
LATENT = {"attention_bias": (False,)}  # no latent family was published with biases
ONLY = dict.fromkeys(
    ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25", "glm_moe_dsa", "glm4_moe_lite"), LATENT
)
ONLY["deepseek_v4"] = LATENT | {"n_shared_experts": (1,), "q_lora_rank": (48, 96), "head_dim": (64, 128)}

TOWER = {
    "kimi_k25": {"hidden_size": (32, 64), "intermediate_size": (48, 80), "num_hidden_layers": (1, 3)},
    "minimax_m3_vl": {"hidden_size": (64, 128), "intermediate_size": (48, 80), "num_hidden_layers": (1, 3)},
    "qwen3_vl_moe": {
        "hidden_size": (32, 64),
        "intermediate_size": (48, 80),
        "depth": (1, 3),
        "out_hidden_size": (64, 256),
        "deepstack_visual_indexes": ([0], [0, 1, 2]),
    },
    "qwen3_5_moe": {
        "hidden_size": (32, 64),
        "intermediate_size": (48, 80),
        "depth": (1, 3),
        "out_hidden_size": (64, 256),
    },
}


@pytest.mark.parametrize("family", [*FAMILIES, *TOWERS])
def test_the_default_model_has_the_parameters_of_transformers(family):
    """Part by part, and in all as many as are published."""
    config = configured(family, GIVEN.get(family, {}))
    found = parameters_of(planned(config, family))

    assert found == counted(config)
    if family in BILLIONS:
        assert sum(found.values()) / 1e9 == pytest.approx(BILLIONS[family], abs=0.05)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", [*FAMILIES, *TOWERS])
def test_varied_models_have_the_parameters_of_transformers(family, seed):
    """Every key that shapes depend on is drawn."""
    from transformers import AutoConfig

    draw = random.Random(f"{family} {seed}")
    known = AutoConfig.for_model(CALLED.get(family, family)).get_text_config().to_dict()
    keys = [*known, *EXTRA.get(family, ()), "head_dim"]
    choices = {key: values for key, values in (VARIED | ONLY.get(family, {})).items() if key in keys}
    drawn = {key: draw.choice(values) for key, values in choices.items()}
    tower = {key: draw.choice(values) for key, values in TOWER.get(family, {}).items()}
    config = configured(family, GIVEN.get(family, {}) | drawn, tower)

    assert parameters_of(planned(config, family)) == counted(config)


@pytest.mark.parametrize("family", [*FAMILIES, *TOWERS])
def test_modules_are_called_as_in_transformers(family):
    """Lists of quantised checkpoints have these names: a module with another is taken for one that no list names."""
    config = configured(family, GIVEN.get(family, {}))
    model = planned(config, family)
    known = ModuleNames([name.removesuffix(".weight") for name, _ in parameters(config)])
    ours = {(i, each.module) for i, layer in enumerate(model.layers) for each in layer.matrices(1) if each.module}
    names = {each: spell_module(each[1], [f"model.layers.{each[0]}"], model.model_type) for each in sorted(ours)}

    assert [each for each, name in names.items() if not known.cover(name)] == []


def configured(family, text, tower=None):
    """Return transformers' config with these keys; the default's own where there are none."""
    from transformers import AutoConfig

    name = CALLED.get(family, family)
    if family not in TOWERS or not text:
        return AutoConfig.for_model(name, **text)
    outer = {"tie_word_embeddings": text.pop("tie_word_embeddings")}
    if family == "kimi_k25":
        outer["projection_hidden_size"] = tower["hidden_size"]
    return AutoConfig.for_model(name, text_config=text, vision_config=tower, **outer)


def planned(config, family):
    """Read the config as a checkpoint's file would have it."""
    found = model_of(config.to_dict() | {"model_type": family}, "config.json")
    assert isinstance(found, Model), found
    return found


def counted(config):
    """The slow reference: every parameter of transformers' model, by the name that it has there."""
    parts = Counter()
    for name, parameter in parameters(config):
        parts[part_of(name)] += parameter.numel()
    return {part: number for part, number in parts.items() if number}


def parameters(config):
    """Return the parameters of transformers' own model, on no device, with their names."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    auto = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config)
    return list(model.named_parameters())


def part_of(name):
    """The planner's word for where a parameter is."""
    for part, words in (
        ("towers", ("vision", "visual", "projector")),
        ("embedding", ("embed_tokens", "lm_head")),
        ("norms", ("norm",)),
        ("gates", ("shared_expert_gate", "mlp.gate.", "router")),
        ("shared", ("shared_expert",)),
        ("experts", ("experts",)),
        ("dense", (".mlp.",)),
    ):
        if any(word in name for word in words):
            return part
    return "attention"
