"""Models of the catalog: sourced, and as large as their publishers say."""

import json
import math
import re
from pathlib import Path

import pytest

from planner.families import MODELS, model_of, published, read_model_config
from tests.planner.families.model_parts import parameters_of

SOURCE = re.compile(r"github\.com/[\w-]+/[\w.-]+ [0-9a-f]{8} [\w/.{},-]+")

# Published totals, in billions of parameters: DeepSeek-V3 and V2 READMEs, Qwen3 and Kimi-K2 model cards, and
# lm-sys/lm-sys.github.io blog/2025-12-15-mimo-v2-flash.md. The total of V3 is without its MTP layer.
BILLIONS = {
    "deepseek-v3": 671,
    "deepseek-v2": 236,
    "deepseek-v2-lite": 15.7,
    "qwen3-235b-a22b": 235,
    "kimi-k2": 1026,
    "mimo-v2-flash": 309,
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_source(name):
    """A repository, a commit and a path."""
    assert SOURCE.match(MODELS[name].source)


@pytest.mark.parametrize(("name", "billions"), BILLIONS.items())
def test_shapes_add_up_to_the_published_parameters(name, billions):
    """Within 1 %."""
    assert sum(parameters_of(MODELS[name]).values()) / 1e9 == pytest.approx(billions, rel=0.01)


def test_latent_kv_is_as_published():
    """70,272 bytes a token in BF16, over 61 layers."""
    assert MODELS["deepseek-v3"].kv_bytes_per_token(2) == 70_272


def test_a_config_says_that_its_embeddings_are_tied(tmp_path, spec_folder):
    """Not so where it says nothing."""
    path, config = tmp_path / "config.json", json.loads((spec_folder / "config.json").read_text())
    for change, is_tied in (
        ({}, False),
        ({"tie_word_embeddings": True}, True),
        ({"tie_word_embeddings": False}, False),
    ):
        path.write_text(json.dumps(config | change))
        assert read_model_config(path, "config.json").model.ties_embeddings == is_tied


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("moe_layer_freq", [1] * 5),
        ("moe_layer_freq", [math.nan] * 5),
        ("moe_layer_freq", math.inf),
        ("moe_layer_freq", 10**4000),
        ("hidden_size", math.nan),
        ("n_routed_experts", math.inf),
        ("model_type", "x" * 5_000),
    ],
    ids=lambda each: str(each)[:12],
)
def test_a_hostile_config_is_one_short_sentence(key, value, tmp_path, spec_folder):
    """It may have another type, no number, or a text that is longer than anybody reads."""
    path, config = tmp_path / "config.json", json.loads((spec_folder / "config.json").read_text())
    path.write_text(json.dumps(config | {key: value}))
    found = read_model_config(path, "config.json")

    assert found.rule.startswith("S302")
    assert len(found.message) < 600


def test_a_key_that_is_wrong_in_every_layer_is_named_once():
    """Lists have an entry a layer."""
    document = json.loads(Path(published.__file__).with_suffix(".json").read_text())
    config = next(each["config"] for each in document if "minimax-m3" in each["names"])
    text = config["text_config"]
    for entries in ([-1], [2**70], [math.nan], ["q"]):
        wrong = text | {"moe_layer_freq": entries * text["num_hidden_layers"]}
        found = model_of(config | {"text_config": wrong}, "config.json")

        assert found.message.count("moe_layer_freq") == 1
        assert found.rule.startswith("S302")
