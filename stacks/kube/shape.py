"""Checks that a JSON document has the fields that the code reads, with values of the right type.

A shape is a picture of the document, with kinds instead of values. It names what is read, and nothing else:

    {"a": str}      a map with text under `a`; more may be in it
    {"a?": str}     the same, and `a` may be missing, or null
    {"a*": [str]}   the same, and `a` must be there, and may be null: how Go writes an empty list
    {EVERY: str}    a map whose every value is text
    [str]           a list of text
    str, int, bool  a value of that kind
    QUANTITY        an amount: `500m`, `2Gi`, 8

`SHAPES` has the shape of the API server's answers, by kind. Full schemas are the server's: only fields that are read
are checked.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from stacks.kube.quantities import is_quantity

__all__ = [
    "EVERY",
    "GROUP",
    "KINDS",
    "POD_SPEC",
    "POD_TEMPLATE",
    "QUANTITY",
    "REVIEW",
    "STORED",
    "WORKLOADS",
    "Shape",
    "list_shapes",
    "misfit",
    "object_shapes",
]

Shape = Any

EVERY = "(every)"
QUANTITY = "quantity"

NAMES: Mapping[Any, str] = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    dict: "a map",
    list: "a list",
    QUANTITY: "a quantity",
}

CONDITION = {"type": str, "status": str, "message?": str, "reason?": str}
LABELS = {EVERY: str}
QUANTITIES = {EVERY: QUANTITY}

METADATA = {
    "name": str,
    "namespace?": str,
    "uid?": str,
    "labels?": LABELS,
    "annotations?": LABELS,
    "finalizers?": [str],
    "managedFields?": [{"manager": str, "operation": str, "fieldsV1?": dict}],
}
CONTAINER = {
    "name?": str,
    "restartPolicy?": str,
    "resources?": {"requests?": QUANTITIES, "limits?": QUANTITIES},
    "env?": [{"valueFrom?": {"secretKeyRef?": {"name": str}}}],
    "volumeMounts?": [{"name": str}],
}
POD_SPEC = {
    "containers": [CONTAINER],
    "initContainers?": [CONTAINER],
    "nodeName?": str,
    "nodeSelector?": LABELS,
    "tolerations?": [{"key?": str, "value?": str, "operator?": str, "effect?": str}],
    "volumes?": [
        {
            "name": str,
            "persistentVolumeClaim?": {"claimName": str},
            "projected?": {"sources?": [{"secret?": {"name": str}}]},
        }
    ],
    "priorityClassName?": str,
    "runtimeClassName?": str,
}
POD_TEMPLATE = {"metadata?": {"labels?": LABELS, "annotations?": LABELS}, "spec": POD_SPEC}
STATE = {
    "waiting?": {"reason?": str, "message?": str},
    "terminated?": {"exitCode?": int, "reason?": str, "message?": str},
}
CONTAINER_STATUS = {"name": str, "image?": str, "state?": STATE, "lastState?": STATE}

UNITS = [{"name": str, "phase": str, "change": str}]
LEAST = {EVERY: {"units": int, "ofUnits": int}}
CHANGE = {  # of units, as the controller has recorded it
    "began": str,
    "ended?": str,
    "outcome?": str,
    "units": UNITS,
    "left": UNITS,
    "least": LEAST,
    "promised": {"least": LEAST, "seconds?": int, "minutes?": int},
}

# kind -> the fields that the code reads besides metadata and the conditions of the status
SHAPES: Mapping[str, Shape] = {
    "Node": {
        "metadata": {"resourceVersion?": str},
        "spec": {"taints?": [{"key": str, "effect": str, "value?": str}]},
        "status?": {
            "allocatable?": QUANTITIES,
            "capacity?": QUANTITIES,
            "conditions?": [{"lastTransitionTime?": str}],
        },
    },
    "Pod": {
        "metadata": {"namespace": str},
        "spec": POD_SPEC,
        "status?": {
            "phase?": str,
            "containerStatuses?": [CONTAINER_STATUS],
            "initContainerStatuses?": [CONTAINER_STATUS],
        },
    },
    "ResourceQuota": {
        "spec": {"hard?": QUANTITIES},
        "status?": {"hard?": QUANTITIES, "used?": QUANTITIES},
    },
    "PersistentVolumeClaim": {
        "spec": {"accessModes?": [str], "storageClassName?": str},
        "status?": {"phase?": str, "accessModes?": [str]},
    },
    "PriorityClass": {"value": int, "preemptionPolicy?": str},
    "StorageClass": {"volumeBindingMode?": str},
    "ConfigMap": {"data?": LABELS},
    "Deployment": {"spec": dict},
    "StatefulSet": {"spec": dict},
    "LeaderWorkerSet": {"spec": dict},
    "Lease": {"spec": {"holderIdentity?": str, "leaseTransitions?": int}, "metadata": {"resourceVersion": str}},
    "TidemillDeployment": {
        "metadata": {"namespace": str, "uid": str, "generation": int, "creationTimestamp": str},
        "spec": {"timezone": str, "units": [{"name": str, "phase": str}], "steps": [{"at": str, "units": dict}]},
        "status?": {"conditions?": [{"lastTransitionTime": str}], "changes?": [CHANGE], "unitNames?": [str]},
    },
}

# kind -> the fields that the code reads of a rendered object; empty for every kind
WORKLOADS: Mapping[str, Shape] = {
    "": {"metadata": {"name": str, "labels?": LABELS}},
    "ServiceAccount": {"imagePullSecrets?": [{"name": str}]},
    "Deployment": {"spec": {"replicas?": int, "template": POD_TEMPLATE}},
    "StatefulSet": {"spec": {"replicas?": int, "template": POD_TEMPLATE}},
    "LeaderWorkerSet": {
        "spec": {"replicas?": int, "leaderWorkerTemplate": {"size?": int, "workerTemplate": POD_TEMPLATE}}
    },
}

KINDS = {"resources*": [{"name": str, "kind": str, "namespaced": bool}]}  # of discovery
GROUP = {"versions": [{"version": str}], "preferredVersion": {"version": str}}
STORED = {"metadata": {"uid": str}}  # what was stored has one
REVIEW = {"status": {"allowed": bool}}


def object_shapes(kind: str) -> tuple[Shape, ...]:
    """Return the shapes that an object of `kind` must fit when the server sends it."""
    return ({"metadata": METADATA, "status?": {"conditions?": [CONDITION]}}, SHAPES.get(kind, {}))


def list_shapes(kind: str) -> tuple[Shape, ...]:
    """Return the shapes that a list of objects of `kind` must fit when the server sends it."""
    return tuple({"items*": [each]} for each in object_shapes(kind))


def misfit(document: Any, *shapes: Shape) -> str | None:
    """Return the document's first mistake, such as `items[0].kind must be text, and is 5`; None if all shapes fit."""
    return next((each for shape in shapes for each in _misfits(document, shape, "")), None)


