"""The container of a pod: every adapter makes one, and manifests are made from it.

An adapter is a pure function of the plan, and its container is part of launch documents. It decides everything that
depends on the engine: the command, the file that the command reads, ports, probes and names of metrics. Our own
runtime's container is made with the manifests (`manifests/container.py`). What depends on the cluster (GPUs, RDMA,
volumes, names of NICs) comes from the spec, and manifests add it to any container.

An argument or a variable may hold `$(NAME)`, which the kubelet replaces: LeaderWorkerSet gives each pod
LWS_LEADER_ADDRESS and LWS_WORKER_INDEX, and manifests give each POD_IP. Source: github.com/kubernetes-sigs/lws v0.9.0
pkg/utils/pod/pod_utils.go.

Engines listen on POD_IP, never on every address: a pod on its node's network would listen on all networks of the node.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["CACHES", "LEADER", "MAP_FILE", "POD_ADDRESS", "WORKER", "Container", "Phased", "Probe"]

LEADER, WORKER = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"
POD_ADDRESS = "$(POD_IP)"
MAP_FILE = "/etc/tidemill/expert-location.json"  # where launch files are mounted

# Engines compile kernels at the start, and the root file system is read-only.
CACHES = {"HOME": "/tmp", "XDG_CACHE_HOME": "/tmp/.cache"}  # noqa: S108 (the pod's own, emptied with it)


@dataclass(frozen=True)
class Probe:
    """An HTTP path that tells a pod's state."""

    path: str
    port: str  # name
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
    image: str | None = None  # None: the spec's
    start_s: int | None = None  # seconds to answer before it is restarted; None: by the size of its weights
    metric_names: Mapping[str, str] = field(default_factory=dict)  # our name -> the engine's
    env: Mapping[str, str] = field(default_factory=dict)
    map_file: str | None = None  # path of the expert map, in the engine's format
    annotations: Mapping[str, str] = field(default_factory=dict)  # of its pods

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Container":
        """Return the container of an `as_document`. Mappings are sorted, as in a plan's file."""
        probes = {name: Probe(**document[name]) for name in ("liveness", "readiness", "metrics")}
        lists = {name: tuple(document[name]) for name in ("command", "args")}
        mappings = {name: dict(sorted(each.items())) for name, each in document.items() if isinstance(each, Mapping)}
        return cls(**{**document, **mappings, **lists, **probes})

    def as_document(self) -> dict[str, Any]:
        """Return the container as JSON, without empty fields."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if value not in (None, {}, False)
        }


@dataclass(frozen=True)
class Phased:
    """Facts about a phase that an adapter needs and that do not stand in the spec."""

    model_path: str  # in the pod
    model_type: str  # of its config.json
    kv_tokens: int  # of one rank
    kv_bytes: int  # of one rank
    static_fraction: float  # memory share of weights and KV (`memory.static_fraction`)
    start_s: int  # seconds that its pods get to start
    brings_code: bool = False  # whether the checkpoint has code that the engine must run
    joins_nodes: bool = False  # whether a unit's nodes are in one NVLink domain
    other_method: str | None = None  # quantisation method, if it is not the usual one of the precision
