"""Read a checkpoint's `config.json` as a model of its family, or return what is wrong with the file.

The planner never opens weights, because shapes decide a layout. The runtime compares the digest of the file's bytes,
and rejects any checkpoint other than the planned one.
"""

import errno
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.facts.digest import digest_of_bytes
from planner.facts.files import explain_unreadable, read_file, read_optional_file
from planner.facts.model import Model
from planner.families.module_names import Unreadable
from planner.families.quantised import BESIDE, Unplanned, apply_form, read_form, read_kv_precision
from planner.families.registry import BRING_CODE, FAMILIES, TOWERS, shapes_of, tower_of
from planner.families.shapes import File
from planner.problems.finding import Finding

PATH = "model.config"
MAX_CONFIG_BYTES = 2**24  # assumed: a quantised file may name each matrix of 61 layers of 384 experts in 200 bytes
URL = re.compile(r"[a-z][a-z0-9+]*://")
TOKENIZER_CONFIG = "tokenizer_config.json"
LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # Source: github.com/git-lfs/git-lfs docs/spec.md


@dataclass(frozen=True)
class ModelConfig:
    """A model, and the sha256 of the `config.json` that it was read from."""

    model: Model
    digest: str
    other_quantization: str | None  # name of a quantisation that no precision of a spec describes
    beside: Mapping[str, str]  # other files that were read: path as the spec would write it -> sha256


def read_model_config(path: Path, written: str) -> ModelConfig | Finding:
    """Return the model of the `config.json` at `path`, or the finding that the file is wrong.

    `written` is the path as the spec writes it.
    """
    if URL.match(written):
        reason = "it is a URL, and the planner reads no network"
        return Finding(PATH, written, "S301 must be a readable file", reason, "download it, and write its path here")
    try:
        content = read_file(path, MAX_CONFIG_BYTES)
    except OSError as error:
        reason, fix = explain_unreadable(error)
        fix = "point to the checkpoint's own config.json" if error.errno == errno.EFBIG else fix
        return Finding(PATH, written, "S301 must be a readable file", reason, fix)
    try:
        config = json.loads(content)
    except (ValueError, RecursionError):
        config = None
        if said := _recognise_file(content):
            return _refuse(written, "S302 must be a checkpoint's config.json", *said)
    beside = None if _quantization(config) else _read_quantisation_file(path, written)
    if isinstance(beside, Finding):
        return beside
    found = _read_model(config, written, beside)
    if isinstance(found, Finding):
        return found
    model, other = found
    inputs = {} if beside is None else {beside.name: beside.digest}
    if tokenizer := _tokenizer_with_code(path.with_name(TOKENIZER_CONFIG)):
        model = replace(model, brings_code=True)
        inputs[TOKENIZER_CONFIG] = digest_of_bytes(tokenizer)
    names = {str(Path(written).with_name(name)): digest for name, digest in inputs.items()}
    return ModelConfig(model, digest_of_bytes(content), other, names)


def model_of(config: Any, written: str) -> Model | Finding:
    """Return the model of a parsed `config.json`, or the finding that the file is wrong.

    `written` is the file's path in the spec.
    """
    found = _read_model(config, written, None)
    return found if isinstance(found, Finding) else found[0]


@dataclass(frozen=True)
class _QuantisationFile:
    """A file beside config.json with the checkpoint's quantisation."""

    name: str
    said: Mapping[str, Any]
    digest: str


def _read_quantisation_file(path: Path, written: str) -> _QuantisationFile | Finding | None:
    """Return the first quantisation file (`BESIDE`) beside config.json.

    Return None if there is no such file, and a finding if the file is wrong.
    """
    for name, method in BESIDE.items():
        try:
            content = read_optional_file(path.with_name(name), MAX_CONFIG_BYTES)
            if content is None:
                continue
            said = json.loads(content)
        except OSError as error:
            return _refuse_quantisation(written, name, error.strerror or str(error))
        except (ValueError, RecursionError):
            return _refuse_quantisation(written, name, "it is not JSON")
        if not isinstance(said, Mapping):
            return _refuse_quantisation(written, name, f"it is of type {type(said).__name__}, not an object")
        return _QuantisationFile(
            name, {**said, "quant_method": said.get("quant_method") or method}, digest_of_bytes(content)
        )
    return None


def _refuse_quantisation(written: str, name: str, reason: str) -> Finding:
    return Finding(PATH, written, f"S314 must come with a {name} that can be read", reason, "correct the file")


