"""What a plan needs from a cluster, read from the same objects that `up` would apply. Pure.

The objects are read and not the spec, since a toleration, a resource or a claim of a pod may come from a field, a
template or a patch. So there is no second list of fields to keep up to date.

    Needs -> PodSet, one a workload -> the nodes that were planned for its pods, what each pod requests
          -> RequiredObject: an object that the pods need and `up` does not make
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any

from planner.facts.names import COMPONENT_LABEL, DEPLOYMENT_KIND, KEYS_FILE, PLAN_LABEL, UNIT_LABEL
from planner.plan.plan import Plan
from planner.problems.errors import InfeasibleError
from planner.problems.finding import Finding
from planner.spec.kv_cache import KvDiskSpec
from planner.spec.pods import OverlaySpec
from stacks.doctor.corrections import suggest_correction
from stacks.kube.manifest import Manifest, Reference
from stacks.kube.pods import template_place
from stacks.kube.quantities import Amounts, amounts
from stacks.kube.shape import WORKLOADS, misfit
from stacks.program.plan_objects import plan_objects

__all__ = ["Needs", "PodSet", "RequiredObject", "pod_limits", "pod_requests", "read_needs", "sum_amounts"]

# An annotation of pods; its two forms: github.com/k8snetworkplumbingwg/multus-cni 37adefb docs/how-to-use.md
NETWORKS = "k8s.v1.cni.cncf.io/networks"
# A label: github.com/kubernetes-sigs/kueue 003ea96 pkg/controller/constants/constants.go
QUEUE = "kueue.x-k8s.io/queue-name"

CORRECT = "correct what the fields of kubernetes write there"

Template = dict[str, Any]  # of pods: their metadata and spec


@dataclass(frozen=True)
class RequiredObject:
    """An object that the plan's pods refer to by name and that `up` does not create."""

    group: str  # `scheduling.k8s.io`; empty for the core
    kind: str
    namespace: str  # empty for cluster-scoped kinds
    name: str
    field: str  # the field of the spec in which a user corrects the name

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


@dataclass(frozen=True)
class PodSet:
    """The pods of one workload, which are all equal."""

    owner: str  # a unit's name, or the gateway's or the controller's
    component: (
        str  # `prefill`, `decode`, `gateway`, `controller`: pods of one component differ only in nodes and launch files
    )
    num_pods: int
    nodes: tuple[str, ...]  # nodes planned for the pods; empty if any node will do
    spares: tuple[str, ...]
    template: Template

    @property
    def requests(self) -> Amounts:
        """Resource -> amount that each pod reserves on its node."""
        return pod_requests(self.template["spec"])

    @property
    def limits(self) -> Amounts:
        """Resource -> the limit of each pod."""
        return pod_limits(self.template["spec"])

    @property
    def claims(self) -> list[str]:
        """The names of the PersistentVolumeClaims that each pod mounts."""
        return [each["claimName"] for each in self._claims()]

    @property
    def written_claims(self) -> list[str]:
        """The names of the PersistentVolumeClaims that each pod may write to."""
        return [each["claimName"] for each in self._claims() if not each.get("readOnly")]

    def mounts(self, path: str) -> bool:
        """Return whether the pods' first container has a volume mounted at `path`."""
        return path in [each["mountPath"] for each in self.template["spec"]["containers"][0].get("volumeMounts") or []]

    def _claims(self) -> Iterator[dict[str, Any]]:
        claims = (each.get("persistentVolumeClaim") for each in self.template["spec"].get("volumes") or [])
        return (each for each in claims if each)


@dataclass(frozen=True)
class Needs:
    """Everything that a plan needs from a cluster."""

    plan: str
    namespace: str
    creates_namespace: bool
    objects: tuple[Manifest, ...]  # in the order in which they can be created
    pod_sets: tuple[PodSet, ...]
    required_objects: tuple[RequiredObject, ...]
    overlay: OverlaySpec | None = None
    disk: KvDiskSpec | None = None  # where ranks keep KV

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """The (apiVersion, kind) pairs of all objects to apply, each once."""
        return sorted({(each["apiVersion"], each["kind"]) for each in self.objects})

    @property
    def heal(self) -> Mapping[str, Sequence[str]] | None:
        """The conditions and labels of faulty nodes; None if no controller moves units off such nodes."""
        followed = (each for each in self.objects if each["kind"] == DEPLOYMENT_KIND)
        return next((each["spec"].get("heal") for each in followed), None)

    def suggest_correction(self, refused: str, words: str) -> str | None:
        """Return the place in the overlay to correct, given the server's message `words` about an object or pod.

        `refused` is the refused object, or the component of a pod refused in a dry run. Return None if the overlay did
        not change it.
        """
        for each in self.find_workloads(refused):
            return suggest_correction(each, self.overlay, words, template_place(each) or ())
        for each in self.objects:
            if str(Reference.from_manifest(each)) == refused:
                return suggest_correction(each, self.overlay, words)
        return None

    def find_workloads(self, component: str) -> list[Manifest]:
        """Return the workloads whose pods belong to `component`."""
        owners = {each.owner for each in self.pod_sets if each.component == component}
        return [each for each in self.objects if each["metadata"]["name"] in owners and template_place(each)]

    def owns(self, pod: Manifest) -> bool:
        """Return whether a pod belongs to the plan, as pods of an earlier `up` do."""
        metadata = pod["metadata"]
        is_labelled = (metadata.get("labels") or {}).get(PLAN_LABEL) == self.plan
        return is_labelled and metadata.get("namespace") == self.namespace


