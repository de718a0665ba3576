"""The container that an adapter makes for an engine's pods; manifests are made from it.

An adapter is a pure function of the plan, and its container is part of launch documents. The adapter decides everything
that depends on the engine: the command, the file that the command reads, ports, probes and names of metrics. Our own
runtime's container is made with the manifests (`manifests/container.py`). What depends on the cluster (GPUs, RDMA,
volumes, names of NICs) comes from the spec, and manifests add it to the container of any engine.

An argument or a variable may hold `$(NAME)`, which the kubelet replaces: LeaderWorkerSet gives each pod
LWS_LEADER_ADDRESS and LWS_WORKER_INDEX, and manifests give each POD_IP. Source: github.com/kubernetes-sigs/lws v0.9.0
pkg/utils/pod/pod_utils.go.

Engines listen on POD_IP, never on every address: a pod on its node's network would listen on all networks of the node.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from planner.engines.edge import Edge

LEADER, WORKER = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"
POD_ADDRESS = "$(POD_IP)"
MAP_FILE = "/etc/tidemill/expert-location.json"  # in the folder where launch files are mounted

# Folders to write to: engines compile kernels when they start, and the root file system is read-only.
CACHES = {"HOME": "/tmp", "XDG_CACHE_HOME": "/tmp/.cache"}  # noqa: S108 (the pod's own, emptied with it)


@dataclass(frozen=True)
class Probe:
    """An HTTP path at which a pod reports its state or its metrics."""

    path: str
    port: str  # a name in `Container.ports`
    timeout_seconds: int | None = 1  # None: the manifests' default


@dataclass(frozen=True)
class Container:
    """The container of each pod of a unit, or of the gateway."""

    command: tuple[str, ...]
    args: tuple[str, ...]
    ports: Mapping[str, int]
    liveness: Probe  # 200 once weights are loaded, while the engine makes progress
    readiness: Probe  # 200 while requests can be answered
    metrics: Probe
    image: str | None = None  # None: the spec's image
    start_s: int | None = None  # seconds to answer before it is restarted; None: computed from the size of the weights
    metric_names: Mapping[str, str] = field(default_factory=dict)  # our name of a metric -> the engine's
    env: Mapping[str, str] = field(default_factory=dict)
    map_file: str | None = None  # path of the expert map, in the engine's format
    annotations: Mapping[str, str] = field(default_factory=dict)  # that its pods get
    edge: Edge | None = None  # the proxy in front of a router

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Container":
        """Return the container from the JSON that `as_document` made. Mappings are sorted, as in a plan's file."""
        probes = {name: Probe(**document[name]) for name in ("liveness", "readiness", "metrics")}
        lists = {name: tuple(document[name]) for name in ("command", "args")}
        mappings = {name: dict(sorted(each.items())) for name, each in document.items() if isinstance(each, Mapping)}
        edge = {"edge": Edge(**document["edge"])} if "edge" in document else {}
        return cls(**{**document, **mappings, **lists, **probes, **edge})

    def as_document(self) -> dict[str, Any]:
        """Return the container as JSON for a launch document, without empty fields."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if value not in (None, {}, False)
        }


@dataclass(frozen=True)
class PhaseFacts:
    """Facts about a phase that an adapter needs beside the spec."""

    model_path: str  # path of the checkpoint in the pod
    model_type: str  # of the checkpoint's config.json
    kv_tokens: int  # tokens of KV that one rank holds
    kv_bytes: int  # bytes of KV on one rank
    static_fraction: float  # share of GPU memory for weights and KV (`memory.static_fraction`)
    start_s: int  # seconds that pods get to start
    brings_code: bool = False  # whether the checkpoint has code that the engine must run
    joins_nodes: bool = False  # whether a unit's nodes are in one NVLink domain
    other_method: str | None = None  # the checkpoint's quantisation method if the precision usually has another
