"""Models of the catalog: sourced, and as large as their publishers say."""

import json
import re

import pytest

from planner.families import MODELS, read_model_config

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
    assert sum(MODELS[name].parameters().values()) / 1e9 == pytest.approx(billions, rel=0.01)


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
