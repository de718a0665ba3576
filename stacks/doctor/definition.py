"""Compares the CRD of TidemillDeployment in the cluster with the one of this version. Pure.

An API server stores only fields that the kind's schema has. Others it refuses or, in a status, drops without a word: a
controller of this version would then lose what it has written.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from planner.facts.names import DOMAIN
from stacks.kube.manifest import Manifest, Reference

__all__ = ["DEFINITION", "find_missing_fields"]

DEFINITION = Reference("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", f"deployments.{DOMAIN}")
SHIPPED = Path(__file__).parents[1] / "controller" / "definition.yaml"


def find_missing_fields(live: Manifest) -> list[str]:
    """Return the fields, such as `spec.units[].spares`, that this version's schema has and the definition `live` lacks.

    Fields inside a missing one are not named. Versions that the cluster does not serve are not compared.
    """
    found = []
    for version, schema in _schemas(_shipped_definition()).items():
        there = _schemas(live).get(version)
        if there is not None:
            found += list(_missing_fields(schema, there, ""))
    return found


def _missing_fields(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the paths of the fields that the schema `ours` has and `theirs` lacks.

    Both are schemas of the field at `path`. Nothing is missing if `theirs` keeps unknown fields.
    """
    if theirs.get("x-kubernetes-preserve-unknown-fields"):
        return
    known = theirs.get("properties") or {}
    for name, schema in (ours.get("properties") or {}).items():
        place = f"{path}.{name}" if path else name
        if name in known:
            yield from _missing_fields(schema, known[name], place)
        else:
            yield place
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if key in ours and isinstance(theirs.get(key), Mapping):
            yield from _missing_fields(ours[key], theirs[key], f"{path}{mark}")


def _schemas(definition: Manifest) -> dict[str, Mapping[str, Any]]:
    """Return version -> schema of a CustomResourceDefinition."""
    versions = definition["spec"]["versions"]
    return {each["name"]: (each.get("schema") or {}).get("openAPIV3Schema") or {} for each in versions}


@cache
def _shipped_definition() -> Manifest:
    definition: Manifest = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    return definition
