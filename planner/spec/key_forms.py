"""Answers to keys that say in a form of their own what a spec says otherwise: Kustomize's, a container's, an engine's.

Such a form may have several keys, and is told at the first of them.
"""

from collections.abc import Callable, Mapping
from typing import Any

from planner.problems.fix import HERE, Fix
from planner.spec.container_resources import (
    GPU_COUNTS,
    IB_DEVICES,
    QUANTITIES,
    has_two_sizes,
    of_all_nodes,
    of_container,
    of_count,
    of_ib_devices,
    of_kind,
    of_phase,
)
from planner.spec.declared import place_of
from planner.spec.engine_flags import said_by_flag
from planner.spec.kustomize import KUSTOMIZE_KEYS, keys_of_kustomize, said_by_kustomize
from planner.spec.other_names import unwrapped
from planner.spec.unknown_key import Answer, UnknownKey, none_such, put_instead, renamed, to_write

__all__ = ["as_a_container_says", "as_an_engine_says", "as_kustomize_says", "as_others_say", "is_told_elsewhere"]

RESOURCES = ("kubernetes.resources", "kubernetes.resources.unit", "kubernetes.resources.gateway")


def as_an_engine_says(key: UnknownKey) -> Answer | None:
    """Answer flags of parallelism, which are read together: `tp: 16` beside `dp: 16` is `ep_size: 16`."""
    said = said_by_flag(key.name, key.beside) if key.phase else None
    if said is None:
        return None
    numbers, reason = said
    meant = {key.sibling(each): number for each, number in numbers.items()}
    return put_instead(reason, to_write(numbers) or "leave it out", meant)


def as_kustomize_says(key: UnknownKey) -> Answer | None:
    """Answer a patch in Kustomize's form: `target: {kind: Service}` is `kind: Service`."""
    gone, meant = _keys_of_kustomize(key), _said_in_form(key)
    if not gone or not meant:
        return None
    changes = {HERE: None, **{key.sibling(each): None for each in gone}, **meant}
    return Answer("this is how Kustomize writes a patch", Fix(to_write(key.as_seen_there(meant)), (changes,)), meant)


def as_a_container_says(key: UnknownKey) -> Answer | None:
    """Answer a container's quantities: `limits: {cpu: 4, memory: 8Gi}` is `unit: {cpus: 4, memory: 8GiB}`."""
    meant = _said_in_form(key) if key.section in RESOURCES else None
    if not meant:
        return None
    both = _both_quantities(key)
    reason = none_such(key).reason if both else None
    if key.parent == "kubernetes.resources" and has_two_sizes(key.beside):
        reason = "a pod's memory request equals its limit, so there is one size for both"
    return renamed(key, meant, reason, gone=both)


def as_others_say(key: UnknownKey) -> Answer | None:
    """Answer every other form: `gpus: 16` beside `nodes: 2` is `gpus_per_node: 8`. It may say nothing of ours."""
    meant = _said_in_form(key)
    if meant is None:
        return None
    return renamed(key, meant) if meant else none_such(key)


def is_told_elsewhere(key: UnknownKey) -> bool:
    """Return whether the key is one of several of a form that is told at the first of them."""
    keys = _keys_of_kustomize(key) or _both_quantities(key)
    return key.name in keys[1:] and bool(_said_in_form(key))


def _said_in_form(key: UnknownKey) -> Mapping[str, Any] | None:
    """Return the fields that nobody has given and a form says, path -> value; None for a key that is of no form."""
    form = FORMS.get(place_of(key.path))
    if form is None:
        return None
    said = {each if "." in each else key.sibling(each): value for each, value in form(key.beside).items()}
    return {path: value for path, value in said.items() if not _is_given(path, key.spec)}


def _is_given(path: str, spec: Mapping[str, Any]) -> bool:
    """Return whether something stands at `path`."""
    found: Any = spec
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found is not None


def _keys_of_kustomize(key: UnknownKey) -> tuple[str, ...]:
    """Return the keys of Kustomize's form of a patch, of which this one is one."""
    keys = keys_of_kustomize(key.beside) if key.section == "kubernetes.patches" else ()
    return keys if key.name in keys else ()


def _both_quantities(key: UnknownKey) -> tuple[str, ...]:
    """Return `requests` and `limits` where both stand in one section, and the key is one of them."""
    is_one = key.name in QUANTITIES and key.section in RESOURCES
    found = tuple(each for each in key.beside if is_one and each in QUANTITIES)
    return found if len(found) > 1 else ()


def _of_folder(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a volume for a folder of the nodes."""
    folder = unwrapped(given["hostPath"])
    is_told = isinstance(folder, str) and "volumes" not in given
    return {"volumes": [{"host_path": folder, "mount_path": folder}]} if is_told else {}


# Place of a key that we lack -> what its section says, as keys of ours.
FORMS: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "cluster.gpus": of_all_nodes,
    "kubernetes.hostPath": _of_folder,
    "PHASE.resources": of_phase,
    **dict.fromkeys((f"PHASE.{key}" for key in GPU_COUNTS), of_count),
    **dict.fromkeys((f"PHASE.{key}" for key in IB_DEVICES), of_ib_devices),
    **dict.fromkeys((f"kubernetes.resources.{key}" for key in QUANTITIES), of_container),
    **dict.fromkeys((f"{place}.{key}" for place in RESOURCES[1:] for key in QUANTITIES), of_kind),
    **dict.fromkeys((f"kubernetes.patches.{key}" for key in KUSTOMIZE_KEYS), said_by_kustomize),
}
