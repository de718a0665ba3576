"""A checkpoint's `config.json` to a model of its family, or to what is wrong with the file.

The planner never opens weights: shapes decide a layout, and the digest of the file's bytes lets the runtime refuse a
checkpoint that is not the one planned for.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.facts.digest import digest_of_bytes
from planner.facts.files import read_file
from planner.facts.model import Model
from planner.facts.quantisation import UNQUANTISED, quantisation_of
from planner.families.registry import FAMILIES
from planner.families.shapes import File
from planner.problems.errors import Violation

__all__ = ["ModelConfig", "model_of", "read_model_config"]

PATH = "model.config"

# Families that no pass plans, by the model_type of their config.json, as transformers names it.
OTHER_FAMILIES = {
    "glm4_moe": "GLM-4.5",
    "gpt_oss": "gpt-oss",
    "llama4": "Llama 4",
    "minimax": "MiniMax",
    "minimax_m2": "MiniMax",
    "mixtral": "Mixtral",
    "qwen2_moe": "Qwen2-MoE",
    "qwen3_next": "Qwen3-Next",
    "dots1": "dots.llm1",
    "ernie4_5_moe": "ERNIE 4.5",
}


@dataclass(frozen=True)
class ModelConfig:
    """The shapes, and the sha256 of the very bytes that they were read from."""

    model: Model
    digest: str
    other_quantization: str | None  # what its quantization_config says that no precision of a spec does


def read_model_config(path: Path, written: str) -> ModelConfig | Violation:
    """Return the config at `path`, which the spec calls `written`; or what is wrong with it."""
    try:
        content = read_file(path)
    except (OSError, ValueError) as error:  # the latter: no path has a null character
        fix = "give the path relative to the spec's folder"
        reason = getattr(error, "strerror", None) or str(error)
        return Violation(PATH, written, "S301 must be a readable file", reason, fix)
    try:
        config = json.loads(content)
    except (ValueError, RecursionError):
        config = None
    found = model_of(config, written)
    if isinstance(found, Violation):
        return found
    return ModelConfig(found, digest_of_bytes(content), _other_quantization(config))


def model_of(config: Any, written: str) -> Model | Violation:
    """Return the model of a `config.json`'s content, which the spec calls `written`; or what is wrong with it."""
    model_type = config.get("model_type") if isinstance(config, Mapping) else None
    if not isinstance(model_type, str):
        return _not_a_config(written, "it is not a JSON object with a model_type")
    if model_type not in FAMILIES:
        return _of_another_family(written, model_type)
    try:
        shapes = FAMILIES[model_type].model_validate(config)
    except ValidationError as error:
        keys = [str(detail["loc"][0]) for detail in error.errors(include_url=False) if detail["loc"]]
        return _not_a_config(written, f"missing or out of range in it: {', '.join(keys) or 'everything'}")
    if broken := shapes.broken():
        return Violation(PATH, written, "S303 must have shapes that fit together", broken, "correct the file")
    quantisation = quantisation_of(config) or UNQUANTISED
    return shapes.model(File(written, model_type, _architecture(config), quantisation))


def _architecture(config: Mapping[str, Any]) -> str | None:
    named = config.get("architectures")
    return named[0] if isinstance(named, list) and named and isinstance(named[0], str) else None


def _not_a_config(written: str, reason: str, fix: str = "point to the checkpoint's own config.json") -> Violation:
    rule = f"S302 must be a config.json of model_type {' or '.join(FAMILIES)}"
    return Violation(PATH, written, rule, reason, fix)


def _of_another_family(written: str, model_type: str) -> Violation:
    family = OTHER_FAMILIES.get(model_type)
    called = f"its model_type is {model_type[:40]}" + (f", the {family} family's," if family else "")
    return _not_a_config(written, f"{called} and no other family is planned yet", "choose a model of one of these")


def _other_quantization(config: Mapping[str, Any]) -> str | None:
    """Return how a message calls a quantisation that no precision says; None where one does, or without any."""
    if quantisation_of(config):
        return None
    said = config.get("quantization_config")
    method = said.get("quant_method") if isinstance(said, Mapping) else None
    return method[:40] if isinstance(method, str) and method else "of another form"
