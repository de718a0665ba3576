"""278 nodes of 8 GPUs that nobody has: KWOK plays their kubelets, and everything else of the cluster is real.

KWOK keeps the nodes' leases and says of every pod bound to one that it runs. So API server, scheduler, controllers and
LeaderWorkerSet do at the published system's size what they do in production, on two cores. Nothing runs in the pods:
readiness probes, devices and networks are not tried here.

Nodes may be silent for 40 s here. KWOK renews leases late on a busy machine, and never takes back what the node
controller then makes of its pods, so that groups would stay short of ready for ever.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kubernetes import client

from tests.cluster.build import obtain
from tests.cluster.control_plane import (
    Address,
    ControlPlane,
    running_api_server,
    start_controllers,
    start_scheduler,
)
from tests.cluster.leaderworkersets import serve_leaderworkersets, start_leaderworkersets
from tests.cluster.objects import Objects
from tests.cluster.processes import Daemons
from tests.cluster.products import (
    API_SERVER,
    CONTROLLER_MANAGER,
    ETCD,
    KWOK,
    LWS_CONTROLLER,
    LWS_CRDS,
    LWS_WEBHOOKS,
    SCHEDULER,
)

__all__ = [
    "FAKE_NODE_PRODUCTS",
    "GPU",
    "NUM_NODES",
    "RDMA",
    "FakeNode",
    "create_nodes",
    "h800_nodes",
    "running_control_plane_for_fake_nodes",
]

FAKE_NODE_PRODUCTS = (
    *(ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER, KWOK),
    *(LWS_CRDS, LWS_WEBHOOKS, LWS_CONTROLLER),
)
NODE_GRACE_S = 40
LEASE_S = 40
READY_TIMEOUT_S = 120  # 1 to 10 s alone on the machine
POD_ADDRESSES = "10.245.0.0/16"
SERVER_PORT = 10247
THREADS = 8  # create nodes; one after the other takes ten times as long

NUM_NODES = 278
RACK_SIZE = 4  # as the spec that ships has it
LEAF_SIZE = 32
GPU, RDMA = "nvidia.com/gpu", "rdma/hca"


@dataclass(frozen=True)
class FakeNode:
    """A node as the cluster's owner would list it."""

    name: str
    rack: str
    leaf: str
    gpus: int = 8

    @property
    def inventory(self) -> dict[str, str]:
        """Its entry in a spec's `cluster.nodes`."""
        return {"name": self.name, "rack": self.rack, "leaf": self.leaf}

    @property
    def manifest(self) -> dict:
        """Its Node, with the resources that kubelet and device plugins would report."""
        resources = {"cpu": "192", "memory": "2Ti", "pods": "110", GPU: str(self.gpus), RDMA: "8"}
        labels = {"kubernetes.io/hostname": self.name, "rack": self.rack, "leaf": self.leaf}
        return {
            "metadata": {"name": self.name, "labels": labels},
            "status": {"capacity": resources, "allocatable": resources},
        }


def h800_nodes(number: int = NUM_NODES) -> list[FakeNode]:
    """As many as the published system has at its peak, or so many, in racks of 4 and under leaf switches of 32."""
    return [
        FakeNode(f"gpu-{index:03d}", rack=f"rack-{index // RACK_SIZE:02d}", leaf=f"leaf-{index // LEAF_SIZE}")
        for index in range(number)
    ]


@contextmanager
def running_control_plane_for_fake_nodes(folder: Path) -> Iterator[ControlPlane]:
    """Start everything of a cluster but nodes; whatever Node is created then becomes a fake one, ready in seconds."""
    daemons = Daemons(folder)
    with running_api_server(daemons, Address.on_loopback()) as control_plane:
        start_controllers(control_plane, node_grace_s=NODE_GRACE_S)
        start_scheduler(control_plane)
        serve_leaderworkersets(control_plane)
        start_leaderworkersets(control_plane, Objects(control_plane.api, str(folder / "discovery.json")))
        _start_kwok(control_plane)
        yield control_plane


def create_nodes(control_plane: ControlPlane, nodes: Sequence[FakeNode]) -> None:
    """Create them, and wait until all are ready."""
    core = client.CoreV1Api(control_plane.api)
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda node: core.create_node(node.manifest), nodes))
    names = {each.name for each in nodes}
    control_plane.daemons.wait_until(lambda: names <= _ready(core), "all fake nodes are ready", READY_TIMEOUT_S)


def _start_kwok(control_plane: ControlPlane) -> None:
    """Start KWOK on all nodes, with the stages that are built in: a node is ready, and so are pods bound to it."""
    address = control_plane.address
    settings = control_plane.folder / "kwok.yaml"  # else it reads one of the developer's home folder
    settings.write_text("apiVersion: config.kwok.x-k8s.io/v1alpha1\nkind: KwokConfiguration\n")
    kubeconfig = control_plane.authority.issue_kubeconfig("kwok", address.server, user="kwok", group="system:masters")
    control_plane.daemons.start(
        "kwok",
        *(obtain(KWOK), f"--kubeconfig={kubeconfig}", "--manage-all-nodes=true"),
        *(f"--config={settings}", f"--node-lease-duration-seconds={LEASE_S}"),
        *(f"--cidr={POD_ADDRESSES}", f"--node-ip={address.host}", f"--server-address={address.host}:{SERVER_PORT}"),
    )


def _ready(core: client.CoreV1Api) -> set[str]:
    return {
        node.metadata.name
        for node in core.list_node().items
        for each in node.status.conditions or []
        if (each.type, each.status) == ("Ready", "True")
    }
