"""The fields of Kubernetes' objects, as `planner/facts/kubernetes_fields.json` has them: type -> field -> its type.

From the schemas that Kubernetes publishes, as the package `kubernetes-validate` carries them, for the kinds that
`tidemill render` writes. Types of other projects stand here; `tests/cluster` holds LeaderWorkerSet against its CRD.

A type is one of these names, or a plain one (`text`, `bool`, `int32`, `int64`, `int or text`, `quantity`); `[T]` is a
list of T, `{T}` a mapping of any keys to T, and empty what may be anything.
"""

import json
from importlib import resources

__all__ = ["LEADER_WORKER_SET", "VERSION", "fields_page"]

VERSION = "1.37"
KINDS = {
    "Deployment": "io.k8s.api.apps.v1.Deployment",
    "StatefulSet": "io.k8s.api.apps.v1.StatefulSet",
    "Service": "io.k8s.api.core.v1.Service",
    "ServiceAccount": "io.k8s.api.core.v1.ServiceAccount",
    "Namespace": "io.k8s.api.core.v1.Namespace",
    "NetworkPolicy": "io.k8s.api.networking.v1.NetworkPolicy",
    "PodDisruptionBudget": "io.k8s.api.policy.v1.PodDisruptionBudget",
}
LEADER_WORKER_SET = {
    "LeaderWorkerSet": {
        "apiVersion": "text",
        "kind": "text",
        "metadata": "ObjectMeta",
        "spec": "LeaderWorkerSetSpec",
        "status": "",
    },
    "LeaderWorkerSetSpec": {
        "leaderWorkerTemplate": "LeaderWorkerTemplate",
        "networkConfig": "NetworkConfig",
        "replicas": "int32",
        "rolloutStrategy": "RolloutStrategy",
        "startupPolicy": "text",
    },
    "LeaderWorkerTemplate": {
        "leaderTemplate": "PodTemplateSpec",
        "persistentVolumeClaimRetentionPolicy": "StatefulSetPersistentVolumeClaimRetentionPolicy",
        "restartPolicy": "text",
        "size": "int32",
        "subGroupPolicy": "SubGroupPolicy",
        "volumeClaimTemplates": "[PersistentVolumeClaim]",
        "workerTemplate": "PodTemplateSpec",
    },
    "NetworkConfig": {"subdomainPolicy": "text"},
    "RolloutStrategy": {"rollingUpdateConfiguration": "RollingUpdateConfiguration", "type": "text"},
    "RollingUpdateConfiguration": {"maxSurge": "int or text", "maxUnavailable": "int or text", "partition": "int32"},
    "SubGroupPolicy": {"subGroupPolicyType": "text", "subGroupSize": "int32"},
}

OPERATED = {
    "apiVersion": "text",
    "kind": "text",
    "metadata": "ObjectMeta",
    "spec": "",
    "status": "",
}  # the rest is theirs
THEIR_KINDS = ("PodMonitor", "ComputeDomain", "Certificate")
OTHER_KINDS = LEADER_WORKER_SET | dict.fromkeys(THEIR_KINDS, OPERATED)
PLAIN = {
    "IntOrString": "int or text",
    "Quantity": "quantity",
    "Time": "text",
    "string": "text",
    "boolean": "bool",
    "integer": "int64",
    "int32": "int32",
}


def fields_page() -> str:
    """The file, a type a line."""
    folder = resources.files("kubernetes_validate") / "kubernetes-json-schema" / f"v{VERSION}.0-local-strict"
    definitions = json.loads((folder / "_definitions.json").read_text(encoding="utf-8"))["$defs"]
    types = dict(OTHER_KINDS)
    for name in KINDS.values():
        _add(name, definitions, types)
    lines = (f"  {json.dumps(name)}: {json.dumps(types[name])}" for name in sorted(types))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _add(name, definitions, types):
    """Add the type `name` and those of its fields to `types`."""
    fields = types.setdefault(_short(name), {})
    for field, schema in sorted(definitions[name]["properties"].items()):
        fields[field] = _type_of(schema, definitions, types) if field != "status" else ""


def _type_of(schema, definitions, types):
    """Return the type of what `schema` is of, whose own fields are in `types` afterwards."""
    if name := next((each["$ref"].rpartition("/")[2] for each in _alternatives(schema) if "$ref" in each), None):
        if "properties" not in definitions[name]:
            return PLAIN.get(_short(name), "")
        if _short(name) not in types:
            _add(name, definitions, types)
        return _short(name)
    if "items" in schema:
        return f"[{_type_of(schema['items'], definitions, types)}]"
    if "additionalProperties" in schema:
        return f"{{{_type_of(schema['additionalProperties'], definitions, types)}}}"
    kinds = schema.get("type", [])
    kind = next((each for each in ([kinds] if isinstance(kinds, str) else kinds) if each != "null"), "")
    return PLAIN.get(schema.get("format"), PLAIN.get(kind, ""))


def _alternatives(schema):
    return [schema, *schema.get("oneOf", []), *schema.get("anyOf", [])]


def _short(name):
    return name.rpartition(".")[2]
