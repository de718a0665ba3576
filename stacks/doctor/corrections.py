"""Finds the place in `kubernetes.overlay` of a value that the API server refuses.

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
    """Say what to correct in a spec whose `overlay` wrote what the server's `words` name of a rendered `manifest`.

    The words may be of a pod that was made from the manifest's template, which stands `below`. Name the parts of the
    overlay that are about the object where the words name nothing that it wrote. Return None where no part is.
    """
    parts = list(find_parts(manifest, overlay)) if overlay is not None else []
    fields = [[*below, *_split_path(each[0])] for each in FIELD.finditer(words)]
    places = (_overlay_path(part, manifest, steps) for steps in fields for part in reversed(parts))
    if found := list(dict.fromkeys(filter(None, places))):
        return f"correct {' and '.join(found)}"
    return f"see what {' and '.join(part.path for part in parts)} writes there" if parts else None


def _split_path(field: str) -> Iterator[str]:
    """Yield keys as they are, and what stands in brackets as it is, with the opening one."""
    for found in STEP.finditer(field):
        yield f"[{found[1]}" if found[1] is not None else found[2]


def _overlay_path(part: Part, manifest: Manifest, steps: Sequence[str]) -> str | None:
    """Return the path of what `part` writes at the end of `steps`; None where it writes something else."""
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


Step = tuple[int, Any, Any]  # how many steps it takes, its key in the overlay, and in the object


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
