"""The rule about the types of what `kubernetes.patches` say: text, numbers, lists and mappings, as fields take them.

A field's type never changes within a version of Kubernetes' API, so a server of any age refuses another. Fields that
our table lacks are warned of (`estimate/unknown_fields.py`), since a server may be newer. Where another rule about
patches speaks, this one is silent.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from planner.facts.kubernetes_types import kubernetes_types
from planner.spec import patch_rules, patched_pods
from planner.spec.object_names import DNS_1123, MAX_DNS_LABEL
from planner.spec.rule import Broken, Rule, declare_in

__all__ = ["RULES"]

NAMED_BY_LABELS = ("containers", "initContainers", "volumes")  # and by DNS-1123 labels
REASON = "the API server takes no value of another type for this field"

RULES: list[Rule] = []
_reads = declare_in(RULES)


@_reads("kubernetes.patches", "name?")
def patched_values_are_of_their_fields_types(
    patches: Sequence[Mapping[str, Any]], plan: str | None
) -> Iterator[Broken]:
    """Refuse what a server would refuse, without the value: it may be a secret."""
    said = _said_elsewhere({"kubernetes.patches": patches, "name": plan})
    for index, each in enumerate(patches):
        if each.get("kind") in kubernetes_types() and isinstance(each.get("patch"), dict):
            path = f"kubernetes.patches.{index}.patch"
            yield from (wrong for wrong in _wrong(path, each["patch"], each["kind"]) if wrong.path not in said)


@_reads("kubernetes.patches")
def patched_items_have_names_that_servers_take(patches: Sequence[Mapping[str, Any]]) -> Iterator[Broken]:
    """Refuse the name of a container or a volume that is no DNS-1123 label: anything else may be in it."""
    for index, each in enumerate(patches):
        yield from _odd_labels(f"kubernetes.patches.{index}.patch", each.get("patch"))


def _said_elsewhere(values: Mapping[str, Any]) -> set[str | None]:
    """Return the paths of which another rule about patches says that they must be something else."""
    rules = (each for each in (*patch_rules.RULES, *patched_pods.RULES) if set(each.reads) <= values.keys())
    return {broken.path for each in rules for broken in each.verdicts(each.reads, values)}


def _wrong(path: str, value: Any, type_name: str) -> Iterator[Broken]:
    """Yield what in `value`, at any depth, is of another type than its field; null takes any field away."""
    if value is None or not type_name:
        return
    if type_name in PLAIN:
        is_right, noun = PLAIN[type_name]
        if not is_right(value):
            yield _of_another_type(path, noun)
        return
    wanted, noun = (list, "a list") if type_name[0] == "[" else (dict, "a mapping")
    if isinstance(value, wanted):
        for key, inner, of_inner in _below(value, type_name):
            yield from _wrong(f"{path}.{key}", inner, of_inner)
    else:
        yield _of_another_type(path, noun)


def _below(value: Any, type_name: str) -> Iterator[tuple[str, Any, str]]:
    """Yield each key or index below `value`, what stands there, and its type; unknown fields may be anything."""
    if type_name[0] == "[":
        yield from ((str(index), each, type_name[1:-1]) for index, each in enumerate(value))
    elif type_name[0] == "{":
        yield from ((str(key), each, type_name[1:-1]) for key, each in value.items())
    else:
        fields = kubernetes_types()[type_name]
        yield from ((str(key), each, fields.get(key, "")) for key, each in value.items())


def _of_another_type(path: str, noun: str) -> Broken:
    return Broken(f"S468 must be {noun}", REASON, f"write {noun}, or remove it", path)


def _is_whole(bits: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)


def _is_finite_quantity(value: Any) -> bool:
    return type(value) is int or (isinstance(value, float) and abs(value) < MAX_QUANTITY) or _is_text(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


MAX_QUANTITY = 2.0**63  # Source: k8s.io/apimachinery pkg/api/resource quantity.go: larger ones are capped
PLAIN: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "text": (_is_text, "text"),
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "int32": (_is_whole(32), "a whole number of 32 bits"),
    "int64": (_is_whole(64), "a whole number of 64 bits"),
    "int or text": (lambda value: _is_whole(32)(value) or _is_text(value), "a whole number or text"),
    "quantity": (_is_finite_quantity, "a quantity"),
}


def _odd_labels(path: str, value: Any, field: str = "") -> Iterator[Broken]:
    """Yield the name of each container or volume at or below `path` that is no label."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        where = f"{path}.{key}"
        name = inner.get("name") if field in NAMED_BY_LABELS and isinstance(inner, dict) else None
        if isinstance(name, str) and not (DNS_1123.fullmatch(name) and len(name) <= MAX_DNS_LABEL):
            rule = f"S468 must be at most {MAX_DNS_LABEL} lower-case letters, digits and hyphens (DNS-1123)"
            yield Broken(rule, f"Kubernetes gives {field} no other names", "write such a name", f"{where}.name", name)
        yield from _odd_labels(where, inner, str(key))
