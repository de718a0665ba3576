"""The names of Kubernetes' fields, as `planner/facts/kubernetes_fields.json` has them: type -> field -> its type.

From the schemas that Kubernetes publishes, as the package `kubernetes-validate` carries them, for the kinds that
`tidemill render` writes. LeaderWorkerSet is not Kubernetes': its types stand here, and `tests/cluster` holds them
against its CRD. Empty is the type of a value without fields of its own, such as a number or the map of labels.
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
    "PodDisruptionBudget": "io.k8s.api.policy.v1.PodDisruptionBudget",
}
LEADER_WORKER_SET = {
    "LeaderWorkerSet": {
        "apiVersion": "",
        "kind": "",
        "metadata": "ObjectMeta",
        "spec": "LeaderWorkerSetSpec",
        "status": "",
    },
    "LeaderWorkerSetSpec": {
        "leaderWorkerTemplate": "LeaderWorkerTemplate",
        "networkConfig": "NetworkConfig",
        "replicas": "",
        "rolloutStrategy": "RolloutStrategy",
        "startupPolicy": "",
    },
    "LeaderWorkerTemplate": {
        "leaderTemplate": "PodTemplateSpec",
        "persistentVolumeClaimRetentionPolicy": "StatefulSetPersistentVolumeClaimRetentionPolicy",
        "restartPolicy": "",
        "size": "",
        "subGroupPolicy": "SubGroupPolicy",
        "volumeClaimTemplates": "PersistentVolumeClaim",
        "workerTemplate": "PodTemplateSpec",
    },
    "NetworkConfig": {"subdomainPolicy": ""},
    "RolloutStrategy": {"rollingUpdateConfiguration": "RollingUpdateConfiguration", "type": ""},
    "RollingUpdateConfiguration": {"maxSurge": "", "maxUnavailable": "", "partition": ""},
    "SubGroupPolicy": {"subGroupPolicyType": "", "subGroupSize": ""},
}


def fields_page() -> str:
    """The file, a type a line."""
    folder = resources.files("kubernetes_validate") / "kubernetes-json-schema" / f"v{VERSION}.0-local-strict"
    definitions = json.loads((folder / "_definitions.json").read_text(encoding="utf-8"))["$defs"]
    types = dict(LEADER_WORKER_SET)
    for name in KINDS.values():
        _add(name, definitions, types)
    lines = (f"  {json.dumps(name)}: {json.dumps(types[name])}" for name in sorted(types))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _add(name, definitions, types):
    """Add the type `name` and those of its fields to `types`."""
    fields = types.setdefault(_short(name), {})
    for field, schema in sorted(definitions[name]["properties"].items()):
        of_field = _type_of(schema) if field != "status" else None
        has_fields = of_field is not None and "properties" in definitions[of_field]
        fields[field] = _short(of_field) if has_fields else ""
        if has_fields and _short(of_field) not in types:
            _add(of_field, definitions, types)


def _type_of(schema):
    """The definition that a field, or an item of it, is of; None for a plain value and for a map."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    parts = [schema["items"]] if "items" in schema else schema.get("oneOf", []) + schema.get("anyOf", [])
    return next(filter(None, map(_type_of, parts)), None)


def _short(name):
    return name.rpartition(".")[2]
