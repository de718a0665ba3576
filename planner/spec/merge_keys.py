"""The keys that identify items of lists in Kubernetes objects, so that a patch of one leaves the others alone.

The rules ask that patches give such items and names (`patch_rules.py`); `manifests/patches.py` merges by them.
"""

__all__ = ["MERGE_KEYS", "PORT_KEYS"]

# Source: github.com/kubernetes/kubernetes 001a778f staging/src/k8s.io/api/core/v1/types.go, `patchMergeKey`
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
PORT_KEYS = ("containerPort", "port")  # of a container's, or of a Service's
