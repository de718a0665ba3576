"""What a pod runs: the one value that every adapter makes, and manifests are made from.

An adapter is a pure function of the plan, and launch documents have what it made. It decides everything that depends on
the engine: the command, the file that the command reads, the ports, where to ask whether it is alive or ready, what its
metrics are called. Our own runtime's container is made with the manifests (`manifests/container.py`). What depends on
the cluster (GPUs, RDMA, volumes, names of NICs) is the spec's, and manifests put it around any container.

An argument or a variable may hold `$(NAME)`, which the kubelet replaces: LeaderWorkerSet gives each pod
LWS_LEADER_ADDRESS and LWS_WORKER_INDEX, and manifests give each POD_IP. Source: github.com/kubernetes-sigs/lws v0.9.0
pkg/utils/pod/pod_utils.go.

Engines listen on POD_IP, never on every address: with the nodes' network that would be every network of the node.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["CACHES", "LEADER", "MAP_FILE", "POD_ADDRESS", "WORKER", "Container", "Phased", "Probe"]

LEADER, WORKER = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"
POD_ADDRESS = "$(POD_IP)"
MAP_FILE = "/etc/tidemill/expert-location.json"  # where launch files are mounted

# The root file system is read-only, and engines compile kernels when they start.
CACHES = {"HOME": "/tmp", "XDG_CACHE_HOME": "/tmp/.cache"}  # noqa: S108 (the pod's own, emptied with it)


@dataclass(frozen=True)
class Probe:
    """A path on one of a pod's ports that tells its state."""

    path: str
    port: str  # by name
    timeout_seconds: int | None = 1  # None: as manifests have it


@dataclass(frozen=True)
class Container:
    """What runs in each pod of a unit, or as the gateway."""

    command: tuple[str, ...]
    args: tuple[str, ...]
    ports: Mapping[str, int]
    liveness: Probe  # 200 once weights are loaded, and as long as something moves
    readiness: Probe  # 200 while requests can be answered
    metrics: Probe
    image: str | None = None  # the spec's where None
    start_s: int | None = None  # in which it answers, or is started again; by its weights where None
    metric_names: Mapping[str, str] = field(default_factory=dict)  # ours -> the engine's of the same meaning
    env: Mapping[str, str] = field(default_factory=dict)
    map_file: str | None = None  # where it reads the expert map, in the engine's format
    annotations: Mapping[str, str] = field(default_factory=dict)  # of its pods

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Container":
        """Return what `as_document` has, with mappings sorted as in a plan that was read from its file."""
        probes = {name: Probe(**document[name]) for name in ("liveness", "readiness", "metrics")}
        lists = {name: tuple(document[name]) for name in ("command", "args")}
        mappings = {name: dict(sorted(each.items())) for name, each in document.items() if isinstance(each, Mapping)}
        return cls(**{**document, **mappings, **lists, **probes})

    def as_document(self) -> dict[str, Any]:
        """Return it as JSON has it, without what it does not have."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if value not in (None, {}, False)
        }


@dataclass(frozen=True)
class Phased:
    """What an adapter needs to know of a phase that no spec says by itself."""

    model_path: str  # in the pod
    model_type: str  # of its config.json
    kv_tokens: int  # of one rank
    kv_bytes: int  # likewise
    static_fraction: float  # of a GPU's memory, or of what is free before weights are loaded: weights and KV
    start_s: int  # that its pods get to start
    brings_code: bool = False  # whether the checkpoint has code that the engine has to run
    joins_nodes: bool = False  # whether the GPUs of a unit's nodes share one NVLink
    other_method: str | None = None  # of its quantisation, where it is not the usual one of its precision
