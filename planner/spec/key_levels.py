"""Answers to keys that stand on a wrong level: a Kubernetes object's, a whole spec's one too deep, one not indented."""

from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from planner.families import MODELS
from planner.problems.fix import close_to
from planner.spec.declared import required_in, section_of
from planner.spec.misplaced import fields_of
from planner.spec.schema import Spec
from planner.spec.unknown_key import Answer, UnknownKey, put_instead, to_write

__all__ = ["beside_the_models_name", "not_indented", "of_an_object", "section_too_deep", "spec_too_deep"]

KUBERNETES_KEYS = ("apiVersion", "kind", "metadata", "spec", "status")  # of any object: a spec is none
MODEL_KEYS = ("checkpoint", "config_digest", "weights_digest")


def of_an_object(key: UnknownKey) -> Answer | None:
    """Answer a Kubernetes object, which is no spec: `metadata: {name: river}` is `name: river`."""
    if key.path not in KUBERNETES_KEYS:
        return None
    said = _said_by_object(key.name, key.value)
    meant = {path: value for path, value in said.items() if path.partition(".")[0] not in key.spec}
    if any(isinstance(value, dict | list) for value in meant.values()):
        words = "write its keys at the top level"
    else:
        words = to_write(meant) or "remove it"
    reason = "a spec is not a Kubernetes object, and tidemill render writes those"
    return put_instead(reason, f"{words}{_without_others(key, meant)}", meant)


def spec_too_deep(key: UnknownKey) -> Answer | None:
    """Take away a level above the whole spec: `tidemill: {version: 1, name: river, ...}`."""
    below = key.value if key.is_at_the_top and isinstance(key.value, dict) else {}
    meant = {each: value for each, value in below.items() if each in Spec.model_fields and each not in key.spec}
    required = required_in(Spec)
    if 2 * sum(each in meant for each in required) <= len(required):
        return None
    words = f"remove this level{_without_others(key, meant)}"
    return put_instead("the spec is nested one level too deep", words, meant)


def not_indented(key: UnknownKey) -> Answer | None:
    """Indent a field that stands below an empty section instead of in it: `ep_size: 8` below `decode:`."""
    before = takewhile(lambda each: each != key.name, key.spec) if key.is_at_the_top else ()
    above = next(reversed([each for each in before if each in Spec.model_fields]), None)
    if above is None or key.spec[above] is not None or key.name not in fields_of(above):
        return None
    return put_instead(f"{above} above it has nothing below it", "indent it", {f"{above}.{key.name}": key.value})


def section_too_deep(key: UnknownKey) -> Answer | None:
    """Move a section out of another, with sections within it: `prefill: {decode: {ep_size: 8}}`."""
    if len(key.location) != 2 or key.name in key.spec or not _is_section(key.name, key.value):
        return None
    taken = {*fields_of(key.name), *key.spec, *key.beside}
    deeper = {each: value for each, value in key.value.items() if each not in taken and _is_section(each, value)}
    meant = {key.name: {each: value for each, value in key.value.items() if each not in deeper}, **deeper}
    return put_instead("it is nested one level too deep", f"move {' and '.join(meant)} to the top level", meant)


def beside_the_models_name(key: UnknownKey) -> Answer | None:
    """Move what is said of a model below its name: `checkpoint: /models/r1` beside `model: deepseek-r1`."""
    model = key.spec.get("model")
    if not key.is_at_the_top or key.name not in MODEL_KEYS or not isinstance(model, str) or model not in MODELS:
        return None
    meant = {"model": {"catalog": model, key.name: key.value}}
    return put_instead("it belongs below model", to_write(meant), meant)


def _said_by_object(key: str, value: Any) -> Mapping[str, Any]:
    """Return what one of the keys of a Kubernetes object would be as fields of a spec: path -> value."""
    if key == "apiVersion":
        return {"version": 1}
    section = value if isinstance(value, dict) else {}
    if key == "metadata":
        meant = {"name": "name", "namespace": "kubernetes.namespace"}
        return {path: section[each] for each, path in meant.items() if each in section}
    ours = (each for each in section if close_to(each, list(Spec.model_fields), cutoff=0.6))
    return {each: section[each] for each in ours} if key == "spec" else {}


def _without_others(key: UnknownKey, meant: Mapping[str, Any]) -> str:
    """Name the keys below a level that goes which are none of a spec, and so are not kept."""
    is_level = isinstance(key.value, dict) and key.path != "metadata"
    left = [str(each) for each in key.value if each not in meant] if is_level else []
    return f", without {' and '.join(left)}" if left else ""


def _is_section(name: str, value: Any) -> bool:
    """Return whether the spec has a section called `name`, which may hold `value`."""
    return name in Spec.model_fields and bool(section_of(Spec.model_fields[name])) and isinstance(value, dict)
