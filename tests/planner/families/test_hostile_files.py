"""A `config.json` that nobody publishes: refused soon, in few words, and never with a traceback."""

import json

import pytest

from planner.families import model_of, read_model_config
from planner.families.published import FOLDER
from planner.families.read import MAX_CONFIG_BYTES
from planner.families.registry import FAMILIES, TOWERS, shapes_of, tower_of
from planner.problems.finding import Finding

PUBLISHED = [each["config"] for each in json.loads((FOLDER / "published.json").read_text())]
CLASSES = {*map(shapes_of, FAMILIES), *map(tower_of, TOWERS)}
BOUNDS = {"array": ("maxItems",), "integer": ("maximum", "enum", "const"), "object": ("maxProperties", "properties")}


def unbounded(schema, place):
    """Yield the place of each list, mapping and whole number below `schema` that may be of any size."""
    if isinstance(schema, dict):
        bounds = BOUNDS.get(schema.get("type") if isinstance(schema.get("type"), str) else None, ())
        if bounds and not any(each in schema for each in bounds):
            yield place
    for key, inner in schema.items() if isinstance(schema, dict) else enumerate(schema):
        if isinstance(inner, dict | list):
            yield from unbounded(inner, f"{place}.{key}")


@pytest.mark.parametrize("family", sorted(CLASSES, key=lambda each: each.__name__), ids=lambda each: each.__name__)
def test_every_list_and_number_of_a_family_has_an_end(family):
    """What has none is read, kept and searched for as long as its writer likes."""
    assert list(unbounded(family.model_json_schema(), family.__name__)) == []


@pytest.mark.parametrize("inner", [["deepseek_v3"], {"deepseek_v3": 1}, 5, None])
def test_an_inner_model_type_may_be_anything(inner):
    """A list and a mapping have no hash: looking them up was a TypeError."""
    found = model_of({"model_type": "zork", "text_config": {"model_type": inner}}, "config.json")

    assert isinstance(found, Finding)
    assert found.rule == "S302 must be of a mixture-of-experts model"


def test_experts_are_looked_for_at_any_depth():
    """Python's own calls go no deeper than a thousand."""
    for leaf, rule in (({"num_experts": 8}, "must be a model of a known family"), ({}, "must be of a mixture-of-")):
        for _ in range(2_000):
            leaf = {"a": leaf}

        assert rule in model_of({"model_type": "zork", "x": leaf}, "config.json").rule


def test_a_number_is_told_in_few_words():
    """A ratio of 4,000 digits was quoted in full."""
    config = next(each for each in PUBLISHED if each["model_type"] == "deepseek_v4")
    found = model_of(config | {"compress_ratios": [10**3999] * config["num_hidden_layers"]}, "config.json")

    assert len(found.reason) < 200


def test_a_file_has_an_end(tmp_path):
    """S301: 60 MB of an ignored key were read into 1.5 GB."""
    (tmp_path / "config.json").write_bytes(b" " * (MAX_CONFIG_BYTES + 1))
    found = read_model_config(tmp_path / "config.json", "config.json")

    assert (found.rule[:4], found.reason) == ("S301", "it has more than 16 MiB")


def test_all_contradictions_of_a_file_are_said_at_once():
    """They name the keys that the file has: GLM-4.7-Flash may list its dense layers, and this file does not."""
    config = next(each for each in PUBLISHED if each["model_type"] == "deepseek_v3")
    wrong = {"first_k_dense_replace": 80, "num_experts_per_tok": 300, "n_group": 5}
    reason = model_of(config | wrong | {"model_type": "glm4_moe_lite"}, "config.json").reason

    assert "mlp_layer_types" not in reason
    assert all(key in reason for key in wrong)


def test_heads_of_layers_with_a_window_are_told_by_their_own_keys():
    """MiMo's file counts them apart, and those of full attention are right."""
    config = next(each for each in PUBLISHED if each["model_type"] == "mimo_v2_flash")
    wrong = {"swa_num_attention_heads": 60, "swa_num_key_value_heads": 8, "n_group": 5}
    reason = model_of(config | wrong, "config.json").reason

    assert reason == (
        "swa_num_key_value_heads (8) does not divide swa_num_attention_heads (60), "
        "and n_group (5) does not divide n_routed_experts (256)"
    )


def test_all_that_a_multimodal_file_lacks_is_said_at_once():
    """The tower's and the text model's."""
    config = next(each for each in PUBLISHED if each["model_type"] == "qwen3_vl_moe")
    text = {key: value for key, value in config["text_config"].items() if key != "num_experts"}
    vision = {key: value for key, value in config["vision_config"].items() if key != "depth"}
    reason = model_of(config | {"text_config": text, "vision_config": vision}, "config.json").reason

    assert reason == "missing or out of range in it: vision_config.depth, text_config.num_experts"


def renamed(**changes):
    """Return what is said of DeepSeek-V4's file under a model_type that nobody knows."""
    config = next(each for each in PUBLISHED if each["model_type"] == "deepseek_v4")
    return model_of(config | {"model_type": "deepseek_ref"} | changes, "config.json")


def test_a_known_architecture_under_another_model_type_is_told_its_way_out():
    """SGLang's FP8 copies of DeepSeek-V4 are called so."""
    found = renamed()

    assert found.reason == "its architecture and keys are those of deepseek_v4, and its model_type is not"
    assert found.fix == "write model_type: deepseek_v4 in it"


@pytest.mark.parametrize("changes", [{"hidden_size": "wide"}, {"architectures": ["Zork"]}, {"architectures": 5}])
def test_an_architecture_without_its_keys_is_none(changes):
    """What lacks the family's keys, or another's name, is of no known family."""
    assert "must be a model of a known family" in renamed(**changes).rule
