"""The spec's `kubernetes` section, for manifests: namespace, image, mounts, resources and scheduling of pods.

No layout depends on this section. Of the planner's passes only placement reads one of its fields: tolerations make
tainted nodes usable.
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

DEFAULT_IMAGE = "tidemill-runtime:0.1.0"


class PodResources(Section):
    """CPUs and memory that each pod of a kind is guaranteed."""

    cpus: float = Field(
        ge=0.001, le=4096, description="CPUs requested. There is no limit, so pods may use idle CPUs.", examples=[16]
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
    """How a node reports that it is faulty. Units leave such nodes, and nodes that are cordoned or tainted."""

    conditions: list[Annotated[str, Field(max_length=325, pattern=r"^[^=]+(=(True|False|Unknown))?$")]] = Field(
        default=["GPUMissing", "NVLinkStatusInactive", "XIDErrors", "AcceleratedHardwareReady=False"],
        description="Conditions of a faulty Node, with their status (true unless given). The default has those for"
        " GPUs of AKS's node problem detector and EKS's node monitoring agent.",
        examples=[["GpuNvlinkWatch", "AcceleratedHardwareReady=False"]],
    )
    labels: list[Annotated[str, Field(max_length=381, pattern=r"^[^=]+=[^=]*$")]] = Field(
        default=[],
        description="Labels of a faulty Node, KEY=VALUE.",
        examples=[["example.com/gpu-health=failed"]],
    )


class DemandSpec(Section):
    """When to start more units than the schedule has on, because the gateway's load exceeds their capacity."""

    used: float = Field(
        default=0.9,
        ge=0.01,
        le=1,
        description="Share of request slots, or of KV memory, in use on a phase's ready units, above which further"
        " units start.",
        examples=[0.9],
    )
    after: Annotated[float, *quantity("time", least="10s", most="1h")] = Field(
        default="1min",
        validate_default=True,
        description="Time for which demand must stay high before a unit starts. On lent nodes, schedule.start.notice"
        " is added.",
        examples=["1min"],
    )
    stay: Annotated[float, *quantity("time", least="1min", most="24h")] = Field(
        default="15min",
        validate_default=True,
        description="Least time that units started for demand stay on.",
        examples=["15min"],
    )


class ControllerSpec(Section):
    """A pod in the cluster that turns units on and off as the schedule says."""

    resources: PodResources | None = Field(
        default=None,
        description="CPUs and memory that this pod requests.",
        examples=[{"cpus": 0.1, "memory": "256MiB"}],
    )
    turns: Literal["now", "with_room"] = Field(
        default="now",
        description="When units are replaced after a change: one unit of a phase at a time, while another one stands in"
        " on free nodes. If no nodes are free, now lets the phase run with one unit less, and with_room waits for a"
        " time of day that has free nodes.",
        examples=["with_room"],
    )
    lend_nodes: bool = Field(
        default=False,
        description="Label the nodes of units that are off, so that batch jobs use them, and taint them"
        " schedule.start.notice before the unit takes its nodes back.",
        examples=[True],
    )
    heal: HealSpec | None = Field(
        default=None,
        description="Move units from nodes that are cordoned, tainted or report faults to cluster.spares.",
        examples=[{}],
    )
    demand: DemandSpec | None = Field(
        default=None,
        description="Start further units of the plan when the gateway's load exceeds the capacity of the day's units.",
        examples=[{}],
    )
    stragglers_last: bool = Field(
        default=False,
        description="Let a unit with a slow rank serve only while all other units of its phase are on.",
        examples=[True],
    )
    pace: float = Field(
        default=1,
        ge=1,
        le=86_400,
        description="For a rehearsal: how many times as fast as real time the day runs, beginning with the deployment.",
        examples=[144],
    )


