"""Fields of a patch that Kubernetes does not have: most are misspelt.

The API server refuses them, since objects are applied with strict validation, but only once there is a cluster. Here
they are warnings, because a server may be newer than our list. Kinds that are not listed are left to the server.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from planner.problems.errors import Violation
from planner.problems.fix import Fix, close_to, removal
from planner.spec.pods import PatchSpec

__all__ = ["unknown_fields_of"]

# Type -> field -> its type; empty for what has no fields of its own. Written by `python -m tests.docs`, from the
# schemas of this version of Kubernetes and of LeaderWorkerSet.
FIELDS = "kubernetes_fields.json"
VERSION = "1.37"
CUTOFF = 0.75  # of likeness: below it, another field is no misspelling of this one (assumed)


def unknown_fields_of(patches: Sequence[PatchSpec]) -> Iterator[Violation]:
    """Warn of each field of `patches` that objects of its kind do not have, by its path in the spec."""
    for index, each in enumerate(patches):
        if each.kind in _types():
            yield from _unknown(f"kubernetes.patches.{index}.patch", each.patch, each.kind)


def _unknown(path: str, value: Any, type_name: str) -> Iterator[Violation]:
    """Warn of each field of `value`, or of its items, that a `type_name` does not have, at any depth."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(f"{path}.{index}", item, type_name)
    if not isinstance(value, dict):
        return
    fields = _types()[type_name]
    for key, inner in value.items():
        if key not in fields:
            rule = f"W109 is no field of {type_name} in Kubernetes {VERSION}"
            reason = "a server that does not know the field rejects the object"
            yield Violation(f"{path}.{key}", None, rule, reason, _instead(key, value, list(fields)))
        elif fields[key]:
            yield from _unknown(f"{path}.{key}", inner, fields[key])


def _instead(key: str, beside: Mapping[str, Any], fields: Sequence[str]) -> Fix | str:
    """Offer the field that `key` is like, unless it is there as well; else offer to remove `key`.

    The first is no change, because that would print the value, which may be a secret.
    """
    meant = close_to(key, [each for each in fields if each not in beside], cutoff=CUTOFF)
    return removal() if meant is None else f"did you mean {meant}?"


@cache
def _types() -> Mapping[str, Mapping[str, str]]:
    types: dict[str, dict[str, str]] = json.loads(resources.files("planner.facts").joinpath(FIELDS).read_bytes())
    return types
