"""`doctor --probe`: runs a pod on each planned node that pulls the image and exchanges data with all others.

The pods equal the units' in all that decides whether a pod starts: image, volumes, security, tolerations, networks.
They request no resources, so they start even while all GPUs are taken, and they run `probe_pod.py`, not the engine.

    namespace (one of its own where the plan's is not there yet) -> Service -> pods -> their last words -> all deleted

The pods, the Service and the namespace carry `tidemill.dev/probe`, with the plan's name, and are named after the plan.
If an object has one of their names without that label, nothing is started and nothing deleted. At the end exactly the
objects that this run has made are deleted.

What was measured is judged in `probe_checks.py`. Sockets between pods are measured; RDMA is the engine's to try.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from stacks.doctor.facts import ClusterFacts
from stacks.doctor.needs import Needs, PodSet
from stacks.kube.api import Api
from stacks.kube.drift import FIELD_MANAGER
from stacks.kube.lifecycle import delete_exactly
from stacks.kube.manifest import Manifest, Reference
from stacks.kube.pods import cannot_start, reasons
from stacks.kube.shape import misfit
from stacks.kube.waiting import Patience

__all__ = ["Probe", "probe"]

LABEL = "tidemill.dev/probe"
PORT = 29499  # below the ranks' ports, which may be taken where pods share their node's network
SECONDS = 3.0
STARTED_TIMEOUT_S = 600.0  # for pulling images
WORDS = {"missing": [int], "mb_per_s": list, "disk?": dict}  # those of `probe_pod.py`
DISK = {"bytes": int, "write_mb_per_s": float, "read_mb_per_s": float, "is_nameless": bool}
NO_DISK = {"error": str}
LARGEST_RATE = 1e9  # MB/s; assumed: no link carries a thousandth of it
POD_KEYS = ("hostNetwork", "dnsPolicy", "nodeSelector", "priorityClassName", "runtimeClassName", "securityContext")
CONTAINER_KEYS = ("image", "imagePullPolicy", "securityContext")


@dataclass(frozen=True)
class Disk:
    """A node's disk for KV, as its pod measured it while the other nodes' pods measured theirs."""

    bytes: int  # the size of its file system
    write_mb_per_s: float
    read_mb_per_s: float
    is_nameless: bool  # whether it supports unnamed files (O_TMPFILE): a killed rank leaves no partial ones


@dataclass(frozen=True)
class Probe:
    """The result of a probe: what its pods on the planned nodes measured."""

    nodes: tuple[str, ...]
    not_started: Mapping[str, str]  # node -> why its pod has no result
    unreached: Mapping[str, tuple[str, ...]]  # node -> the nodes that it has no connection with
    mb_per_s: Mapping[tuple[str, str], float]  # (from, to), while all sent to all
    foreign_objects: tuple[Reference, ...] = ()  # others' objects with the names of the probe's; then nothing ran
    disks: Mapping[str, Disk | str] = field(default_factory=dict)  # node -> its disk, or why nobody can write to it

    @property
    def median(self) -> float | None:
        """The median of all rates between two nodes, in MB/s; None if nothing was measured."""
        rates = sorted(self.mb_per_s.values())
        return rates[len(rates) // 2] if rates else None


def probe(api: Api, needs: Needs, facts: ClusterFacts, patience: Patience) -> Probe:
    """Run a pod on each planned node, delete everything again, and return what the pods measured.

    Waits until all pods have ended or cannot start. Nothing is started or deleted if an object of another owner has
    a name that the probe needs.
    """
    makes_namespace = facts.namespace is None
    namespace = probe_name(needs) if makes_namespace else needs.namespace
    places = list(_planned_nodes(needs))
    manifests = list(_probe_manifests(needs, places, namespace, patience.timeout_s))
    if makes_namespace:
        manifests.insert(0, _probe_namespace(needs, namespace))
    names = {
        str(each["metadata"]["name"]): node for each, (node, _) in zip(manifests[-len(places) :], places, strict=True)
    }
    found = [live for each in manifests if (live := api.get(Reference.from_manifest(each))) is not None]
    if foreign := tuple(Reference.from_manifest(each) for each in found if not _is_left_over(each, needs)):
        return Probe(tuple(names.values()), {}, {}, {}, foreign)
    delete_exactly(api, found, patience)
    delete_exactly(api, [] if makes_namespace else _pods(api, needs, namespace), patience)  # of an older, larger plan
    made: list[Manifest] = []
    try:
        for each in manifests:
            stored = api.apply(each, force=False)
            if not _is_made_by_us_alone(stored):
                return Probe(tuple(names.values()), {}, {}, {}, (Reference.from_manifest(stored),))
            made.append(stored)
        patience.wait_until_none(lambda: _describe_running(_pods(api, needs, namespace)))
        return _read_results(names, _pods(api, needs, namespace))
    finally:
        delete_exactly(api, made[::-1], patience)


def probe_name(needs: Needs) -> str:
    """Return the name of the probe's Service and namespace. The names of the probe's pods begin with this name too."""
    return f"{needs.plan}-probe"


def _is_left_over(live: Manifest, needs: Needs) -> bool:
    """Return whether an object is left over from a killed probe and may be deleted.

    A namespace may not be deleted: others may have created objects in it.
    """
    return live["kind"] != "Namespace" and (live["metadata"].get("labels") or {}).get(LABEL) == needs.plan


def _is_made_by_us_alone(stored: Manifest) -> bool:
    """Return whether our apply created the object.

    Otherwise our apply changed an object that somebody else created at that moment.
    """
    return {each["manager"] for each in stored["metadata"].get("managedFields") or []} <= {FIELD_MANAGER}


def _planned_nodes(needs: Needs) -> Iterator[tuple[str, PodSet]]:
    """Yield (node, its pods) for every planned node, each node once."""
    seen: set[str] = set()
    for pod_set in needs.pod_sets:
        for node in pod_set.nodes:
            if node not in seen:
                seen.add(node)
                yield node, pod_set


def _probe_manifests(
    needs: Needs, places: Sequence[tuple[str, PodSet]], namespace: str, timeout_s: float
) -> Iterator[Manifest]:
    """Yield the manifests of the probe: the Service that gives its pods their names, then the pods."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {LABEL: needs.plan}}
    service = probe_name(needs)
    yield {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(needs, service, namespace), "spec": spec}
    script = resources.files("stacks.doctor").joinpath("probe_pod.py").read_text(encoding="utf-8")
    secrets = [secret for each in needs.objects for secret in each.get("imagePullSecrets") or []]
    for index, (node, pod_set) in enumerate(places):
        words = [str(index), str(len(places)), service, str(PORT), str(SECONDS), str(timeout_s / 2)]
        if needs.disk is not None and pod_set.mounts(needs.disk.path):
            words.append(needs.disk.path)
        template = pod_set.template
        annotations = (template.get("metadata") or {}).get("annotations") or {}
        metadata = _metadata(needs, f"{service}-{index}", namespace)
        yield {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata | ({"annotations": annotations} if annotations else {}),
            "spec": _pod_spec(template["spec"], node, ["python3", "-c", script, *words])
            | {"hostname": f"probe-{index}", "subdomain": service}
            | ({"imagePullSecrets": secrets} if secrets else {}),
        }


