"""Parameters by part: what a family's file makes of a config against transformers' own model of it, on no device."""

import random
from collections import Counter

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from planner.facts.model import Model
from planner.families import model_of
from planner.families.registry import FAMILIES

# Family -> parameters of its default configuration, in billions, as published or as transformers counts them.
BILLIONS = {"deepseek_v3": 671.0, "deepseek_v32": 671.9}

# Families that transformers knows by another name.
CALLED = {"kimi_k2": "deepseek_v3"}

# What transformers' default leaves out, by family.
GIVEN = {
    "deepseek_v2": {"num_experts_per_tok": 6, "first_k_dense_replace": 1},
    "qwen3_moe": {"head_dim": 128},
}

# Keys that a configuration is varied by, where its family has them.
VARIED = {
    "hidden_size": (256, 384, 640),
    "vocab_size": (1000, 5003),
    "num_hidden_layers": (5, 8, 11),
    "intermediate_size": (192, 320),
    "moe_intermediate_size": (64, 96),
    "num_attention_heads": (4, 8, 16),
    "n_routed_experts": (16, 32),
    "num_experts": (16, 32),
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
    "num_key_value_heads": (1, 2, 4),
    "head_dim": (32, 64),
    "attention_bias": (False, True),
    "tie_word_embeddings": (False, True),
}
LATENT = {"attention_bias": (False,)}  # no latent family was published with biases
ONLY = dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2"), LATENT)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_default_model_has_the_parameters_of_transformers(family):
    """Part by part, and in all as many as are published."""
    config = AutoConfig.for_model(CALLED.get(family, family), **GIVEN.get(family, {}))
    found = planned(config, family).parameters()

    assert found == counted(config)
    if family in BILLIONS:
        assert sum(found.values()) / 1e9 == pytest.approx(BILLIONS[family], abs=0.05)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", FAMILIES)
def test_varied_models_have_the_parameters_of_transformers(family, seed):
    """Every key that shapes depend on is drawn."""
    name, draw = CALLED.get(family, family), random.Random(f"{family} {seed}")
    known = AutoConfig.for_model(name).to_dict()
    choices = VARIED | ONLY.get(family, {})
    drawn = {key: draw.choice(values) for key, values in choices.items() if key in known or key == "head_dim"}
    config = AutoConfig.for_model(name, **GIVEN.get(family, {}) | drawn)

    assert planned(config, family).parameters() == counted(config)


def planned(config, family):
    """Read the config as a checkpoint's file would have it."""
    found = model_of(config.to_dict() | {"model_type": family}, "config.json")
    assert isinstance(found, Model), found
    return found


def counted(config):
    """The slow reference: every parameter of transformers' model, by the name that it has there."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    parts = Counter()
    for name, parameter in model.named_parameters():
        parts[part_of(name)] += parameter.numel()
    return {part: number for part, number in parts.items() if number}


def part_of(name):
    """The planner's word for where a parameter is."""
    for part, words in (
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
