"""The rules about what `kubernetes.patches` say of pods and Services that the plan has said otherwise.

`patch_rules.py` keeps what the plan decides of whole objects. Here are the parts of a pod that would make it another
one with every name in its place: its GPUs, its launch file, its node, what its command line is made of.
Sources: github.com/kubernetes/kubernetes 001a778f staging/src/k8s.io/api/core/v1/types.go, for the types of a
container's fields and of a Service's; `templates/_unit_pod.yaml.j2` and `templates/_macros.yaml.j2` for names.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.facts import names
from planner.problems.fix import Fix, removal
from planner.spec.rule import Broken, Rule, declare_in

__all__ = ["RULES"]

OF_UNITS = ("nodeName", "schedulerName")  # a gateway may stand anywhere
OF_PODS = ("restartPolicy", "activeDeadlineSeconds")
LAUNCH_VOLUME, LAUNCH_FOLDER = "launch", names.MOUNTED[0]
SERVICE_TYPES = ("ClusterIP", "NodePort", "LoadBalancer")
HEADLESS = ("clusterIP", "clusterIPs", "publishNotReadyAddresses")  # of all Services but the gateway's

Place = tuple[str | int, ...]
Changed = tuple[Place, str, str]  # where, what is changed, and why it must not be

RULES: list[Rule] = []
_reads = declare_in(RULES)


@_reads("kubernetes.patches")
def patched_pods_stay_planned(patches: Sequence[Mapping[str, Any]]) -> Iterator[Broken]:
    """Else the cluster would run something that no plan says, under the plan's names."""
    for index, each in enumerate(patches):
        of_unit = each.get("kind") in ("LeaderWorkerSet", "StatefulSet")
        below = ("leaderWorkerTemplate", "workerTemplate") if each.get("kind") == "LeaderWorkerSet" else ("template",)
        place: Place = ("patch", "spec", *below, "spec")
        pod = _at(each, place)
        for path, what, reason in _changed(pod, place, OF_PODS + OF_UNITS if of_unit else OF_PODS):
            where = _dotted(index, path)
            fix = _removal_of_item(each, index, path) if isinstance(path[-1], int) else removal()
            yield Broken(f"S460 must leave {what} alone", reason, fix, where)


@_reads("kubernetes.patches", "name")
def services_stay_planned(patches: Sequence[Mapping[str, Any]], plan: str) -> Iterator[Broken]:
    """Ranks find the registry and each other by the addresses of pods, ready or not."""
    for index, each in enumerate(patches):
        spec = _at(each, ("patch", "spec"))
        if each.get("kind") != "Service" or not isinstance(spec, dict):
            continue
        where = f"kubernetes.patches.{index}.patch.spec"
        kind = spec.get("type")
        if kind not in (None, "ExternalName", *SERVICE_TYPES):
            yield Broken(
                f"S460 must be {' or '.join(SERVICE_TYPES)}", "no other leads to pods", removal(), f"{where}.type"
            )
        for field in HEADLESS if each.get("name") != names.gateway_name(plan) else ():
            if field in spec:
                reason = "ranks find each other by the addresses that it gives"
                yield Broken(f"S460 must leave {field} alone", reason, removal(), f"{where}.{field}")


@_reads("kubernetes.patches", "gateway.port")
def services_lead_to_the_planned_ports(patches: Sequence[Mapping[str, Any]], port: int) -> Iterator[Broken]:
    """A port of the plan's that leads elsewhere would give clients, or ranks, to another program."""
    for index, each in enumerate(patches):
        items = _at(each, ("patch", "spec", "ports")) if each.get("kind") == "Service" else None
        for number, item in enumerate(items if isinstance(items, list) else ()):
            for field in ("targetPort", "protocol"):
                if isinstance(item, dict) and field in item and item.get("port") in (port, names.Ports.REGISTRY):
                    where = _dotted(index, ("patch", "spec", "ports", number, field))
                    yield Broken(
                        f"S460 must leave {field} alone", "the plan says where its ports lead", removal(), where
                    )


def _changed(pod: Any, place: Place, fields: Sequence[str]) -> Iterator[Changed]:
    """Yield the path and the reason of each change of a planned `pod` that makes it another one."""
    for field in fields:
        if isinstance(pod, dict) and field in pod:
            yield (*place, field), field, "the plan decides where pods run, and that they run until they are ended"
    for number, volume in _named(pod, "volumes"):
        for key in volume:
            if key != "name" and (volume["name"] == LAUNCH_VOLUME or volume[key] is None):
                yield (*place, "volumes", number, key), key, "the plan says what the volume is"
    for field in ("containers", "initContainers"):
        for number, container in _named(pod, field):
            if container["name"] in names.POD_CONTAINERS:
                yield from _changed_container(container, (*place, field, number))


def _changed_container(container: Mapping[str, Any], place: Place) -> Iterator[Changed]:
    if container.get("image") is not None and not _is_text(container["image"]):
        yield (*place, "image"), "image", "an image is text"
    for field in ("command", "args"):
        value = container.get(field)
        if value is not None and not (
            isinstance(value, list) and value and all(isinstance(word, str) for word in value)
        ):
            yield (*place, field), field, "it is a list of texts, one at least"
    yield from _changed_resources(container.get("resources"), (*place, "resources"))
    for number, variable in _named(container, "env"):
        if variable["name"] in names.CONTAINER_VARIABLES:
            yield (*place, "env", number), variable["name"], "the pod's command is made of it"
    for number, mount in _named(container, "volumeMounts", "mountPath"):
        if str(mount["mountPath"]).rstrip("/") == LAUNCH_FOLDER:
            yield (*place, "volumeMounts", number), LAUNCH_FOLDER, "the plan's launch file is there"


def _changed_resources(resources: Any, place: Place) -> Iterator[Changed]:
    """Yield what takes all resources away, GPUs included. A single one may go: a claim may stand for GPUs."""
    if resources is None:
        return  # `patch_rules.py` refuses it
    if not isinstance(resources, dict):
        yield place, "resources", "the plan says how many GPUs the container has"
        return
    for field in ("limits", "requests"):
        if field in resources and not isinstance(resources[field], dict):
            yield (*place, field), field, "the plan says how many GPUs the container has"


def _named(owner: Any, field: str, key: str = "name") -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the items of a list that have the key they are merged by; rule S466 is about the others."""
    items = owner.get(field) if isinstance(owner, dict) else None
    for number, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and isinstance(item.get(key), str):
            yield number, item


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _removal_of_item(patch: Mapping[str, Any], index: int, path: Place) -> Fix:
    """Remove the item of a list at `path`, or the list if it has no other: an empty one is a mistake too."""
    if len(_at(patch, path[:-1])) > 1:
        return removal(_dotted(index, path), words="remove the item")
    return removal(_dotted(index, path[:-1]))


def _dotted(index: int, path: Place) -> str:
    return ".".join(map(str, ("kubernetes.patches", index, *path)))


def _at(value: Any, place: Place) -> Any:
    """Return what stands at `place`, or None."""
    for key in place:
        if isinstance(value, list) and isinstance(key, int):
            value = value[key]
        else:
            value = value.get(key) if isinstance(value, Mapping) else None
    return value