def _metadata(needs: Needs, name: str, namespace: str) -> dict[str, Any]:
    return {"name": name, "namespace": namespace, "labels": {LABEL: needs.plan}}


def _pod_spec(unit_spec: dict[str, Any], node: str, command: Sequence[str]) -> dict[str, Any]:
    """Return the pod spec of the probe's pod on `node`, derived from `unit_spec`, the pod spec of the unit there."""
    container = unit_spec["containers"][0]
    volumes = [each for each in unit_spec.get("volumes") or [] if "projected" not in each and "configMap" not in each]
    names = {each["name"] for each in volumes}
    mounts = [each for each in container.get("volumeMounts") or [] if each["name"] in names]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    own = {key: container[key] for key in CONTAINER_KEYS if key in container}
    return {
        **{key: unit_spec[key] for key in (*POD_KEYS, "tolerations") if key in unit_spec},
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "affinity": {"nodeAffinity": required},
        "containers": [{"name": "probe", "command": list(command), "volumeMounts": mounts, **own}],
        "volumes": volumes,
    }


def _probe_namespace(needs: Needs, name: str) -> Manifest:
    """Return the manifest of a namespace for the probe, with the Pod Security labels of the plan's namespace."""
    planned = [each["metadata"].get("labels") or {} for each in needs.objects if each["kind"] == "Namespace"]
    labels = planned[0] if planned else {}
    security = {key: value for key, value in labels.items() if key.startswith("pod-security.kubernetes.io/")}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": security | {LABEL: needs.plan}},
    }


