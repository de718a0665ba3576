"""Merge `kubernetes.overlay` into rendered objects, for settings that the spec has no field for.

    unit_pod      into the pod template of each unit
    gateway_pod   into the gateway's pod template
    objects       into objects by kind and name, after the pods

`spec/strategic_merge.py` merges, and `rules/overlay.py` protects what the planner decided. A changed object is written
again, without its template's comments. Texts in it are quoted unless they are plain words, because YAML 1.1, YAML 1.2
and kubectl disagree about numbers (`1234e56`, `0o17`), truth values and dates.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from planner.facts import names
from planner.spec.pods import OverlaySpec
from planner.spec.strategic_merge import MergeKeys, keys_of_kind, merge_patch

NOTE = "# Changed by kubernetes.overlay of the spec.\n"
WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
# Source: yaml.org/type/bool.html and yaml.org/type/null.html, of YAML 1.1
NO_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


@dataclass(frozen=True)
class Part:
    """A part of the overlay that is merged into one object, at one place."""

    path: str  # where the part is in the spec: `kubernetes.overlay.unit_pod`
    place: tuple[str, ...]  # keys to the place in the object where the part is merged
    patch: Mapping[str, Any]
    keys: MergeKeys


def apply_overlay(text: str, overlay: OverlaySpec | None) -> str:
    """Return the object in the YAML `text` with the overlay's parts for it merged in, as YAML."""
    if overlay is None:
        return text
    document = yaml.load(text, Loader=yaml.CSafeLoader)
    parts = list(find_parts(document, overlay))
    if not parts:
        return text
    for part in parts:
        document = _merged_at(document, part.place, part)
    return NOTE + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def find_parts(document: Mapping[str, Any], overlay: OverlaySpec) -> Iterator[Part]:
    """Yield the parts of `overlay` that apply to the rendered object `document`, in the order of merging."""
    kind, name = document["kind"], document["metadata"]["name"]
    above = "kubernetes.overlay"
    if kind in names.POD_TEMPLATES and overlay.unit_pod:
        yield Part(f"{above}.unit_pod", names.POD_TEMPLATES[kind], overlay.unit_pod, keys_of_kind("Pod"))
    if _is_gateway(document) and overlay.gateway_pod:
        yield Part(f"{above}.gateway_pod", ("spec", "template"), overlay.gateway_pod, keys_of_kind("Pod"))
    for index, each in enumerate(overlay.objects):
        if each.kind == kind and each.name in (None, name):
            yield Part(f"{above}.objects.{index}.patch", (), each.patch, keys_of_kind(kind))


def _is_gateway(document: Mapping[str, Any]) -> bool:
    return document["kind"] == "Deployment" and names.owner_of(document["metadata"]["labels"]) == "gateway"


def _merged_at(document: Mapping[str, Any], place: tuple[str, ...], part: Part) -> dict[str, Any]:
    if not place:
        return merge_patch(document, part.patch, part.keys)
    return {**document, place[0]: _merged_at(document[place[0]], place[1:], part)}


class _Dumper(yaml.CSafeDumper):
    """A YAML writer that quotes any text that some YAML reader would take for another type."""


def _text_node(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    is_word = WORD.fullmatch(text) is not None and text.lower() not in NO_WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_word else '"')


_Dumper.add_representer(str, _text_node)
