"""The text model of a multimodal checkpoint computes what transformers' class of the whole computes.

transformers has Kimi-K2.5's class, which reads the names that published files have. The weights are random ones of V3,
renamed and with one tensor of a tower beside them.
"""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Kimi_K25ForConditionalGeneration

from runtime.errors import CheckpointError
from runtime.expert_parallel.group import SoloGroup
from runtime.model.config import read_model_config
from runtime.model.engine import Engine, EngineConfig
from runtime.offline import greedy
from tests.runtime.closeness import LOGITS_TOLERANCE, relative_error
from tests.runtime.random_checkpoints import FP8, V3, nest_beside_tower, write_checkpoint

PROMPTS = [[7], [*range(3, 40)]]


def nest_checkpoint(folder, **changes):
    """Return a checkpoint beside a tower, and the same text model alone."""
    text = write_checkpoint(folder / "text", V3 | changes)
    return nest_beside_tower(text, folder / "nested"), text


def engine(folder):
    config = read_model_config(folder)
    experts = [list(range(config.n_routed_experts))] * config.num_moe_layers
    return Engine(EngineConfig(folder, experts, torch.float32), SoloGroup())


@pytest.mark.parametrize("is_tied", [False, True])
def test_logits_are_those_of_transformers_model_of_the_whole(tmp_path, is_tied):
    """Logits equal transformers' at every position, wherever the config ties the embedding."""
    folder, _ = nest_checkpoint(tmp_path, tie_word_embeddings=is_tied)
    theirs = Kimi_K25ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    found = engine(folder).prompt_logits(PROMPTS)

    for mine, tokens in zip(found, PROMPTS, strict=True):
        with torch.inference_mode():
            assert relative_error(mine, theirs(torch.tensor([tokens])).logits[0]) < LOGITS_TOLERANCE


@pytest.mark.parametrize("where", ["text_config", "the whole"])
def test_fp8_is_read_beside_a_tower_too(tmp_path, where):
    """FP8 beside a tower gives the text of the same weights alone, wherever the config declares it."""
    folder, text = nest_checkpoint(tmp_path, quantization_config=FP8)
    if where == "the whole":
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = config["text_config"].pop("quantization_config") | {"scale_fmt": "ue8m0"}
        (folder / "config.json").write_text(json.dumps(config))
        assert read_model_config(folder).power_of_two_scales

    alone, beside = (greedy(engine(each), SoloGroup(), PROMPTS, 8, set()) for each in (text, folder))
    assert alone == beside


def test_what_is_wrong_with_a_text_model_is_said_of_the_file(tmp_path):
    """A missing or unknown text_config, or a missing tensor, is named in full."""
    folder, _ = nest_checkpoint(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["language_model.model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"has no tensor language_model\.model\.norm\.weight"):
        engine(folder)

    for text, words in ((None, "text_config is None, an object is needed"), ({"model_type": "llama"}, "'llama'")):
        (folder / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "text_config": text}))
        with pytest.raises(CheckpointError, match=words):
            read_model_config(folder)
