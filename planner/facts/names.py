"""All names, labels and ports that are visible outside a plan. No other module builds any.

Kubernetes' limits: a LeaderWorkerSet is a DNS-1035 label of at most 50 characters (its pods and the revision hash need
the rest of 63), a Service is one of at most 63, a namespace a DNS-1123 label of at most 63.
"""

from collections.abc import Mapping
from typing import Literal

from planner.facts.terms import Phase

UnitKind = Literal["leaderworkerset", "statefulset"]

MAX_UNIT_NAME = 50
DOMAIN = "tidemill.dev"
COMPONENT_LABEL = "app.kubernetes.io/component"
PLAN_LABEL = f"{DOMAIN}/plan"  # on every object: the plan that it belongs to
UNIT_LABEL = f"{DOMAIN}/unit"  # on a unit's objects and pods
PHASE_LABEL = f"{DOMAIN}/phase"  # on a unit's objects and pods
NODE_LABEL = f"{DOMAIN}/node"  # on a node whose unit is off: `free` for other pods, or `reclaimed` from them
RECLAIMED_TAINT = f"{DOMAIN}/reclaimed"  # on a reclaimed node, so that other pods leave it; its value is the plan
FAULTY_TAINT = f"{DOMAIN}/faulty"  # on a node that reports a fault; its value is the plan
SECURITY_LABEL = "pod-security.kubernetes.io/enforce"  # on a namespace: which pods it admits
SECURITY_ANNOTATION = f"{DOMAIN}/pod-security"  # why the namespace admits privileged pods, or has to
LWS_INDEX_LABEL = "leaderworkerset.sigs.k8s.io/worker-index"
GATEWAY_LAUNCH_FILE = "gateway.launch.json"
NEXT_EPOCH_FILE = "next-epoch.json"  # beside a unit's launch file: the map that it is to follow next
KEYS_FILE = "keys.json"  # the file with the API keys, in their Secret and in the gateway's pod
TLS_FILES = ("tls.crt", "tls.key", "ca.crt")  # the files of a certificate's Secret, by cert-manager's names
TLS_FOLDER = "tls"  # beside the launch file
SHARED_MEMORY = "/dev/shm"  # noqa: S108
KERNEL_CACHE = "/var/cache/kernels"
# Mounts of every pod: launch files and a folder for temporary files; and mounts that units' pods may have.
MOUNTED = ("/etc/tidemill", "/tmp", SHARED_MEMORY, KERNEL_CACHE)  # noqa: S108
# Container names in templates/, over all pods.
POD_CONTAINERS = ("runtime", "gateway", "router", "edge", "stage", "controller")
# Variables that a unit's command line uses. LeaderWorkerSet sets the last three in every pod of a group.
CONTAINER_VARIABLES = ("NODE_NAME", "POD_IP", "LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX")
CONTENT_LENGTH = 10  # hexadecimal digits: as many as kustomize puts behind the name of a generated ConfigMap


# Source: github.com/k8snetworkplumbingwg/multus-cni 37adefba docs/how-to-use.md
NETWORKS_ANNOTATION = "k8s.v1.cni.cncf.io/networks"
# Source: github.com/kubernetes-sigs/kueue 0326037d pkg/controller/jobs/leaderworkerset/leaderworkerset_webhook.go: a
# label of the LeaderWorkerSet itself
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

# Annotations by which an object tells GitOps tools what to do with it.
# Source: github.com/fluxcd/kustomize-controller v1.9.0 docs/spec/v1/kustomizations.md;
# github.com/argoproj/argo-cd 00e2c4bc docs/user-guide/sync-options.md and compare-options.md
UNPRUNED = {  # the object stays when it leaves Git, and does not count as drift
    "kustomize.toolkit.fluxcd.io/prune": "disabled",
    "argocd.argoproj.io/sync-options": "Prune=false",
    "argocd.argoproj.io/compare-options": "IgnoreExtraneous",
}
MERGE_ANNOTATIONS = {"kustomize.toolkit.fluxcd.io/ssa": "Merge"}  # keeps fields that only the cluster has