def read_needs(plan: Plan) -> Needs:
    """Return everything that `plan` needs from a cluster.

    Raises InfeasibleError if the plan cannot be rendered, or if an object is wrong. Objects are checked because an
    overlay may write anything anywhere, and the server would refuse a wrong object only during `up`.
    """
    rendered = plan_objects(plan)
    objects = tuple(each.manifest for each in rendered.all_objects())
    _require_readable(plan, objects)
    places = {unit.name: (unit.nodes, tuple(plan.unit_document(unit)["spares"])) for unit in plan.units}
    pod_sets = tuple(_pod_set(each, places) for each in objects if _template(each) is not None)
    namespace = plan.kubernetes.namespace
    return Needs(
        plan=plan.name,
        namespace=namespace,
        creates_namespace=plan.kubernetes.create_namespace,
        objects=objects,
        pod_sets=pod_sets,
        required_objects=tuple(dict.fromkeys(_find_required(objects, pod_sets, namespace))),
        overlay=plan.kubernetes.overlay,
        disk=plan.spec.kv_cache.disk,
    )


def pod_requests(spec: Template) -> Amounts:
    """Return resource -> amount that a pod of this spec reserves on its node. Without a request, the limit counts."""
    return _sum_containers(
        spec, lambda resources: {**amounts(resources.get("limits")), **amounts(resources.get("requests"))}
    )


def pod_limits(spec: Template) -> Amounts:
    """Return resource -> the limit of a pod of this spec, summed over its containers."""
    return _sum_containers(spec, lambda resources: amounts(resources.get("limits")))


def sum_amounts(parts: Iterable[Amounts]) -> dict[str, Decimal]:
    """Return resource -> the sum of its amounts in all `parts`."""
    total: dict[str, Decimal] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, Decimal(0)) + amount
    return total


def _sum_containers(spec: Template, read_amounts: Callable[[Template], Amounts]) -> Amounts:
    """Return resource -> the amount of a whole pod, given the amounts of one container's `resources`.

    Containers and sidecars are summed. An init container that ends counts only if it alone needs more than that
    sum.

    Source: https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers
    """
    initial = spec.get("initContainers") or []
    lasting = [*spec["containers"], *(each for each in initial if each.get("restartPolicy") == "Always")]
    total = sum_amounts(read_amounts(each.get("resources") or {}) for each in lasting)
    for each in initial:
        for name, amount in read_amounts(each.get("resources") or {}).items():
            total[name] = max(total.get(name, Decimal(0)), amount)
    return total


def _require_readable(plan: Plan, objects: Sequence[Manifest]) -> None:
    """Raise InfeasibleError if an object has a wrong field that `doctor` reads. Any server would refuse that object."""
    findings = [
        Finding("kubernetes", None, f"R202 must render what Kubernetes takes: {wrong}", reason, fix).at(plan.name)
        for each in objects
        if (wrong := _find_mistake(each))
        for reason in [f"{Reference.from_manifest(each)} would be refused"]
        for fix in [suggest_correction(each, plan.kubernetes.overlay, wrong) or CORRECT]
    ]
    if findings:
        raise InfeasibleError(findings)


def _find_mistake(manifest: Manifest) -> str | None:
    """Return the first mistake in an object's fields, or in its pods' annotation for Multus; None without one."""
    if wrong := misfit(manifest, WORKLOADS.get("", {}), WORKLOADS.get(manifest["kind"], {})):
        return wrong
    metadata = (_template(manifest) or {}).get("metadata") or {}
    annotation = (metadata.get("annotations") or {}).get(NETWORKS, "")
    if not annotation.startswith("["):
        return None
    try:
        wrong = misfit({NETWORKS: _listed_networks(annotation)}, {NETWORKS: [{"name": str, "namespace?": str}]})
    except (ValueError, RecursionError):
        wrong = f"{NETWORKS} must be a JSON list, and is {annotation[:60]!r}"
    return wrong


