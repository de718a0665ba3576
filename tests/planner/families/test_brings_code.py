"""A checkpoint's own code runs only on engines that need it, and the plan says so."""

import json

import pytest

from planner.compiler import compile_plan
from planner.facts.digest import digest_of_bytes, pretty_json
from planner.families import MODELS
from planner.plan.load import load_plan
from planner.rules.check import check_spec
from tests.planner.conftest import CONFIG
from tests.templates.gpu_plans import SPEC

CODE = {"auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}}


@pytest.fixture
def spec_with(tmp_path):
    """A function: the spec of a model whose config.json, and the file beside it, say more."""

    def check(config, tokenizer=None, engine="vllm"):
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | config))
        if tokenizer is not None:
            (tmp_path / "tokenizer_config.json").write_text(tokenizer)
        path = tmp_path / "spec.json"
        path.write_text(json.dumps(SPEC | {"engine": engine}))
        return check_spec(path)

    return check


@pytest.mark.parametrize(
    ("config", "tokenizer", "brings_code"),
    [
        ({}, None, False),
        (CODE, None, True),
        ({}, json.dumps(CODE), True),
        ({}, json.dumps({"tokenizer_class": "LlamaTokenizer"}), False),
        ({}, "{", False),
        ({}, "[" * 100_000, False),
    ],
)
def test_auto_map_names_code(spec_with, config, tokenizer, brings_code):
    """In config.json or in the tokenizer's; a file that nobody can read names none."""
    assert spec_with(config, tokenizer).model.brings_code == brings_code


def test_a_tokenizer_that_decides_is_an_input(spec_with):
    """So that another one is another plan's."""
    assert spec_with({}, json.dumps(CODE)).inputs["tokenizer_config.json"] == digest_of_bytes(json.dumps(CODE).encode())
    assert "tokenizer_config.json" not in spec_with({}, "{}").inputs


def test_kimis_tokenizers_are_known_without_their_files():
    """DeepSeek's are plain ones."""
    assert {name for name in MODELS if MODELS[name].brings_code} == {"kimi-k2", "kimi-k2.5"}


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_units_are_told_and_the_plan_warns(spec_with, engine, tmp_path):
    """Every unit, and also after the plan was read back."""
    plan = compile_plan(spec_with(CODE, engine=engine))
    content = pretty_json(plan.as_json()).encode()
    loaded = load_plan(content, tmp_path / "plan.json")
    documents = [each for each in loaded.launch_documents.values() if each["kind"] != "gateway"]

    assert all("--trust-remote-code" in each["container"]["args"] for each in documents)
    assert [each.path for each in loaded.warnings if each.rule.startswith("W160")] == ["model.checkpoint"]


def test_our_runtime_runs_none(spec_with):
    """It has a tokenizer of its own, so nothing is told and nobody warned."""
    plan = compile_plan(spec_with(CODE, engine="tidemill"))

    assert not any(each.rule.startswith("W160") for each in plan.warnings)
    assert not any("brings_code" in each for each in plan.launch_documents.values())
