"""A patch as Kustomize writes it, said as an item of `kubernetes.patches`.

    target: {kind, name}, patch: text         kind, name, patch: mapping
    a whole object that has the changes       the same; its apiVersion says nothing that the kind does not say

The text is a strategic merge, which is our form, or a list of JSON Patch operations (RFC 6902). Of these only such are
translated as need no look at the object: what goes by an index of a list stays text.

It knows the form of a patch and no rule about it: those are in `patch_rules.py`.
"""

import textwrap
from collections.abc import Mapping
from typing import Any

from planner.problems.errors import SpecError
from planner.spec.yaml import parse_document

__all__ = ["KUSTOMIZE_KEYS", "keys_of_kustomize", "said_by_kustomize"]

OF_OBJECTS = ("apiVersion", "metadata", "spec")
KUSTOMIZE_KEYS = ("target", *OF_OBJECTS)  # that items of `kubernetes.patches` lack


def keys_of_kustomize(item: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys of `item` that are of Kustomize's form and not of ours; none where it has another form."""
    if isinstance(item.get("target"), dict):
        return ("target",)
    is_object = "patch" not in item and isinstance(item.get("kind"), str) and "metadata" in item
    return tuple(key for key in item if is_object and key in OF_OBJECTS)


def said_by_kustomize(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of ours that `item` says in Kustomize's form, as far as they can be told."""
    target = item.get("target")
    if isinstance(target, dict):
        patch = _as_mapping(item.get("patch"))
        found = {key: target[key] for key in ("kind", "name") if isinstance(target.get(key), str)}
        said = found if patch is None else _named(patch) | found | {"patch": _without_names(patch)}
    else:
        whole = {key: item[key] for key in item if key in OF_OBJECTS}
        said = _named(whole) | {"patch": _without_names(whole)} if keys_of_kustomize(item) else {}
    return {key: value for key, value in said.items() if item.get(key) != value}


def _as_mapping(patch: Any) -> dict[str, Any] | None:
    """Return a patch as the mapping that it stands for; None where it cannot be told without the object."""
    if isinstance(patch, dict):
        return patch
    if not isinstance(patch, str):
        return None
    try:
        written = parse_document(f"patch:\n{textwrap.indent(patch, '  ')}", "").data["patch"]
    except SpecError:
        return None
    return written if isinstance(written, dict) else _merge_of(written)


def _merge_of(operations: Any) -> dict[str, Any] | None:
    """Return JSON Patch operations as what is merged."""
    merged: dict[str, Any] = {}
    for each in operations if isinstance(operations, list) and operations else [None]:
        match each:
            case {"op": "add" | "replace", "path": str(path), "value": value}:
                is_told = _put(merged, path, value)
            case {"op": "remove", "path": str(path)}:
                is_told = _put(merged, path, None)
            case _:
                is_told = False
        if not is_told:
            return None
    return merged


def _put(merged: dict[str, Any], path: str, value: Any) -> bool:
    """Put `value` where the JSON pointer `path` says; False where an item of a list stands in the way, or another."""
    first, *parts = (part.replace("~1", "/").replace("~0", "~") for part in path.split("/"))
    if first or not parts or any(part.isdecimal() or part == "-" for part in parts):
        return False
    section = merged
    for part in parts[:-1]:
        section = section.setdefault(part, {})
        if not isinstance(section, dict):
            return False
    section[parts[-1]] = value
    return True


def _named(patch: Mapping[str, Any]) -> dict[str, str]:
    """The kind and the name that a patch gives itself."""
    metadata = patch.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    named = {"kind": patch.get("kind"), "name": name}
    return {key: value for key, value in named.items() if isinstance(value, str)}


def _without_names(patch: Mapping[str, Any]) -> dict[str, Any]:
    """`patch` without what says which object it is about."""
    rest = {key: value for key, value in patch.items() if key not in ("apiVersion", "kind", "metadata")}
    metadata = patch.get("metadata")
    marks = metadata if isinstance(metadata, dict) else {}
    kept = {key: value for key, value in marks.items() if key not in ("name", "namespace")}
    return {"metadata": kept, **rest} if kept else rest
