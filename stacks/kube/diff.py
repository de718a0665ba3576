"""The differences between two manifests, path by path: `spec.template.spec.containers[0].image` changed.

Equal manifests have no difference, and the differences turn the old one into the new one. Both are plain JSON with
whole numbers as `int`, so that nothing but a real change differs.

Lists are compared index by index, as Pulumi shows them. Equal items at their ends are set aside first: an item added or
removed in the middle is then one difference, and not one for each item after it. Indexes are those of the new list, and
for removed items those of the old one.

It does not know what a field means: `500m` and `0.5` differ here. Comparing with a live object is `drift.py`.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = ["Difference", "DifferenceKind", "Path", "differences", "path_text"]

Path = tuple[str | int, ...]

# Characters that end a key in Pulumi's property paths.
NEEDS_QUOTES = frozenset('."[]')


class DifferenceKind(Enum):
    """The kind of a difference: a value was added, changed or removed."""

    ADD = "add"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True)
class Difference:
    """One difference between two manifests: its path and kind. The values themselves are left out."""

    path: Path
    kind: DifferenceKind


def differences(old: Any, new: Any, path: Path = ()) -> Iterator[Difference]:
    """Yield every difference between two values, which are at `path` of two manifests, in the order of their keys."""
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _map_differences(old, new, path)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _list_differences(old, new, path)
    elif not _equal(old, new):
        yield Difference(path, DifferenceKind.UPDATE)


def path_text(path: Path) -> str:
    """Return a path as Pulumi writes it: `spec.ports[0].name`, `metadata.labels["app.kubernetes.io/name"]`."""
    return "".join(map(_step_text, path)).removeprefix(".")


def _map_differences(old: dict[str, Any], new: dict[str, Any], path: Path) -> Iterator[Difference]:
    for key in sorted(old.keys() | new.keys()):
        if key not in old:
            yield Difference((*path, key), DifferenceKind.ADD)
        elif key not in new:
            yield Difference((*path, key), DifferenceKind.DELETE)
        else:
            yield from differences(old[key], new[key], (*path, key))


def _list_differences(old: list[Any], new: list[Any], path: Path) -> Iterator[Difference]:
    end = _common_end(old, new)
    old_end, new_end = len(old) - end, len(new) - end
    shared = min(old_end, new_end)
    for index in range(shared):
        yield from differences(old[index], new[index], (*path, index))
    yield from (Difference((*path, index), DifferenceKind.ADD) for index in range(shared, new_end))
    yield from (Difference((*path, index), DifferenceKind.DELETE) for index in range(shared, old_end))


def _common_end(old: list[Any], new: list[Any]) -> int:
    """Return how many items the two lists have in common at their ends."""
    pairs = zip(reversed(old), reversed(new), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: _equal(*pair), pairs))


def _equal(old: Any, new: Any) -> bool:
    """Return whether two values are equal as JSON. Python's `==` is not enough: `True == 1` there."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_equal(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_equal, old, new))
    return isinstance(old, bool) == isinstance(new, bool) and bool(old == new)


def _step_text(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    if step and not NEEDS_QUOTES.intersection(step):
        return f".{step}"
    quoted = step.replace('"', '\\"')
    return f'["{quoted}"]'