def _read_model(config: Any, written: str, beside: _QuantisationFile | None) -> tuple[Model, str | None] | Finding:
    """Return the model with its weights' formats, and the name of its quantisation if that cannot be planned (or None).

    Returns a finding if the file is wrong.
    """
    found = _read_shapes(config, written)
    if isinstance(found, Finding):
        return found
    said_in = beside.name if beside else "quantization_config"
    try:
        said = beside.said if beside else _quantization(config)
        form = read_form(said, _with_text_config(config).get("expert_dtype"))
        if (kv := read_kv_precision(said)) is not None:
            found = replace(found, quantisation=replace(found.quantisation, kv=kv, said_in=said_in))
        if form is None:
            return found, None
        of_files = form if isinstance(form, Unplanned) else apply_form(found, form, said_in)
    except Unreadable as error:
        return _refuse_quantisation(written, said_in, str(error))
    return (found, of_files.words) if isinstance(of_files, Unplanned) else (of_files, None)


def _quantization(config: Any) -> Any:
    """Return the quantisation that config.json itself gives, or None."""
    if not isinstance(config, Mapping):
        return None
    text = _with_text_config(config)
    return text.get("quantization_config") or text.get("compression_config")  # an old key of compressed-tensors


def _read_shapes(config: Any, written: str) -> Model | Finding:
    """Return the model with its shapes but without the formats of weights, or the finding that the file is wrong."""
    model_type = config.get("model_type") if isinstance(config, Mapping) else None
    if not isinstance(model_type, str):
        return _refuse(written, "S302 must be a checkpoint's config.json", "it is not a JSON object with a model_type")
    file = File(written, model_type, _architecture(config))
    if model_type in TOWERS:
        found = _read_multimodal(config, file)
    elif model_type in FAMILIES:
        found = _read_family(model_type, config, file)
    else:
        found = _refuse_family(config, written)
    # Engines do not need the checkpoint's code for a model, but the code may be that of a tokenizer.
    brings_code = model_type in BRING_CODE or "auto_map" in _with_text_config(config)
    return replace(found, brings_code=True) if brings_code and isinstance(found, Model) else found


def _tokenizer_with_code(path: Path) -> bytes | None:
    """Return the content of the `tokenizer_config.json` at `path` if it names code to run; else None.

    Return None too if there is no such file.
    """
    try:
        content = read_file(path, MAX_CONFIG_BYTES) if path.is_file() else b""
        config = json.loads(content)
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(config, Mapping) and "auto_map" in config else None


def _read_multimodal(config: Mapping[str, Any], file: File) -> Model | Finding:
    """Return a multimodal model's text model, with the number of weights of its encoder (its tower).

    Returns a finding if the file is wrong.
    """
    _, text_types = TOWERS[file.model_type]
    text, vision = config.get("text_config"), config.get("vision_config")
    if not isinstance(text, Mapping) or not isinstance(vision, Mapping):
        lacking = "text_config" if not isinstance(text, Mapping) else "vision_config"
        return _refuse_keys([lacking], file, "it")
    text_type = text.get("model_type", text_types[0])
    if text_type not in text_types:
        reason = f"the model_type of its text_config is not {' or '.join(text_types)}"
        return _refuse(file.source, f"S302 must be a config.json of {file.model_type}", reason)
    of_text = {**text, **_embedding_tie(config)}
    try:
        tower = tower_of(file.model_type).model_validate({**config, **vision})
    except ValidationError as error:
        both = {"vision_config": _wrong_keys(error), "text_config": _missing_keys(text_type, of_text)}
        keys = [f"{section}.{key}" for section, keys in both.items() for key in keys]
        return _refuse_keys(keys, file, "it")
    found = _read_family(text_type, of_text, file, "text_config")
    if isinstance(found, Finding):
        return found
    return replace(found, tower_weights=tower.num_weights(found.hidden_size))


def _missing_keys(family: str, config: Mapping[str, Any]) -> list[str]:
    """Return the family's keys that are missing from `config` or have wrong values; none if all are right."""
    try:
        shapes_of(family).model_validate(config)
    except ValidationError as error:
        return _wrong_keys(error)
    return []


def _read_family(family: str, config: Mapping[str, Any], file: File, place: str = "it") -> Model | Finding:
    try:
        shapes = shapes_of(family).model_validate(config)
    except ValidationError as error:
        return _refuse_keys(_wrong_keys(error), file, place)
    if broken := shapes.explain_contradictions():
        return Finding(PATH, file.source, "S303 must have shapes that fit together", broken, "correct the file")
    if planning_obstacle := shapes.planning_obstacle():
        fix = "choose another model: tidemill cannot plan such layers yet"
        return Finding(PATH, file.source, "S313 must have layers that can be planned", planning_obstacle, fix)
    return shapes.model(file)