# `kubernetes.unit_kind` -> apiVersion and kind of a unit's own object.
UNIT_OBJECTS = {
    "leaderworkerset": ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
    "statefulset": ("apps/v1", "StatefulSet"),
}
# The kinds of a unit's other objects that have its name.
COMPANIONS = (
    ("v1", "Service"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("cert-manager.io/v1", "Certificate"),
    ("resource.nvidia.com/v1beta1", "ComputeDomain"),
)
# The kind of a unit's own object -> where its pods' template is.
POD_TEMPLATES = {
    "LeaderWorkerSet": ("spec", "leaderWorkerTemplate", "workerTemplate"),
    "StatefulSet": ("spec", "template"),
}
DEPLOYMENT_API_VERSION, DEPLOYMENT_KIND = f"{DOMAIN}/v1alpha1", "TidemillDeployment"


class Ports:
    """The ports that processes listen on. To KV and METRICS a rank adds the number that it has on its node."""

    RENDEZVOUS = 29500  # on the unit's leader: the store by which its ranks find each other
    PLACES = 29501  # on the unit's leader: where its nodes claim their places in the unit
    KV = 29600
    REGISTRY = 29400  # of the gateway, where ranks register
    METRICS = 9400
    HEALTH = 8081  # of the controller; controller-runtime's default for probes


def unit_name(plan: str, phase: Phase, index: int) -> str:
    """Return the name of unit `index` of a phase: `deepseek-r1-decode-0`."""
    return f"{plan}-{phase}-{index}"


def short_name(name: str, plan: str) -> str:
    """Return a unit's name without its plan's: `decode-0`. Other names stay as they are."""
    return name.removeprefix(f"{plan}-")


def logical_node(index: int) -> str:
    """Return the name that the planner gives to node `index`, if the spec has only a number of nodes."""
    return f"node-{index}"


def gateway_name(plan: str) -> str:
    """Return the name of the gateway's Deployment, ServiceAccount and HTTP Service."""
    return f"{plan}-gateway"


def cluster_endpoint(plan: str, namespace: str, port: int) -> str:
    """Return the URL at which clients inside the cluster reach the gateway, without `/v1`."""
    return f"http://{gateway_name(plan)}.{namespace}:{port}"


def cluster_metrics(plan: str, namespace: str, port: int) -> str:
    """Return the URL of the gateways' metrics inside the cluster.

    The host is a headless Service, so DNS gives the address of every gateway.
    """
    return f"http://{registry_name(plan)}.{namespace}:{port}/metrics"


def registry_name(plan: str) -> str:
    """Return the name of the Service by which ranks find the gateway, even before the gateway answers HTTP."""
    return f"{plan}-registry"


def gateway_identity(namespace: str, plan: str) -> str:
    """Return the URI of the gateway's certificate, a SPIFFE ID in Istio's form, with the Deployment as account."""
    return f"spiffe://{DOMAIN}/ns/{namespace}/deployment/{plan}/gateway"


def unit_identities(namespace: str, plan: str) -> str:
    """Return the prefix of the URIs of units' certificates. A unit's URI is the prefix and its name."""
    return f"spiffe://{DOMAIN}/ns/{namespace}/deployment/{plan}/unit/"


def certificate_secret(owner: str) -> str:
    """Return the name of the Secret with the certificate of the gateway or of a unit."""
    return f"{owner}-tls"


def controller_name(plan: str) -> str:
    """Return the name of the controller's Deployment, ServiceAccount, Role and Lease."""
    return f"{plan}-controller"


def controller_nodes_role(namespace: str, plan: str) -> str:
    """Return the name of the controller's ClusterRole for nodes, which no other plan in any namespace has.

    A namespace has no dots, so in the role's name it ends at the first dot.
    """
    return f"tidemill-{namespace}.{controller_name(plan)}"


def phase_budget(plan: str, phase: Phase) -> str:
    """Return the name of the PodDisruptionBudget of a phase's units."""
    return f"{plan}-{phase}"


def phase_map(plan: str, phase: Phase) -> str:
    """Return the prefix of the name of the ConfigMap with a phase's expert map."""
    return f"{plan}-{phase}-map"


def compute_domain_channel(unit: str) -> str:
    """Return the name of the ResourceClaimTemplate that NVIDIA's driver makes for a unit's ComputeDomain."""
    return f"{unit}-channel"


def runtime_account(plan: str) -> str:
    """Return the name of the ServiceAccount of all units' pods and of the PodMonitor of all ranks."""
    return f"{plan}-runtime"


def launch_file(unit: str) -> str:
    """Return the name of a unit's launch file: `deepseek-r1-decode-0.launch.json`."""
    return f"{unit}.launch.json"


def epoch_config(unit: str) -> str:
    """Return the name of the ConfigMap in which the controller writes a unit's next epoch."""
    return f"{unit}-epoch"


def launch_config(owner: str, digest: str, part: int = 0) -> str:
    """Return the name of the ConfigMap of a launch file or a map, by content: `deepseek-r1-decode-0-0a1b2c3d4e`.

    A changed launch file is another ConfigMap, so only the pods that mount it are replaced. A file too large for one
    ConfigMap has several: `...-0a1b2c3d4e-1` has the second `part`.
    """
    name = f"{owner}-{digest.removeprefix('sha256:')[:CONTENT_LENGTH]}"
    return f"{name}-{part}" if part else name


def labels(plan: str, component: str, unit: str | None = None, phase: Phase | None = None) -> dict[str, str]:
    """Return the labels of an object: Kubernetes' recommended ones and ours."""
    ours = {PLAN_LABEL: plan, UNIT_LABEL: unit, PHASE_LABEL: phase}
    return {
        "app.kubernetes.io/name": "tidemill",
        "app.kubernetes.io/instance": plan,
        COMPONENT_LABEL: component,
        "app.kubernetes.io/part-of": plan,
        "app.kubernetes.io/managed-by": "tidemill",
    } | {key: value for key, value in ours.items() if value is not None}


def owner_of(labels: Mapping[str, str]) -> str:
    """Return the owner of an object with these labels: a unit's name, `gateway`, `controller` or `plan`."""
    return labels.get(UNIT_LABEL, labels[COMPONENT_LABEL])


def plan_selector(plan: str) -> dict[str, str]:
    """Return the labels that select all pods of a plan; units' pods have UNIT_LABEL too."""
    return {PLAN_LABEL: plan}


def unit_selector(unit: str) -> dict[str, str]:
    """Return the labels that select a unit's pods."""
    return {UNIT_LABEL: unit}


def unit_pod_name(unit: str, worker: int, unit_kind: UnitKind) -> str:
    """Return the name of one of a unit's pods. The pod's host name is in the domain of the unit's Service.

    Source: github.com/kubernetes-sigs/lws v0.9.0: a group's first pod is NAME-0, the others are NAME-0-INDEX.
    """
    if unit_kind == "statefulset":
        return f"{unit}-{worker}"
    return f"{unit}-0-{worker}" if worker else f"{unit}-0"


def first_pod_label(unit_kind: UnitKind) -> str:
    """Return the label and value that only a unit's first pod has."""
    return "apps.kubernetes.io/pod-index=0" if unit_kind == "statefulset" else f"{LWS_INDEX_LABEL}=0"


def phase_selector(plan: str, phase: Phase) -> dict[str, str]:
    """Return the labels that select the pods of all units of a phase."""
    return {PLAN_LABEL: plan, PHASE_LABEL: phase}


def controller_selector(plan: str) -> dict[str, str]:
    """Return the labels that select the controller's pods."""
    return {PLAN_LABEL: plan, COMPONENT_LABEL: "controller"}


def gateway_selector(plan: str) -> dict[str, str]:
    """Return the labels that select the gateway's pods."""
    return {PLAN_LABEL: plan, COMPONENT_LABEL: "gateway"}


def digest_annotation(kind: str) -> str:
    """Return the key of a digest annotation, `tidemill.dev/launch-digest`.

    The annotation belongs in an object's own metadata, because a new digest in a pod template would restart pods.
    """
    return f"{DOMAIN}/{kind}-digest"