def _pods(api: Api, needs: Needs, namespace: str) -> list[Manifest]:
    return api.list_all("v1", "Pod", namespace, labelSelector=f"{LABEL}={needs.plan}")


def _describe_running(found: Sequence[Manifest]) -> str | None:
    """Return a text that says how many pods still run.

    None once each pod has ended, cannot start, or waits only for pods that cannot start.
    """
    running = [each for each in found if _termination_message(each) is None and _phase(each) != "Failed"]
    waiting = [each for each in running if not cannot_start(each)]
    stuck = len(running) - len(waiting)
    if not waiting or (stuck and all(_phase(each) == "Running" for each in waiting)):
        return None
    return f"{len(waiting)} of {len(found)} probes run"


def _phase(pod: Manifest) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def _termination_message(pod: Manifest) -> str | None:
    """Return the termination message of a pod's container; None if it has not ended."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    ended = next((each["state"]["terminated"] for each in statuses if "terminated" in (each.get("state") or {})), None)
    return None if ended is None else str(ended.get("message") or "")


def _read_results(names: Mapping[str, str], found: Sequence[Manifest]) -> Probe:
    """Return the probe's result from its pods' termination messages.

    `names` is pod -> its node, in the order of the pods' indexes.
    """
    nodes, by_name = list(names.values()), {each["metadata"]["name"]: each for each in found}
    not_started: dict[str, str] = {}
    unreached: dict[str, tuple[str, ...]] = {}
    rates: dict[tuple[str, str], float] = {}
    disks: dict[str, Disk | str] = {}
    for name, node in names.items():
        pod = by_name.get(name)
        said = _termination_message(pod) if pod else None
        if pod is not None and said is None and _phase(pod) == "Running":
            continue  # it waits for pods that cannot start, and is fine itself
        if not said:
            not_started[node] = _explain_silence(pod)
            continue
        answer = _parse_answer(said, len(nodes))
        if answer is None:
            not_started[node] = (
                f"its container ended with {said[:60]!r}; run python3 in the image by hand, and see what it says"
            )
            continue
        missing, received, disk = answer
        disks |= {} if disk is None else {node: disk}
        if missing:
            unreached[node] = tuple(nodes[peer] for peer in missing)
        rates |= {(nodes[peer], node): rate for peer, rate in enumerate(received) if rate is not None}
    return Probe(tuple(nodes), not_started, unreached, rates, disks=disks)


def _parse_answer(said: str, num_nodes: int) -> tuple[list[int], list[float | None], Disk | str | None] | None:
    """Return (missing peers, MB/s from each peer, disk) from a pod's result; None if `said` is no probe's result.

    The disk is None if no disk was tried, and an error's text if it could not be tried.
    """
    try:
        answer = json.loads(said)
    except (ValueError, RecursionError):
        return None
    if misfit(answer, WORDS) is not None:
        return None
    missing, rates, disk = answer["missing"], answer["mb_per_s"], answer.get("disk")
    is_disk = disk is None or misfit(disk, NO_DISK) is None or misfit(disk, DISK) is None
    are_peers = all(0 <= peer < num_nodes for peer in missing) and len(rates) == num_nodes
    are_rates = all(each is None or (type(each) in (int, float) and 0 <= each < LARGEST_RATE) for each in rates)
    if not (are_peers and are_rates and is_disk):
        return None
    return missing, rates, disk and (disk["error"] if "error" in disk else Disk(**disk))


def _explain_silence(pod: Manifest | None) -> str:
    if pod is None:
        return "its pod was deleted by somebody; repeat"
    lacking = reasons({"kind": "Pod"}, [pod], frozenset(), events=[])
    said = "; ".join(each.removesuffix(f" (pod {pod['metadata']['name']})") for each in lacking)
    return said or "its container has not started in time; see why: kubectl get events"
