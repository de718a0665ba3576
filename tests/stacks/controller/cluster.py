"""A cluster in memory: what the controller has asked of it, and what it refuses.

A real API server cannot be told to refuse one kind for a while. Merges are as JSON merge patch has them (RFC 7386).
"""

import copy
from types import SimpleNamespace

from planner.facts import names
from stacks.controller.act import FIELD_MANAGER
from stacks.controller.follower import Follower
from stacks.controller.lease import Lease
from stacks.controller.observe import UNIT_KIND
from stacks.kube.errors import RefusedError

__all__ = ["NAMESPACE", "PLAN", "MemoryCluster"]

NAMESPACE, PLAN = "ns", "a"


class MemoryCluster:
    """Objects by kind and name. It stands where an `Api` does."""

    def __init__(self, spec, *, nodes=()):
        """A deployment with this spec, whose units are all on and ready, and nodes without marks."""
        self.objects, self.events, self.refused = {}, [], set()  # of what: (verb, kind)
        self.put(names.DEPLOYMENT_KIND, PLAN, spec=copy.deepcopy(spec), status={})
        for unit in spec["units"]:
            self.unit(unit["name"])
        for node in nodes:
            self.put("Node", node, spec={})

    def put(self, kind, name, *, labels=None, spec=None, status=None, **metadata):
        """An object, as a server would have it; return it."""
        metadata = {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-of-{name}",
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": "2025-11-25T00:00:00Z",
            "labels": labels or {},
        } | metadata
        self.objects[kind, name] = {"kind": kind, "metadata": metadata, "spec": spec or {}, "status": status or {}}
        return self.objects[kind, name]

    def unit(self, name, replicas=1):
        """A unit that is scaled so, and ready if it is on."""
        status = {"observedGeneration": 1, "updatedReplicas": replicas, "readyReplicas": replicas, "replicas": replicas}
        status["conditions"] = [{"type": "Available", "status": "True"}]
        spec = {"replicas": replicas, "leaderWorkerTemplate": {"workerTemplate": {"spec": {}}}}
        self.put(UNIT_KIND, name, labels={names.PLAN_LABEL: PLAN}, spec=spec, status=status)

    def pod(self, unit, node, name=None):
        """A pod with a unit's labels."""
        labels = {names.PLAN_LABEL: PLAN, names.UNIT_LABEL: unit}
        return self.put("Pod", name or f"{unit}-0", labels=labels, spec={"nodeName": node})

    def follower(self, holder="one", said=None):
        """Somebody who follows the deployment."""
        lease = Lease(NAMESPACE, f"{PLAN}-controller", holder, FIELD_MANAGER)
        return Follower(self, NAMESPACE, PLAN, lease, (said if said is not None else []).append)

    @property
    def status(self):
        """The deployment's."""
        return self.objects[names.DEPLOYMENT_KIND, PLAN]["status"]

    def replicas(self):
        """Unit -> what it is scaled to."""
        return {name: each["spec"]["replicas"] for (kind, name), each in self.objects.items() if kind == UNIT_KIND}

    def told(self):
        """Reason and words of all events."""
        return [(each["reason"], each["message"]) for each in self.events]

    def get(self, reference):
        self._may("get", reference)
        return copy.deepcopy(self.objects.get((reference.kind, reference.name)))

    def list_all(self, api_version, kind, namespace, *, labelSelector="", **_):
        self._may("list", SimpleNamespace(kind=kind, name=""))
        found = [{"apiVersion": api_version} | each for (of, _), each in self.objects.items() if of == kind]
        return copy.deepcopy([each for each in found if _has(each["metadata"]["labels"], labelSelector)])

    def list_metadata(self, api_version, kind, namespace, **selectors):
        found = self.list_all(api_version, kind, namespace, **selectors)
        return [{key: each[key] for key in ("apiVersion", "kind", "metadata")} for each in found]

    def merge(self, reference, changes, *, manager, part=""):
        self._may("merge", reference)
        stored = self.objects[reference.kind, reference.name]
        _merge(stored, copy.deepcopy(changes))

    def create(self, manifest, *, manager):
        self._may("create", SimpleNamespace(kind=manifest["kind"], name=""))
        if manifest["kind"] == "Event":
            self.events.append(manifest)
        else:
            metadata, spec = manifest["metadata"], manifest.get("spec")
            owned = {key: metadata[key] for key in ("ownerReferences",) if key in metadata}
            stored = self.put(manifest["kind"], metadata["name"], labels=metadata.get("labels"), spec=spec, **owned)
            stored |= {key: manifest[key] for key in ("data",) if key in manifest}

    def delete(self, reference, uid=None, *, immediately=False):
        self._may("delete", reference)
        live = self.objects.get((reference.kind, reference.name))
        if live and uid in (None, live["metadata"]["uid"]):
            del self.objects[reference.kind, reference.name]

    def _may(self, verb, reference):
        if (verb, reference.kind) in self.refused:
            raise RefusedError(f"{reference.kind} {reference.name}", 403, {"message": "forbidden"})


def _has(labels, selector):
    """Whether labels are as `a=b,c` or `a in (b,c)` asks."""
    key, word, values = selector.partition(" in ")
    if word:
        return labels.get(key) in values.strip("()").split(",")
    asked = (each.partition("=") for each in selector.split(",") if each)
    return all(
        labels.get(key) == value if equals else (key.lstrip("!") in labels) != key.startswith("!")
        for key, equals, value in asked
    )


def _merge(stored, changes):
    for key, value in changes.items():
        if value is None:
            stored.pop(key, None)
        elif isinstance(value, dict):
            stored.setdefault(key, {})
            _merge(stored[key], value)
        else:
            stored[key] = value