class KubernetesSpec(Section):
    """Names, image, mounts and sizes of the pods, and what the pods of units may use on their nodes."""

    namespace: str = Field(default="tidemill", description="Namespace of all objects.", examples=["tidemill"])
    create_namespace: bool = Field(
        default=True,
        description="Create the namespace with the objects, and delete it with them; false: use an existing one.",
        examples=[False],
    )
    image: str = Field(
        default=DEFAULT_IMAGE,
        min_length=1,
        description="The image with the runtime package, in a registry that nodes can pull from; a digest"
        " (NAME@sha256:...) pins it.",
        examples=["registry.example.com/tidemill-runtime:0.1.0"],
    )
    tidemill_image: str | None = Field(
        default=None,
        min_length=1,
        description="The image with Tidemill, for the controller and for copying the checkpoint; by default the"
        " gateway's image and the units' image. Other engines' images lack Tidemill.",
        examples=["registry.example.com/tidemill-runtime:0.1.0"],
    )
    image_pull_secrets: list[str] = Field(
        default=[],
        description="Secrets of the namespace with which nodes pull images that are not public.",
        examples=[["registry-login"]],
    )
    volumes: list[VolumeSpec] = Field(
        default=[],
        description="Volumes that units and the gateway mount read-only, such as the checkpoint's.",
        examples=[[{"host_path": "/mnt/models", "mount_path": "/models"}]],
    )
    gateway: GatewayPodSpec = Field(
        default=GatewayPodSpec(),
        description="Image and volumes of the gateway, if they differ from the units'. The controller has the same"
        " image.",
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
        description="Time within which a unit must be ready, or it is an error; loading weights takes most of it. Pods"
        " of other engines get at least as long to start.",
        examples=["30min"],
    )
    unit_kind: Literal["leaderworkerset", "statefulset"] = Field(
        default="leaderworkerset",
        description="Kind of a unit's object: a LeaderWorkerSet, which restarts all pods when one fails, or a"
        " StatefulSet, for clusters without LeaderWorkerSets.",
        examples=["statefulset"],
    )
    gpu_resource: str | None = Field(
        default=None,
        min_length=1,
        description="Resource that a unit's pods request, one for each rank; by default that of the GPU model.",
        examples=["nvidia.com/gpu"],
    )
    rdma: RdmaSpec | None = Field(
        default=None,
        description="The RDMA devices that a unit's pods request.",
        examples=[{"resource": "rdma/hca", "count": 8}],
    )
    networks: list[str] = Field(
        default=[],
        description="Further networks of a unit's pods, in Multus' form: NAME, NAMESPACE/NAME or NAME@INTERFACE.",
        examples=[["rdma-0", "rdma-1"]],
    )
    host_network: bool = Field(
        default=False,
        description="Let a unit's pods use their node's network.",
        examples=[True],
    )
    nics: NicsSpec | None = Field(
        default=None,
        description="Names of the interfaces for NCCL, NVSHMEM and Gloo.",
        examples=[{"hca": ["mlx5_0", "mlx5_1"], "socket": "eth0"}],
    )
    env: Variables = Field(
        default={},
        description="Further environment variables of all units' pods, as text or as a key of a secret. They override"
        " those of the plan.",
        examples=[{"NCCL_DEBUG": "INFO", "HF_TOKEN": {"secret": "hugging-face", "key": "token"}}],
    )
    tolerations: list[TolerationSpec] = Field(
        default=[],
        description="Taints that units tolerate; the plan then uses nodes with these taints.",
        examples=[[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]],
    )
    node_selector: Texts = Field(
        default={},
        description="Labels that a unit's nodes must have, in addition to being the nodes in the plan.",
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
        description="Make a ComputeDomain for each unit of several nodes, so that its GPUs communicate over NVLink. By"
        " default true if the GPU's NVLink reaches beyond a node.",
        examples=[False],
    )
    stage: StageSpec | None = Field(
        default=None,
        description="Copy the checkpoint to each node's own disk first, and read it there.",
        examples=[{"source": "/models/weights", "host_path": "/mnt/nvme/weights"}],
    )
    kernel_cache: str | None = Field(
        default=None,
        description="Folder on each node's disk for compiled kernels, so that a restarted unit does not compile them"
        " again.",
        examples=["/mnt/nvme/kernels"],
    )
    kv_cache_claim: str | None = Field(
        default=None,
        min_length=1,
        description="A PersistentVolumeClaim that many nodes can mount, for kv_cache.disk in place of each node's own"
        " disk; all units find the KV in it.",
        examples=["kv-cache"],
    )
    load_rate: Annotated[float, *quantity("link")] = Field(
        default="2GB/s",
        validate_default=True,
        description="Rate at which a node reads weights. The time for pods on GPUs to start follows from it.",
        examples=["2GB/s"],
    )
    stall_timeout: Annotated[float, *quantity("time", least="30s", most="24h")] = Field(
        default="10min",
        validate_default=True,
        description="Time without progress after which a rank counts as lost: the gateway fails its requests, and on"
        " a GPU its pod restarts. It must be longer than a first step, which compiles kernels. On CPUs the gateway"
        " waits for at most 150 s.",
        examples=["10min"],
    )
    drain: Annotated[float, *quantity("time", least="1s", most="24h")] | None = Field(
        default=None,
        description="Time in which a terminating unit or gateway may finish its answers; an idle one ends at once."
        " By default schedule.drain (over controller.pace) if a controller drains units, else 30s.",
        examples=["2min"],
    )
    disruptions: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="Number of a phase's units that evictions may end at a time; on GPUs by default 1 if the phase has"
        " several units, and 0 if it has one.",
        examples=[1],
    )
    controller: ControllerSpec | None = Field(
        default=None,
        description="A controller that gives units turns when a change restarts them, and makes them follow the"
        " schedule, if there is one; without it, all stay on.",
        examples=[{}],
    )
    network_policies: bool = Field(
        default=True,
        description="Create NetworkPolicies that allow only the connections that the pods need.",
        examples=[False],
    )
    tls: TlsSpec | None = Field(
        default=None,
        description="Mutual TLS between the gateway and the ranks; without it they do not authenticate each other.",
        examples=[{"issuer": "tidemill-ca"}],
    )
    monitors: bool = Field(
        default=False,
        description="Create PodMonitors, by which the Prometheus operator finds the metrics of the gateway and every"
        " rank.",
        examples=[True],
    )
    overlay: OverlaySpec | None = Field(
        default=None,
        description="Settings without a field of their own, merged into rendered pods and other objects.",
        examples=[{"unit_pod": {"spec": {"runtimeClassName": "nvidia"}}}],
    )

    @property
    def lends_nodes(self) -> bool:
        """Whether batch jobs get the nodes of units that are off."""
        return self.controller is not None and self.controller.lend_nodes

    @property
    def heals(self) -> bool:
        """Whether the controller moves units away from faulty nodes."""
        return self.controller is not None and self.controller.heal is not None
