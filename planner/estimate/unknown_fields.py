"""Fields of a patch, and words of some fields, that Kubernetes does not have: most are misspelt.

The API server refuses them, since objects are applied with strict validation, but only once there is a cluster. Here
they are warnings, because a server may be newer than our list. What kinds of other projects have is left to the server.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.facts.kubernetes_types import VERSION, kubernetes_types
from planner.problems.errors import Violation
from planner.problems.fix import Fix, close_to, removal
from planner.spec.pods import PatchSpec

__all__ = ["unknown_fields_of"]

# Type and field -> the words that it takes. Source: descriptions of these fields in the schemas of that version.
WORDS = {
    ("Toleration", "operator"): ("Exists", "Equal", "Lt", "Gt"),
    ("Toleration", "effect"): ("NoSchedule", "PreferNoSchedule", "NoExecute"),
    ("Container", "imagePullPolicy"): ("Always", "Never", "IfNotPresent"),
    ("ContainerPort", "protocol"): ("UDP", "TCP", "SCTP"),
    ("PodSpec", "dnsPolicy"): ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
    ("PodSpec", "preemptionPolicy"): ("Never", "PreemptLowerPriority"),
    ("ServiceSpec", "sessionAffinity"): ("ClientIP", "None"),
}


def unknown_fields_of(patches: Sequence[PatchSpec]) -> Iterator[Violation]:
    """Warn of each field of `patches` that objects of its kind do not have, by its path in the spec."""
    for index, each in enumerate(patches):
        if each.kind in kubernetes_types():
            yield from _unknown(f"kubernetes.patches.{index}.patch", each.patch, each.kind)


def _unknown(path: str, value: Any, type_name: str) -> Iterator[Violation]:
    """Warn of each field of `value`, or of its items, that a `type_name` does not have, at any depth."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(f"{path}.{index}", item, type_name)
    if not isinstance(value, dict):
        return
    fields = kubernetes_types()[type_name]
    for key, inner in value.items():
        if key not in fields:
            rule = f"W109 is no field of {type_name} in Kubernetes {VERSION}"
            reason = "a server that does not know the field rejects the object"
            yield Violation(f"{path}.{key}", None, rule, reason, _instead(key, value, list(fields)))
        elif isinstance(inner, str) and inner not in (words := WORDS.get((type_name, key), (inner,))):
            rule = f"W109 is none of {', '.join(words)}, which {key} takes in Kubernetes {VERSION}"
            yield Violation(
                f"{path}.{key}", None, rule, "a server that does not know it rejects the object", _of(words, inner)
            )
        elif (of_field := fields[key].strip("[]")) in kubernetes_types():
            yield from _unknown(f"{path}.{key}", inner, of_field)


def _of(words: Sequence[str], written: str) -> str:
    meant = close_to(written, words)
    return f"did you mean {meant}?" if meant else "write one of these"


def _instead(key: str, beside: Mapping[str, Any], fields: Sequence[str]) -> Fix | str:
    """Offer the field that `key` is like, unless it is there as well; else offer to remove `key`.

    The first is no change, because that would print the value, which may be a secret.
    """
    meant = close_to(key, [each for each in fields if each not in beside])
    return removal() if meant is None else f"did you mean {meant}?"
