"""`kubernetes.patches`, merged into rendered objects: the last resort for what has no field.

A strategic merge, as kubectl and kustomize do it, as far as it needs no schema: mappings are merged key by key, null
removes a key, and lists whose items have names are merged item by item. Every other list is replaced. The names of
items are Kubernetes' own (`spec/merge_keys.py`). Kinds that are not Kubernetes' are merged by the same ones, because
their pods are its pods.

What a patch must leave alone is a matter of the spec's rules (`spec/patch_rules.py`). A patched object is written anew,
without the comments of its template. Its texts are quoted unless they are plainly words: YAML 1.1, 1.2 and kubectl's
own reader differ in what they take for a number (`1234e56`, `0o17`), a truth or a date.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from planner.spec.merge_keys import MERGE_KEYS, PORT_KEYS
from planner.spec.pods import PatchSpec

__all__ = ["merged", "patched"]

NOTE = "# Changed by kubernetes.patches of the spec.\n"
WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
# Source: yaml.org/type/bool.html and yaml.org/type/null.html, of YAML 1.1
NO_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def patched(text: str, patches: Sequence[PatchSpec]) -> str:
    """Return the object in `text`, as YAML, with those of `patches` merged into it that are about it."""
    if not patches:
        return text
    document = yaml.load(text, Loader=yaml.CSafeLoader)
    about_it = [each for each in patches if _is_about(each, document)]
    if not about_it:
        return text
    for each in about_it:
        document = merged(document, each.patch)
    return NOTE + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `patch` merged into it."""
    result = dict(base)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            below = result.get(key)
            result[key] = merged(below if isinstance(below, dict) else {}, value)
        elif isinstance(value, list) and (name := _merge_key(key, value)) and isinstance(result.get(key), list):
            result[key] = _merged_items(result[key], value, name)
        else:
            result[key] = value
    return result


class _Dumper(yaml.CSafeDumper):
    """Writes texts so that every reader of YAML takes them for texts."""


def _text_node(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    is_word = WORD.fullmatch(text) is not None and text.lower() not in NO_WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_word else '"')


_Dumper.add_representer(str, _text_node)


def _is_about(patch: PatchSpec, document: Mapping[str, Any]) -> bool:
    return patch.kind == document["kind"] and patch.name in (None, document["metadata"]["name"])


def _merge_key(field: str, items: Sequence[Any]) -> str | None:
    """Return the key that identifies the items of a list; None for a list that is replaced as a whole."""
    if field == "ports":
        return next((key for key in PORT_KEYS if _all_have(items, key)), None)
    key = MERGE_KEYS.get(field)
    return key if key and _all_have(items, key) else None


def _all_have(items: Sequence[Any], key: str) -> bool:
    return all(isinstance(item, dict) and key in item for item in items)


def _merged_items(base: Sequence[Any], patch: Sequence[Any], key: str) -> list[Any]:
    """Merge items of the same name, and put new ones behind the others."""
    changes = {item[key]: item for item in patch}
    result = [merged(item, changes.pop(item[key])) if item.get(key) in changes else item for item in base]
    return result + list(changes.values())