def _misfits(value: Any, shape: Shape, path: str) -> Iterator[str]:
    kind = dict if isinstance(shape, dict) else list if isinstance(shape, list) else shape
    if not _is_kind(value, kind):
        yield f"{path or 'it'} must be {NAMES[kind]}, and is {_quote(value)}"
    elif isinstance(shape, list):
        for index, each in enumerate(value):
            yield from _misfits(each, shape[0], f"{path}[{index}]")
    elif isinstance(shape, dict):
        for key, inner in shape.items():
            yield from _misfits_under(key, inner, value, path)


def _misfits_under(key: str, inner: Shape, value: Mapping[str, Any], path: str) -> Iterator[str]:
    if key == EVERY:
        for name, each in value.items():
            yield from _misfits(each, inner, f"{path}.{name}".lstrip("."))
        return
    name = key.rstrip("?*")
    where = f"{path}.{name}".lstrip(".")
    if name not in value:
        if not key.endswith("?"):
            yield f"{where} is missing"
    elif value[name] is not None or key == name:
        yield from _misfits(value[name], inner, where)


def _is_kind(value: Any, kind: Any) -> bool:
    if kind == QUANTITY:
        return is_quantity(value)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _quote(value: Any) -> str:
    """Return a value as text for a message, at most 60 characters."""
    text = repr(value) if isinstance(value, str) else "null" if value is None else str(value)[:60]
    return text if len(text) <= 60 else f"{text[:57]}..."
