"""Rules about `kubernetes`, except those about volumes, pods and overlays."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from planner.estimate.loading import slowest_start
from planner.facts.day import DAY_S, MINUTE_S
from planner.facts.engines import ENGINES, OURS
from planner.facts.exchange import EXCHANGES
from planner.facts.quantities import gb
from planner.facts.terms import EngineName, Phase
from planner.problems.finding import Finding
from planner.problems.fix import HERE, Fix, for_example, nearest, removal
from planner.rules.rule import Candidate, Rule
from planner.rules.valid_values import ValidValues
from planner.spec.kubernetes import DEFAULT_IMAGE, KubernetesSpec
from planner.spec.resolved import ResolvedSpec

READING_MARGIN = 2  # assumed: offer twice the reading time, since other nodes read too and pods start first
IMAGE_WORDS: dict[EngineName, str] = {"vllm": "vllm", "sglang": "sglang", "tidemill": "tidemill-runtime"}
# Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/ (baseline)
EXPOSING_FIELDS = {
    "hostNetwork": "the pod then reaches all that its node reaches; kubernetes.host_network says it for units",
    "hostPID": "the pod could then see and kill the node's processes",
    "hostIPC": "the pod then shares memory with the processes of its node",
    "privileged": "a privileged container has all rights of its node",
    "hostPath": "the pod then has a folder of its node, and may write there unless it is mounted read-only",
}


def controller_needs_leader_worker_sets(c: ValidValues) -> Iterator[Finding]:
    """Reject a controller with StatefulSets, whose `replicas` would have two owners (docs/design/controller.md)."""
    c.require("kubernetes.controller.pace")
    unit_kind: str = c["kubernetes.unit_kind"]
    if unit_kind == "leaderworkerset":
        return
    fix = Fix(
        "remove kubernetes.unit_kind or kubernetes.controller",
        ({"kubernetes.unit_kind": None}, {"kubernetes.controller": None}),
    )
    rule = f"S507 must not be combined with kubernetes.unit_kind: {unit_kind}"
    reason = (
        "a StatefulSet's replicas are its unit's nodes: a manifest that has them undoes what the controller scales, and"
        " one that no longer has them leaves a running unit one pod"
    )
    yield Finding("kubernetes.controller", None, rule, reason, fix)


def tidemill_image_is_given(c: ValidValues) -> Iterator[Finding]:
    """Require `tidemill_image` if the controller or staging runs beside another engine, whose image lacks Tidemill."""
    units: str = c["kubernetes.image"]
    image: str | None = c["kubernetes.tidemill_image"]
    used = c.engine
    copies = c.get("kubernetes.stage.source") is not None and units != DEFAULT_IMAGE
    follows = c.get("kubernetes.controller.pace") is not None
    if image is None and used not in (None, OURS) and (copies or follows):
        path = "kubernetes.tidemill_image"
        who = "the controller" if follows else "kubernetes.stage"
        reason = f"{who} runs tidemill, which no image of {used} holds"
        fix = for_example("tidemill_image: registry.example.com/tidemill-runtime:0.1.0")
        yield Finding(path, None, f"S202 is required with engine {used}", reason, fix)


def heal_conditions_mean_faults(c: ValidValues) -> Iterator[Finding]:
    """Reject `Ready` among the heal conditions.

    A healthy node has that condition, and Kubernetes itself ends the pods of a node that is not ready.
    """
    conditions: Sequence[str] = c["kubernetes.controller.heal.conditions"]
    for index, kind in enumerate(conditions):
        if kind.partition("=")[0] == "Ready":
            rule, fix = "S472 must not be Ready", removal()
            reason = "Ready is true on a healthy node, and Kubernetes itself ends the pods of a node that is not Ready"
            yield Finding(f"kubernetes.controller.heal.conditions.{index}", kind, rule, reason, fix)


def heal_labels_mean_faults(c: ValidValues) -> Iterator[Finding]:
    """Reject a heal label that every node of units has, spares too: all of them would be faulty."""
    labels: Sequence[str] = c["kubernetes.controller.heal.labels"]
    selector: Mapping[str, str] = c["kubernetes.node_selector"]
    required = {f"{key}={value}" for key, value in selector.items()}
    for index, label in enumerate(labels):
        if label in required:
            rule, fix = "S472 must not be in kubernetes.node_selector", removal()
            reason = "units run only on nodes with this label, so all of them would count as faulty"
            yield Finding(f"kubernetes.controller.heal.labels.{index}", label, rule, reason, fix)


def image_has_gpu_kernels(c: Candidate) -> Iterator[Finding]:
    """Warn of the default image if units run on GPUs: it has no GPU kernels."""
    spec = c.resolved.written
    image = spec.kubernetes.image
    if spec.is_on_gpus and spec.checkpoint and spec.engine_name == OURS and image == DEFAULT_IMAGE:
        rule, reason = "W107 is the image for CPUs", "the image with GPU kernels is built from Containerfile.gpu"
        yield Finding("kubernetes.image", image, rule, reason, "build that image and name it in kubernetes.image")


def image_matches_engine(c: Candidate) -> Iterator[Finding]:
    """Warn of an image whose name or tag says another engine or version than the spec."""
    spec = c.resolved.written
    image, engine = spec.kubernetes.image, spec.engine_name
    if image == DEFAULT_IMAGE:
        return  # another engine then gets its own default image
    name = image.rpartition("@")[0] or image
    called = [each for each, word in IMAGE_WORDS.items() if word in name.casefold()]
    if called and engine not in called:
        rule = f"W107 has the name of an image of {called[0]}, and engine is {engine}"
        reason = f"pods start with the command of {engine}"
        fix = f"name an image of {engine}, or write engine: {called[0]}"
        yield Finding("kubernetes.image", image, rule, reason, fix)
    elif (tagged := _read_version_tag(image, ENGINES[engine].image)) not in (None, spec.engine_version):
        rule = f"W107 is tagged as {engine} {tagged}, and the plan is for {spec.engine_version}"
        reason = f"a flag of {spec.engine_version} that it lacks ends its pods as they start, again and again"
        yield Finding("kubernetes.image", image, rule, reason, f"name an image of {engine} {spec.engine_version}")


def pods_have_rdma(c: Candidate) -> Iterator[Finding]:
    """Warn if a unit spans nodes and its pods get no RDMA devices, unless an overlay may add them."""
    spec = c.resolved
    kubernetes = spec.written.kubernetes
    is_given = kubernetes.rdma is not None or kubernetes.host_network
    overlay = kubernetes.overlay
    if is_given or (overlay is not None and overlay.unit_pod):
        return
    phase = next((each for each in spec.phases if _needs_nics(spec, each)), None)
    if phase is not None:
        rule = f"W111 is missing, and a {phase} unit has {spec.phase(phase).ep_size} GPUs on several nodes"
        reason = "pods with their own network see only the RDMA devices that they request"
        fix = "write the device plugin's resource in kubernetes.rdma, or write kubernetes.host_network: true"
        yield Finding("kubernetes.rdma", None, rule, reason, fix)


def pod_drain_covers_schedule_drain(c: Candidate) -> Iterator[Finding]:
    """Warn if `kubernetes.drain` is shorter than `schedule.drain`, for which units keep their nodes anyway."""
    spec = c.resolved.written
    drain, paid = spec.kubernetes.drain, spec.paid_drain_s
    if drain is not None and paid is not None and drain < paid:
        rule = f"W125 is less than schedule.drain ({paid:g} s)"
        reason = "the controller cuts off longer answers, although their unit keeps its nodes for all of schedule.drain"
        fix = Fix("remove it, so that schedule.drain applies", ({HERE: None},))
        yield Finding("kubernetes.drain", drain, rule, reason, fix)


def lent_nodes_need_priority_class(c: Candidate) -> Iterator[Finding]:
    """Warn if nodes are lent to batch jobs, but no priority class makes the jobs leave."""
    kubernetes = c.resolved.written.kubernetes
    if kubernetes.lends_nodes and kubernetes.priority_class is None:
        rule = "W128 is set without kubernetes.priority_class"
        reason = "if a job does not leave a lent node in time, the unit's pods stay pending"
        fix = "write kubernetes.priority_class: a class above that of the jobs, so that the scheduler preempts them"
        yield Finding("kubernetes.controller.lend_nodes", True, rule, reason, fix)


def pods_stay_isolated(c: Candidate) -> Iterator[Finding]:
    """Warn of overlay fields that open the node to a pod, and of `host_network` if it bypasses network policies.

    By default pods see only the parts of their node that the spec names. Some sites need more, and the warning shows
    this to a reviewer. Pod Security decides what a namespace admits, and `tidemill doctor` asks the cluster.
    """
    kubernetes = c.resolved.written.kubernetes
    rule = "W108 opens the node to a pod"
    if kubernetes.host_network and kubernetes.network_policies:
        reason = "NetworkPolicies do not hold there: who can reach the nodes can reach the ranks' ports"
        fix = "protect the nodes with a firewall, or remove it and give pods their NICs with kubernetes.rdma"
        yield Finding("kubernetes.host_network", True, rule, reason, fix)
    if kubernetes.overlay is not None:
        for path in _find_exposing_fields(kubernetes.overlay.model_dump(), "kubernetes.overlay"):
            yield Finding(path, None, rule, EXPOSING_FIELDS[path.rpartition(".")[2]], removal())


def ready_timeout_covers_start(c: Candidate) -> Iterator[Finding]:
    """Warn of a `ready_timeout` that is shorter than the slowest start of a pod.

    A spec without a checkpoint starts no pods.
    """
    spec = c.resolved
    if not c.memory or not spec.written.checkpoint:
        return
    kubernetes, engine = spec.written.kubernetes, spec.written.engine_name
    start = slowest_start(spec, c.memory)
    if start.needed_s <= kubernetes.ready_timeout:
        return
    reads = f"reads {gb(int(start.node_bytes))} at kubernetes.load_rate"
    if engine == OURS:
        rule = f"W151 is less than the {_minutes(start.reading_s):,} min that a node takes to read its weights"
        reason = f"it {reads}, and a unit that is not ready by then is an error"
    else:
        rule = f"W151 is less than the {_minutes(start.needed_s):,} min that a pod of {engine} gets to start"
        reason = f"it {reads} and compiles kernels, and a unit that is not ready by then is an error"
    enough = max(start.needed_s, READING_MARGIN * start.reading_s)
    fix = nearest(f"{_minutes(enough)}min") if enough <= DAY_S else "raise load_rate once storage is that fast"
    default = KubernetesSpec.model_fields["ready_timeout"].default
    written = (spec.document.data.get("kubernetes") or {}).get("ready_timeout", default)
    yield Finding("kubernetes.ready_timeout", written, rule, reason, fix)


def _needs_nics(spec: ResolvedSpec, phase: Phase) -> bool:
    """Return whether some GPUs of a unit of `phase` can exchange data only over NICs."""
    gpu, section, engine = spec.gpu_of(phase), spec.phase(phase), spec.written.engine_name
    joined = 1 if spec.written.kubernetes.compute_domain is False else gpu.domain_size(spec.cluster.gpus_per_node)
    if engine != OURS and section.ep_size != section.attention_tp:
        joined = EXCHANGES[engine][spec.written.engine_version or ""][phase].num_without_nics(joined)
    return gpu.device == "cuda" and section.ep_size > max(spec.cluster.gpus_per_node, joined)


def _read_version_tag(image: str, published: str | None) -> str | None:
    """Return the engine's version in the tag of `image`; None without one, or if `published` has another name."""
    own = (published or "").partition(":")[0].rpartition("/")[2]
    name, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    found = re.match(r"v?(\d+\.\d+\.\d+)", tag)
    return found[1] if name == own and found else None


def _minutes(seconds: float) -> int:
    return ceil(seconds / MINUTE_S)


def _find_exposing_fields(value: Any, path: str) -> Iterator[str]:
    for key, inner in _children(value):
        if key in EXPOSING_FIELDS and inner not in (None, False):
            yield f"{path}.{key}"
        else:
            yield from _find_exposing_fields(inner, f"{path}.{key}")


def _children(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()


RULES = (
    Rule("S507", "fields", controller_needs_leader_worker_sets),
    Rule("S202", "fields", tidemill_image_is_given),
    Rule("S472", "fields", heal_conditions_mean_faults),
    Rule("S472", "fields", heal_labels_mean_faults),
    Rule("W107", "started", image_has_gpu_kernels),
    Rule("W107", "laid out", image_matches_engine),
    Rule("W111", "laid out", pods_have_rdma),
    Rule("W125", "laid out", pod_drain_covers_schedule_drain),
    Rule("W128", "laid out", lent_nodes_need_priority_class),
    Rule("W108", "laid out", pods_stay_isolated),
    Rule("W151", "started", ready_timeout_covers_start),
)
