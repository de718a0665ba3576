"""The spec's `kubernetes` section, for manifests: namespace, image, mounts, resources and scheduling of pods.

No layout depends on it. Of all passes only placement reads a field: tolerations make tainted nodes usable.
"""

from typing import Annotated, Literal

from pydantic import Field

from planner.facts.quantities import quantity
from planner.spec.pods import (
    GatewayPodSpec,
    NicsSpec,
    OverlaySpec,
    RdmaSpec,
    StageSpec,
    Texts,
    TlsSpec,
    TolerationSpec,
    Variables,
    VolumeSpec,
)
from planner.spec.section import Section

__all__ = ["DEFAULT_IMAGE", "KubernetesSpec", "PodResources", "ResourcesSpec"]

DEFAULT_IMAGE = "tidemill-runtime:0.1.0"


class PodResources(Section):
    """What each pod of a kind is sure to get."""

    cpus: float = Field(
        ge=0.001, le=4096, description="CPUs requested, without a limit since spare ones are free.", examples=[16]
    )
    memory: Annotated[int, *quantity("bytes", least="1MiB", most="1024TiB")] = Field(
        description="Memory requested, and the most that a pod may use.", examples=["512GiB"]
    )


class ResourcesSpec(Section):
    """CPUs and memory by kind of pod."""

    unit: PodResources | None = Field(
        default=None, description="For each pod of each unit.", examples=[{"cpus": 16, "memory": "512GiB"}]
    )
    gateway: PodResources | None = Field(
        default=None, description="For the gateway's pod.", examples=[{"cpus": 2, "memory": "4GiB"}]
    )


class HealSpec(Section):
    """Units that leave faulty nodes: those that are cordoned, or have taints, or say so themselves."""

    conditions: list[Annotated[str, Field(max_length=325, pattern=r"^[^=]+(=(True|False|Unknown))?$")]] = Field(
        default=["GPUMissing", "NVLinkStatusInactive", "XIDErrors", "AcceleratedHardwareReady=False"],
        description="Conditions of a Node that are true when it is faulty, or have the status that is given; the"
        " default is what AKS's node problem detector and EKS's node monitoring agent say of GPUs.",
        examples=[["GpuNvlinkWatch", "AcceleratedHardwareReady=False"]],
    )
    labels: list[Annotated[str, Field(max_length=381, pattern=r"^[^=]+=[^=]*$")]] = Field(
        default=[],
        description="Labels, KEY=VALUE, that a Node has when it is faulty.",
        examples=[["example.com/gpu-health=failed"]],
    )


class DemandSpec(Section):
    """More units than the day wants, while the gateway has more to do than they carry."""

    used: float = Field(
        default=0.9,
        ge=0.01,
        le=1,
        description="Share of the places for requests, or of the KV, of a phase's ready units that may be in use; for"
        " what is over it further units start.",
        examples=[0.9],
    )
    after: Annotated[float, *quantity("time", least="10s", most="1h")] = Field(
        default="1min",
        validate_default=True,
        description="Time for which more has to be asked for until a unit starts, and schedule.start.notice where nodes"
        " are lent.",
        examples=["1min"],
    )
    stay: Annotated[float, *quantity("time", least="1min", most="24h")] = Field(
        default="15min",
        validate_default=True,
        description="Time that a number of units is kept at least once demand has asked for it.",
        examples=["15min"],
    )


class KueueSpec(Section):
    """Kueue's quota of the nodes that are lent, so that it admits no more jobs than they hold."""

    cluster_queue: str = Field(description="Kueue's ClusterQueue whose quota is changed.", examples=["batch"])
    flavor: str = Field(
        description="A ResourceFlavor of its own, whose nodeLabels are tidemill.dev/node: free.", examples=["lent"]
    )
    per_node: list[Annotated[str, Field(max_length=340, pattern=r"^[^=]+=[1-9][0-9]{0,14}$")]] = Field(
        min_length=1,
        description="What each free node adds to the flavor's quotas, RESOURCE=NUMBER; other quotas are left alone.",
        examples=[["nvidia.com/gpu=8"]],
    )


