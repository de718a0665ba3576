"""Warn of patches that the API server would refuse, although every field in them exists.

Two such mistakes are looked for: a container of another name than the plan's, which then has no image, and a port that
is added to a Service without a name. More is left to the server.

Source: the Kubernetes schemas in the package `kubernetes-validate`: `name` of ServicePort.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.facts import names
from planner.problems.errors import Violation
from planner.spec.pods import PatchSpec

__all__ = ["refused_parts_of"]

CONTAINERS = ("containers", "initContainers")
OURS = {"Deployment": "gateway"}  # the first container of a kind; units have the one below
UNITS_OWN = "runtime"


def refused_parts_of(patches: Sequence[PatchSpec], gateway_port: int) -> Iterator[Violation]:
    """Warn of each such part of `patches`, by its path in the spec."""
    for index, each in enumerate(patches):
        path = f"kubernetes.patches.{index}.patch"
        if each.kind == "Service":
            yield from _of_service(f"{path}.spec", each.patch.get("spec"), gateway_port)
        else:
            yield from _containers(path, each.patch, OURS.get(each.kind, UNITS_OWN))


def _of_service(path: str, spec: Any, gateway_port: int) -> Iterator[Violation]:
    if not isinstance(spec, Mapping):
        return
    ports = spec.get("ports")
    for index, port in enumerate(ports if isinstance(ports, list) else ()):
        if isinstance(port, Mapping) and "name" not in port and port.get("port") != gateway_port:
            rule, reason = "W114 must have a name beside the plan's port", "ports of a Service are told apart by names"
            yield Violation(f"{path}.ports.{index}", None, rule, reason, "give it a name")


def _containers(path: str, value: Any, own: str) -> Iterator[Violation]:
    """Warn of containers, at any depth of `value`, that are neither the plan's nor whole."""
    below = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in below:
        if key in CONTAINERS and isinstance(inner, list):
            for index, each in enumerate(inner):
                if isinstance(each, Mapping) and each.get("name") not in names.POD_CONTAINERS and "image" not in each:
                    rule, reason = "W114 must have an image", "the plan has no container of that name, so it is added"
                    where = f"{path}.{key}.{index}.name"
                    yield Violation(where, each.get("name"), rule, reason, f"did you mean {own}?")
        else:
            yield from _containers(f"{path}.{key}", inner, own)