def _architecture(config: Mapping[str, Any]) -> str | None:
    named = config.get("architectures")
    return named[0] if isinstance(named, list) and named and isinstance(named[0], str) else None


def _with_text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of `config` and, if it is multimodal, of its text model. Either may hold the quantisation."""
    text = config.get("text_config")
    return {**text, **config} if isinstance(text, Mapping) else config


def _embedding_tie(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return only the key `tie_word_embeddings`, if present. Multimodal files have it outside the text model."""
    return {key: config[key] for key in ("tie_word_embeddings",) if key in config}


def _wrong_keys(error: ValidationError) -> list[str]:
    """Return each wrong key once, even if several entries of its list are wrong."""
    return list(dict.fromkeys(str(each["loc"][0]) for each in error.errors(include_url=False) if each["loc"]))


def _refuse_keys(keys: Sequence[str], file: File, place: str) -> Finding:
    reason = f"missing or out of range in {place}: {', '.join(keys)}"
    return _refuse(file.source, f"S302 must have the shapes of {file.model_type}", reason)


def _refuse_family(config: Mapping[str, Any], written: str) -> Finding:
    """Return the finding for a file whose model_type is unknown. It suggests the text model if that is known.

    The message does not quote the model_type: the path may name a private file by mistake or malice.
    """
    text = config.get("text_config")
    inner = text.get("model_type") if isinstance(text, Mapping) else None
    if isinstance(inner, str) and inner in FAMILIES:
        rule = "S302 must have encoders that tidemill knows"
        reason = f"of its model_type tidemill knows only the text model ({inner})"
        return _refuse(
            written, rule, reason, "write its text_config to a file of its own, and leave memory for the encoders"
        )
    if not _has_experts(config):
        rule, reason = "S302 must be of a mixture-of-experts model", "nothing in it counts experts"
        return _refuse(written, rule, reason, "choose a model that has experts: Tidemill plans no others")
    if alike := _family_by_architecture(config):
        return _refuse_model_type(config, written, alike)
    known = ", ".join(sorted({*FAMILIES, *TOWERS}))
    fix = "choose a model of one of these, or add the family as planner/README.md describes"
    rule = f"S302 must be a model of a known family ({known})"
    return _refuse(written, rule, "its model_type is none of these", fix)


def _family_by_architecture(config: Mapping[str, Any]) -> str | None:
    """Return the family that the file's architecture names, if the file has that family's keys; else None."""
    named = re.sub("For(CausalLM|ConditionalGeneration)$", "", _architecture(config) or "").lower()
    family = next((each for each in FAMILIES if each.replace("_", "") == named), None)
    return family if family and not _missing_keys(family, config) else None


def _refuse_model_type(config: Mapping[str, Any], written: str, family: str) -> Finding:
    """Return the finding that the file has `family`'s keys but another model_type, or a finding on another mistake."""
    found = _read_model({**config, "model_type": family}, written, None)
    if isinstance(found, Finding):
        return found
    rule = "S302 must have the model_type of a known family"
    reason = f"its architecture and keys are those of {family}, and its model_type is not"
    return _refuse(written, rule, reason, f"write model_type: {family} in it")


def _has_experts(config: Mapping[str, Any]) -> bool:
    """Return whether any key, at any depth, has `expert` or `moe` in its name."""
    sections: list[Mapping[str, Any]] = [config]
    while sections:  # a loop, because a file may nest too deep for recursion
        section = sections.pop()
        if any(re.search("expert|moe", str(key)) for key in section):
            return True
        sections += [each for each in section.values() if isinstance(each, Mapping)]
    return False


def _refuse(written: str, rule: str, reason: str, fix: str = "point to the checkpoint's own config.json") -> Finding:
    return Finding(PATH, written, rule, reason, fix)


def _recognise_file(content: bytes) -> tuple[str, str] | None:
    """Return (reason, fix) for a web page or git-lfs pointer in place of a JSON file; None for any other content."""
    if content.startswith(LFS_POINTER):
        return "it is a pointer of git-lfs, and the file itself was not fetched", "fetch it with git lfs pull"
    if content.lstrip()[:9].lower().startswith((b"<!doctype", b"<html")):
        return "it is a web page", "download the file itself, which a hub has at .../resolve/main/config.json"
    return None