class ControllerSpec(Section):
    """What makes units in the cluster follow the schedule's day: a pod that turns them on and off."""

    resources: PodResources | None = Field(
        default=None, description="What its pod is sure to get.", examples=[{"cpus": 0.1, "memory": "256MiB"}]
    )
    turns: Literal["now", "with_room"] = Field(
        default="now",
        description="When units take a new template, one of a phase at a time, while another one stands in where nodes"
        " are free. Where none are, now lets the phase lack one, and with_room waits for a state of the day that has"
        " them.",
        examples=["with_room"],
    )
    lend_nodes: bool = Field(
        default=False,
        description="Label the nodes of units that are off, for batch jobs, and taint them schedule.start.notice"
        " before they are taken again.",
        examples=[True],
    )
    kueue: KueueSpec | None = Field(
        default=None,
        description="Keep Kueue's quota for the nodes that lend_nodes hands to batch jobs.",
        examples=[{"cluster_queue": "batch", "flavor": "lent", "per_node": ["nvidia.com/gpu=8"]}],
    )
    heal: HealSpec | None = Field(
        default=None,
        description="Have units leave nodes that are cordoned, tainted or report faults, for cluster.spares.",
        examples=[{}],
    )
    demand: DemandSpec | None = Field(
        default=None,
        description="Start further units of the plan when the gateway has more to do than the day's units carry.",
        examples=[{}],
    )
    stragglers_last: bool = Field(
        default=False,
        description="Have a unit that one slow rank holds up serve only while all others of its phase do.",
        examples=[True],
    )
    pace: float = Field(
        default=1,
        ge=1,
        le=86_400,
        description="For a rehearsal: how many times as fast as clocks the day goes by, from the deployment on.",
        examples=[144],
    )


