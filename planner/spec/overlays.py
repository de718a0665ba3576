"""Spec overlays: an environment's changes to a base spec, such as name, cluster and image.

    base.yaml                              prod.yaml                        together
    cluster: {nodes: 2, rack_size: 4}      cluster: {nodes: 22,             cluster: {nodes: 22}
                                                     rack_size: null}

Mappings merge key by key, and later files win. Any other value replaces the earlier one; `null` removes it, so the
default holds. A section in short form (`engine: sglang`) merges as if it were written in full. A file that an overlay
names is relative to the overlay.

Each value keeps its place in its file. Nothing is checked here, because the merged document is checked as one spec.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from planner.problems.fix import apply_change, value_at
from planner.spec.declared import section_of
from planner.spec.named import FILES
from planner.spec.schema import Spec
from planner.spec.short_forms import SHORT_FORMS, expand_short_forms
from planner.spec.yaml import Document, Place


def apply_overlay(base: Document, overlay: Document) -> Document:
    """Return the spec `base` with the values of the spec `overlay` merged into it."""
    base = _with_sections_in_full(base, overlay.data)
    overlay = _with_names_from(base, overlay)
    gone = set(_replaced_paths(base.data, overlay.data))
    return replace(
        base,
        data=_merge(base.data, overlay.data, Spec),
        keys=overlay.keys | {path: place for path, place in base.keys.items() if path not in gone},
        values={path: place for path, place in base.values.items() if path not in gone} | overlay.values,
        autos=overlay.autos | (base.autos - gone),
        refused=base.refused + overlay.refused,
        is_overlaid=True,
        file_names={path: name for path, name in base.file_names.items() if path not in gone} | overlay.file_names,
    )


def _merge(below: Mapping[str, Any], above: Mapping[str, Any], section: type[BaseModel] | None) -> dict[str, Any]:
    """Return the mapping `below` with `above` merged into it.

    `section` declares the fields of both; it is None if users choose the keys. A `null` that removes nothing is dropped
    if its key is a field. Otherwise it is kept: its key may be unknown, or it may be part of a pod's patch.
    """
    result = dict(below)
    for key, value in above.items():
        field, there = section.model_fields.get(key) if section else None, below.get(key)
        if isinstance(value, dict):
            inner = section_of(field) if field else None
            result[key] = _merge(there if isinstance(there, dict) else {}, value, inner)
        elif value is None and (key in below or field):
            result.pop(key, None)
        else:
            result[key] = value
    return result


def _replaced_paths(below: Mapping[str, Any], above: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield each path whose value `above` sets as a whole, and all paths inside the value that `below` has there."""
    for key, value in above.items():
        at, there = f"{path}.{key}".lstrip("."), below.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            yield from _replaced_paths(there, value, at)
        else:
            yield from _paths_in(there, at)


def _paths_in(value: Any, path: str) -> Iterator[str]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from _paths_in(each, f"{path}.{key}")


def _with_sections_in_full(base: Document, overlay: Mapping[str, Any]) -> Document:
    """Return `base` with the full form of each section that `overlay` writes as a mapping."""
    data = expand_short_forms(base.data, [f"{key}.*" for key, value in overlay.items() if isinstance(value, dict)])
    moved = {key: f"{key}.{SHORT_FORMS[key]}" for key in data if data[key] is not base.data[key]}

    def with_moved(places: Mapping[str, Place]) -> dict[str, Place]:
        return {**places, **{inner: places[section] for section, inner in moved.items()}}

    autos = frozenset(moved.get(path, path) for path in base.autos)
    return replace(base, data=data, keys=with_moved(base.keys), values=with_moved(base.values), autos=autos)


def _with_names_from(base: Document, overlay: Document) -> Document:
    """Return `overlay` with its file names made relative to the folder of `base`. Links to folders are resolved."""
    ours, theirs = Path(overlay.file).parent, Path(base.file).parent
    if ours == theirs:
        return overlay
    folder = Path(os.path.relpath(ours.resolve(), theirs.resolve()))
    names = {path: name for path in FILES if isinstance(name := value_at(overlay.data, path), str) and name}
    data = apply_change(overlay.data, {path: str(folder / name) for path, name in names.items()})
    return replace(overlay, data=data, file_names=names)
