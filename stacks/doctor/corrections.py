"""Finds where `kubernetes.overlay` wrote a value that the API server refuses.

A server names fields of the object in prose, and each of its components in another notation:

    spec.template.spec.containers[1].image: Required value                       validation
    .spec.template.spec.containers[name="a"].imagge: field not declared          the schema, as an object is applied
    .metadata.annotations.example.com/a: expected string                         likewise; keys may have dots
    unknown field "spec.template.spec.tolerationz"                               decoding

Each is followed through the object and through the parts of the overlay that were merged into it. Items of lists are
found by the keys by which they were merged: the second container of a pod may be the first of an overlay.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from planner.manifests.overlay import Part, find_parts
from planner.spec.pods import OverlaySpec
from stacks.kube.manifest import Manifest

__all__ = ["suggest_correction"]

FIELD = re.compile(r"(?<![\w\]])(?:metadata|spec)(?:\.[\w/-]+|\[[^\]]*\])+")
STEP = re.compile(r"\[([^\]]*)\]|\.?([\w/-]+)")
SELECTOR = re.compile(r'(\w+)="?([^",]*)"?')


def suggest_correction(
    manifest: Manifest, overlay: OverlaySpec | None, words: str, below: Sequence[str] = ()
) -> str | None:
    """Return a fix that names the fields of `overlay` to correct, from the server's message `words` about a `manifest`.

    If the message is about a pod made from the manifest's template, `below` is the template's path. If the message
    names no field that the overlay wrote, the fix names every part of the overlay that changes this object. Return None
    if the overlay does not change the object.
    """
    parts = list(find_parts(manifest, overlay)) if overlay is not None else []
    fields = [[*below, *_split_path(each[0])] for each in FIELD.finditer(words)]
    places = (_overlay_path(part, manifest, steps) for steps in fields for part in reversed(parts))
    if found := list(dict.fromkeys(filter(None, places))):
        return f"correct {' and '.join(found)}"
    return f"see what {' and '.join(part.path for part in parts)} writes there" if parts else None


def _split_path(field: str) -> Iterator[str]:
    """Yield the steps of a field's path: `spec`, `ports`, `[0` for `spec.ports[0]`.

    An index or a selector keeps its opening bracket.
    """
    for found in STEP.finditer(field):
        yield f"[{found[1]}" if found[1] is not None else found[2]


def _overlay_path(part: Part, manifest: Manifest, steps: Sequence[str]) -> str | None:
    """Return the path in the overlay at which `part` writes the object's field at `steps`.

    Return None if `part` does not write that field.
    """
    if tuple(steps[: len(part.place)]) != part.place:
        return None
    live: Any = manifest
    for key in part.place:
        live = live[key]
    written, path, field, left = part.patch, part.path, "", list(steps[len(part.place) :])
    while left:
        step = _step(written, live, left, (part.keys or {}).get(field))
        if step is None:
            break
        number, key, at = step
        written, live, path = written[key], _child(live, at), f"{path}.{key}"
        field, left = str(key), left[number:]
    is_item_field = isinstance(written, dict) and path.rpartition(".")[2].isdecimal() and len(left) == 1
    return path if path != part.path and (not left or is_item_field) else None


Step = tuple[int, Any, Any]  # number of steps used up, key in the overlay, key in the object


def _step(written: Any, live: Any, left: Sequence[str], merge_key: str | None) -> Step | None:
    if isinstance(written, dict):
        for number in range(1, len(left) + 1):
            if (key := ".".join(left[:number])) in written:
                return number, key, key
    if not isinstance(written, list) or not left[0].startswith("[") or not isinstance(live, list):
        return None
    selector = left[0][1:]
    at = int(selector) if selector.isdecimal() else _index(live, dict(SELECTOR.findall(selector)))
    if at is None or at >= len(live):
        return None
    if merge_key is None:
        return 1, at, at
    index = _index(written, {merge_key: str(_child(live[at], merge_key))})
    return None if index is None else (1, index, at)


def _index(items: Sequence[Any], keys: dict[str, str]) -> int | None:
    matching = (
        index
        for index, each in enumerate(items)
        if isinstance(each, dict) and all(str(each.get(key)) == value for key, value in keys.items() if key in each)
    )
    return next(matching, None)


def _child(value: Any, key: Any) -> Any:
    if isinstance(value, list):
        return value[key]
    return value.get(key) if isinstance(value, dict) else None