class KubernetesSpec(Section):
    """Names, image, mounts and sizes of the pods, and what the pods of units get of their nodes."""

    namespace: str = Field(default="tidemill", description="Namespace of all objects.", examples=["tidemill"])
    create_namespace: bool = Field(
        default=True,
        description="Create the namespace with the objects, and delete it with them; false: use the one that is there.",
        examples=[False],
    )
    image: str = Field(
        default=DEFAULT_IMAGE,
        min_length=1,
        description="The image that holds the runtime package, as the nodes can pull it; a digest (NAME@sha256:...) "
        "names it for good.",
        examples=["registry.example.com/tidemill-runtime:0.1.0"],
    )
    tidemill_image: str | None = Field(
        default=None,
        min_length=1,
        description="The image with Tidemill, for the controller and for copies of the checkpoint: unless given, the"
        " gateway's and the units'. Other engines' images do not hold it.",
        examples=["registry.example.com/tidemill-runtime:0.1.0"],
    )
    image_pull_secrets: list[str] = Field(
        default=[],
        description="Secrets of the namespace with which nodes log in where the image is, where it is not public.",
        examples=[["registry-login"]],
    )
    volumes: list[VolumeSpec] = Field(
        default=[],
        description="What units and the gateway mount read-only, such as the folder of the checkpoint.",
        examples=[[{"host_path": "/mnt/models", "mount_path": "/models"}]],
    )
    gateway: GatewayPodSpec = Field(
        default=GatewayPodSpec(),
        description="The gateway's image, which is the controller's too, and its volumes, where they differ from the"
        " units'.",
        examples=[{"image": "registry.example.com/tidemill-runtime:0.1.0", "volumes": []}],
    )
    resources: ResourcesSpec = Field(
        default=ResourcesSpec(),
        description="CPUs and memory of the pods.",
        examples=[{"unit": {"cpus": 16, "memory": "512GiB"}}],
    )
    ready_timeout: Annotated[float, *quantity("time", least="10s", most="24h")] = Field(
        default="30min",
        validate_default=True,
        description="Time after which a unit that is not ready is an error, where loading takes most of the time; pods "
        "of other engines get at least as long to start.",
        examples=["30min"],
    )
    unit_kind: Literal["leaderworkerset", "statefulset"] = Field(
        default="leaderworkerset",
        description="What a unit is: a LeaderWorkerSet, which starts all pods again when one fails, or a StatefulSet, "
        "for clusters without that controller.",
        examples=["statefulset"],
    )
    gpu_resource: str | None = Field(
        default=None,
        min_length=1,
        description="What a unit's pods ask for, one for each rank, the GPU's own resource unless given.",
        examples=["nvidia.com/gpu"],
    )
    rdma: RdmaSpec | None = Field(
        default=None,
        description="The RDMA devices that a unit's pods ask for.",
        examples=[{"resource": "rdma/hca", "count": 8}],
    )
    networks: list[str] = Field(
        default=[],
        description="Further networks of a unit's pods, as Multus calls them: NAME, NAMESPACE/NAME or NAME@INTERFACE.",
        examples=[["rdma-0", "rdma-1"]],
    )
    host_network: bool = Field(
        default=False,
        description="Let a unit's pods use the network of their nodes instead of one of their own.",
        examples=[True],
    )
    nics: NicsSpec | None = Field(
        default=None,
        description="Names of the interfaces that NCCL, NVSHMEM and Gloo are told to use.",
        examples=[{"hca": ["mlx5_0", "mlx5_1"], "socket": "eth0"}],
    )
    env: Variables = Field(
        default={},
        description="Further environment variables of a unit's pods, as text or as a key of a secret, which win over "
        "those that the plan sets.",
        examples=[{"NCCL_DEBUG": "INFO", "HF_TOKEN": {"secret": "hugging-face", "key": "token"}}],
    )
    tolerations: list[TolerationSpec] = Field(
        default=[],
        description="Taints that do not keep units away; the plan then uses the nodes that have them.",
        examples=[[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]],
    )
    node_selector: Texts = Field(
        default={},
        description="Labels that a unit's nodes must have besides being named by the plan.",
        examples=[{"pool": "inference"}],
    )
    priority_class: str | None = Field(
        default=None,
        min_length=1,
        description="PriorityClass of all pods: without the gateway no unit serves.",
        examples=["inference"],
    )
    queue: str | None = Field(
        default=None, min_length=1, description="Kueue's LocalQueue that admits the units.", examples=["inference"]
    )
    compute_domain: bool | None = Field(
        default=None,
        description="A ComputeDomain for each unit of several nodes, by which their GPUs share one NVLink; made where "
        "NVLink leaves the node unless false.",
        examples=[False],
    )
    stage: StageSpec | None = Field(
        default=None,
        description="Copy the checkpoint to each node's own disk first, and read it there.",
        examples=[{"source": "/models/weights", "host_path": "/mnt/nvme/weights"}],
    )
    kernel_cache: str | None = Field(
        default=None,
        description="Folder of each node's own disk that keeps compiled kernels, so that a unit which starts again "
        "compiles none.",
        examples=["/mnt/nvme/kernels"],
    )
    kv_cache_claim: str | None = Field(
        default=None,
        min_length=1,
        description="Instead of each node's own disk, a PersistentVolumeClaim that many nodes can mount, for"
        " kv_cache.disk; its blocks are found by all units.",
        examples=["kv-cache"],
    )
    load_rate: Annotated[float, *quantity("link")] = Field(
        default="2GB/s",
        validate_default=True,
        description="How fast a node reads weights, from which the time that pods on GPUs get to start is planned.",
        examples=["2GB/s"],
    )
    stall_timeout: Annotated[float, *quantity("time", least="30s", most="24h")] = Field(
        default="10min",
        validate_default=True,
        description="Time after which a rank is given up whose steps do not go on: the gateway fails its requests, and "
        "on a GPU its pod is started again; longer than a first step takes to compile kernels, and on CPUs the gateway "
        "waits for 150 s at most.",
        examples=["10min"],
    )
    drain: Annotated[float, *quantity("time", least="1s", most="24h")] | None = Field(
        default=None,
        description="Time that a unit or the gateway gets, once told to end, for the answers that it has begun; an "
        "idle one ends at once. Unless given, schedule.drain (over controller.pace) where a controller drains units,"
        " else 30s.",
        examples=["2min"],
    )
    disruptions: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="Units of a phase that evictions may end at a time; on GPUs, unless given, 1 where a phase has "
        "several and 0 where it has one.",
        examples=[1],
    )
    controller: ControllerSpec | None = Field(
        default=None,
        description="Units that follow the schedule's day by themselves; without it, all of them stay on.",
        examples=[{}],
    )
    network_policies: bool = Field(
        default=True,
        description="NetworkPolicies that let the pods have the connections that they need, and no other.",
        examples=[False],
    )
    tls: TlsSpec | None = Field(
        default=None,
        description="Mutual TLS between the gateway and the ranks, which without it take each other at their word.",
        examples=[{"issuer": "tidemill-ca"}],
    )
    monitors: bool = Field(
        default=False,
        description="PodMonitors with which the Prometheus operator finds the metrics of every rank and the gateway.",
        examples=[True],
    )
    overlay: OverlaySpec | None = Field(
        default=None,
        description="What no field says, merged into rendered pods and other objects.",
        examples=[{"unit_pod": {"spec": {"runtimeClassName": "nvidia"}}}],
    )

    @property
    def lends_nodes(self) -> bool:
        """Whether batch jobs get the nodes of units that are off."""
        return self.controller is not None and self.controller.lend_nodes

    @property
    def reads_metrics(self) -> bool:
        """Whether the controller reads the gateway's metrics."""
        controller = self.controller
        return controller is not None and (controller.demand is not None or controller.stragglers_last)

    @property
    def heals(self) -> bool:
        """Whether the controller moves units away from faulty nodes."""
        return self.controller is not None and self.controller.heal is not None
