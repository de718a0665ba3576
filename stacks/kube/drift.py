"""Drift: the manifest with the live value of each of our fields that somebody has changed.

Drift is what applying the manifest again would change. So three objects go in: the manifest, the live object, and what
the server answers to a dry run of applying the manifest. The last two went through the same server, with the same
defaults, the same spelling of quantities and the same admission, so they are equal wherever nothing drifted, and no
knowledge of any kind's schema is needed. Where they are equal the manifest's own value stands; where they differ, the
live one. If the object is certainly unchanged (`is_surely_unchanged`), there is no dry run.

Fields of others are in both and are no drift: defaults, status, a sidecar, an annotation. A field that we own and that
the manifest no longer has is in the live object only, and is drift: applying would remove it.

Items of some lists have a key (containers by name, ports by number and protocol). Which lists, and which keys, is in
the object's `managedFields`, where the server wrote down what our apply owns; other lists are compared as a whole.

Source: https://kubernetes.io/docs/reference/using-api/server-side-apply/ (merge strategy; fieldsV1: `f:` a field, `k:`
an item by its key, `v:` an item that is its own key).
"""

import json
from collections.abc import Iterator
from typing import Any

from stacks.kube.manifest import Manifest

__all__ = ["FIELD_MANAGER", "guess_applied", "is_surely_unchanged", "merge_live_values", "owned_fields"]

FIELD_MANAGER = "tidemill"

Owned = dict[str, Any]  # a node of the tree `fieldsV1` in `managedFields`


def merge_live_values(manifest: Manifest, live: Manifest, applied: Manifest) -> Manifest:
    """Return `manifest` with drifted fields set to their live values.

    A field has drifted if `live` differs from `applied`, the result of applying the manifest as a dry run.
    """
    answer = _merge_map(manifest, live, applied, owned_fields(applied))
    assert isinstance(answer, dict)
    return answer


def is_surely_unchanged(manifest: Manifest, live: Manifest) -> bool:
    """Return whether applying `manifest` surely changes nothing: we own exactly its fields, and `live` has its values.

    False if that is unsure, because a value is spelled differently (such as a quantity) or an item's key has a default.
    A dry run has to decide in that case.
    """
    metadata = {key: value for key, value in manifest["metadata"].items() if key not in ("name", "namespace")}
    ours = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind", "metadata")}
    return _is_unchanged(ours | ({"metadata": metadata} if metadata else {}), live, owned_fields(live))


def guess_applied(live: Manifest, manifest: Manifest) -> Manifest:
    """Guess the object that applying `manifest` to `live` would give, where the server refuses a dry run.

    Lists of equal length are merged item by item. A list of another length is replaced as a whole.
    """
    return {**live, **{key: _guess_applied_value(live.get(key), value) for key, value in manifest.items()}}


def owned_fields(stored: Manifest) -> Owned:
    """Return the tree (`fieldsV1`) of an object's fields that our field manager has applied; empty if it has none."""
    entries = stored["metadata"].get("managedFields") or []
    ours = (e for e in entries if e["manager"] == FIELD_MANAGER and e["operation"] == "Apply")
    return next((each.get("fieldsV1") or {} for each in ours if not each.get("subresource")), {})


def _is_unchanged(ours: Any, live: Any, owned: Owned) -> bool:
    names = owned.keys() - {"."}
    if not names:  # the value is owned as a whole
        return bool(ours == live)
    if isinstance(ours, dict) and isinstance(live, dict):
        is_ours = names == {f"f:{key}" for key in ours} and ours.keys() <= live.keys()
        return is_ours and all(_is_unchanged(value, live[key], owned[f"f:{key}"]) for key, value in ours.items())
    keys = {name: json.loads(name.removeprefix("k:")) for name in names if name.startswith("k:")}
    if isinstance(ours, list) and isinstance(live, list) and len(keys) == len(names) == len(ours):
        return all(_item_is_unchanged(key, ours, live, owned[name]) for name, key in keys.items())
    return False


def _item_is_unchanged(key: Manifest, ours: list[Any], live: list[Any], owned: Owned) -> bool:
    item, found = _find_item(key, ours), _find_item(key, live)
    return item is not None and found is not None and _is_unchanged(item, found, owned)


def _guess_applied_value(live: Any, value: Any) -> Any:
    if isinstance(live, dict) and isinstance(value, dict):
        return guess_applied(live, value)
    if isinstance(live, list) and isinstance(value, list) and len(live) == len(value):
        return list(map(_guess_applied_value, live, value))
    return value


def _merge_value(ours: Any, live: Any, applied: Any, owned: Owned) -> Any:
    if live == applied:
        return ours
    if isinstance(ours, dict) and isinstance(live, dict) and isinstance(applied, dict):
        return _merge_map(ours, live, applied, owned)
    if isinstance(ours, list) and isinstance(live, list) and isinstance(applied, list):
        return _merge_list(ours, live, applied, owned)
    return live


def _merge_map(ours: Manifest, live: Manifest, applied: Manifest, owned: Owned) -> Manifest:
    answer = {}
    for key, value in ours.items():
        if key in live:
            answer[key] = _merge_value(value, live[key], applied.get(key), owned.get(f"f:{key}") or {})
        elif key not in applied:
            answer[key] = value  # even an apply leaves no such field on the server: it has not drifted
    ended = live.keys() - applied.keys() - ours.keys()
    return answer | {key: live[key] for key in sorted(ended)}


def _merge_list(ours: list[Any], live: list[Any], applied: list[Any], owned: Owned) -> list[Any]:
    keys = [json.loads(each.removeprefix("k:")) for each in owned if each.startswith("k:")]
    if keys:
        return list(_merge_items(ours, live, applied, keys, owned))
    if any(each.startswith("v:") for each in owned):
        ended = [each for each in live if each not in applied and each not in ours]
        return [each for each in ours if each in live] + ended
    return live


def _merge_items(
    ours: list[Any], live: list[Any], applied: list[Any], keys: list[Manifest], owned: Owned
) -> Iterator[Any]:
    """Yield the manifest's items that still exist, with live values, then the live items that applying would remove."""
    left = list(keys)
    for item in ours:
        key = next((each for each in left if _may_have_key(item, each)), None)
        if key is None:  # the server stores no such item: nothing to compare
            yield item
            continue
        left.remove(key)
        found, expected = _find_item(key, live), _find_item(key, applied)
        if found is not None:
            yield _merge_value(item, found, expected, _owned_item(owned, key))
    names = keys[0].keys()
    yield from (each for each in live if _find_item({name: each.get(name) for name in names}, applied) is None)


def _may_have_key(item: Manifest, key: Manifest) -> bool:
    """Return whether a list's item may have `key`: no field of the key has another value in the item.

    An item may omit a field of its key that has a default, such as a port's protocol.
    """
    return all(item.get(name, value) == value for name, value in key.items())


def _find_item(key: Manifest, items: list[Any]) -> Any:
    """Return the item whose fields have the values in `key`; None if there is none."""
    return next((each for each in items if all(each.get(name) == value for name, value in key.items())), None)


def _owned_item(owned: Owned, key: Manifest) -> Owned:
    return next(value or {} for name, value in owned.items() if name.startswith("k:") and json.loads(name[2:]) == key)