def _listed_networks(annotation: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(annotation)
    return found


def _pod_set(workload: Manifest, places: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]) -> PodSet:
    template = _template(workload)
    assert template is not None
    metadata = workload["metadata"]
    nodes, spares = places.get(metadata["labels"].get(UNIT_LABEL, ""), ((), ()))
    component = metadata["labels"][COMPONENT_LABEL]
    return PodSet(metadata["name"], component, _num_pods(workload), nodes, spares, template)


def _template(workload: Manifest) -> Template | None:
    """Return the template of a workload's pods; None if the object has no pods."""
    place = template_place(workload)
    return None if place is None else reduce(dict.__getitem__, place, workload)


def _num_pods(workload: Manifest) -> int:
    """Return how many pods a workload's manifest asks for: its replicas times the pods of one group."""
    spec = workload["spec"]
    size = (spec.get("leaderWorkerTemplate") or {}).get("size", 1)
    return int(size) * int(spec.get("replicas", 1))


def _find_required(objects: Sequence[Manifest], pod_sets: Sequence[PodSet], namespace: str) -> Iterator[RequiredObject]:
    made = {("Secret", each["spec"]["secretName"]) for each in objects if each.get("kind") == "Certificate"}
    for each in objects:
        if each.get("kind") == "Certificate":
            yield _required_issuer(each["spec"]["issuerRef"], namespace)
        for secret in each.get("imagePullSecrets") or []:
            yield RequiredObject("", "Secret", namespace, secret["name"], "kubernetes.image_pull_secrets")
        if queue := (each["metadata"].get("labels") or {}).get(QUEUE):
            yield RequiredObject("kueue.x-k8s.io", "LocalQueue", namespace, queue, "kubernetes.queue")
    for pod_set in pod_sets:
        yield from (each for each in _required_by_pod(pod_set, namespace) if (each.kind, each.name) not in made)


def _required_issuer(reference: dict[str, str], namespace: str) -> RequiredObject:
    """Return the issuer that a Certificate's `issuerRef` names, as an object that must exist."""
    kind = reference["kind"]
    within = namespace if kind == "Issuer" else ""
    return RequiredObject(reference["group"], kind, within, reference["name"], "kubernetes.tls.issuer")


def _required_by_pod(pod_set: PodSet, namespace: str) -> Iterator[RequiredObject]:
    spec = pod_set.template["spec"]
    for claim in pod_set.claims:
        field = "kubernetes.kv_cache_claim" if claim in pod_set.written_claims else "kubernetes.volumes"
        yield RequiredObject("", "PersistentVolumeClaim", namespace, claim, field)
    for secret in _secrets_in_env(spec):
        yield RequiredObject("", "Secret", namespace, secret, "kubernetes.env, or a phase's env")
    for secret, keys in _mounted_secrets(spec):
        field = "gateway.keys" if KEYS_FILE in keys else "kubernetes.tls"
        yield RequiredObject("", "Secret", namespace, secret, field)
    if name := spec.get("priorityClassName"):
        yield RequiredObject("scheduling.k8s.io", "PriorityClass", "", name, "kubernetes.priority_class")
    if name := spec.get("runtimeClassName"):
        yield RequiredObject(
            "node.k8s.io", "RuntimeClass", "", name, "kubernetes.overlay.unit_pod.spec.runtimeClassName"
        )
    metadata = pod_set.template.get("metadata") or {}
    if queue := (metadata.get("labels") or {}).get(QUEUE):
        yield RequiredObject("kueue.x-k8s.io", "LocalQueue", namespace, queue, "kubernetes.queue")
    for within, name in _parse_networks((metadata.get("annotations") or {}).get(NETWORKS, ""), namespace):
        yield RequiredObject("k8s.cni.cncf.io", "NetworkAttachmentDefinition", within, name, "kubernetes.networks")


def _secrets_in_env(spec: Template) -> Iterator[str]:
    """Yield the names of the Secrets in the environment variables of a pod's containers, without optional ones."""
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        for variable in container.get("env") or []:
            secret = (variable.get("valueFrom") or {}).get("secretKeyRef")
            if secret and not secret.get("optional"):
                yield secret["name"]


def _mounted_secrets(spec: Template) -> Iterator[tuple[str, list[str]]]:
    """Yield (name, mounted keys) of each Secret in a pod's projected volumes."""
    for volume in spec.get("volumes") or []:
        for source in (volume.get("projected") or {}).get("sources") or []:
            if "secret" in source:
                secret = source["secret"]
                yield secret["name"], [item["key"] for item in secret.get("items") or []]


def _parse_networks(annotation: str, namespace: str) -> Iterator[tuple[str, str]]:
    """Yield (namespace, name) of each network in Multus' annotation: `a, other/b@net1`, or a JSON list."""
    if annotation.startswith("["):
        yield from ((each.get("namespace") or namespace, each["name"]) for each in _listed_networks(annotation))
        return
    for part in filter(None, map(str.strip, annotation.split(","))):
        within, _, name = part.partition("@")[0].rpartition("/")
        yield within or namespace, name
