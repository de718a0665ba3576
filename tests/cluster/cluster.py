"""A real cluster on one machine: a control plane and four nodes that run pods, each a machine to the others.

From the host, the API, pods and ClusterIPs are reachable at their own addresses. From inside, nothing outside is.
"""

import contextlib
import dataclasses
import http.client
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kubernetes import client

from tests.cluster import images, products
from tests.cluster.cert_manager import serve_certificates, start_cert_manager
from tests.cluster.control_plane import (
    SERVICE_RANGE,
    Address,
    ControlPlane,
    running_api_server,
    start_controllers,
    start_scheduler,
)
from tests.cluster.definitions import OUR_DEFINITION, serve_definitions
from tests.cluster.diagnosis import diagnose
from tests.cluster.dns import dns_answers, start_dns
from tests.cluster.leaderworkersets import serve_leaderworkersets, start_leaderworkersets
from tests.cluster.network import Network, lay_network
from tests.cluster.node import Node
from tests.cluster.objects import Objects
from tests.cluster.processes import Daemons, NotReady
from tests.cluster.runs import Run

__all__ = ["CLUSTER_PRODUCTS", "NODE_GRACE_S", "Cluster", "running_cluster"]

CLUSTER_PRODUCTS = (
    *(products.ETCD, products.API_SERVER, products.CONTROLLER_MANAGER, products.SCHEDULER, products.COREDNS),
    *(products.LWS_CRDS, products.LWS_WEBHOOKS, products.LWS_CONTROLLER),
    *(products.CERT_MANAGER, products.CERT_MANAGER_CRDS),
    *(products.CONTAINERD, products.RUNC, products.CNI_PLUGINS, products.KUBELET, products.KUBE_PROXY),
)
NUM_NODES = 4
NODE_GRACE_S = 10  # of silence, then a node is not ready
READY_TIMEOUT_S = 120  # about 10 s alone on the machine
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
NOT_REGISTERED = client.V1NodeCondition(type="Ready", status="Unknown")


@dataclass(frozen=True)
class Cluster:
    """A running one. Use a namespace of your own, and leave the nodes as you found them."""

    control_plane: ControlPlane
    network: Network
    machines: tuple[Node, ...]
    image: str = images.PYTHON_IMAGE  # with `volumes`, one of Tidemill's runtime; pull policy: never

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.control_plane.kubeconfig

    @property
    def api(self) -> client.ApiClient:
        """The administrator's."""
        return self.control_plane.api

    @property
    def nodes(self) -> tuple[str, ...]:
        """Their names: also the label `kubernetes.io/hostname`."""
        return tuple(each.name for each in self.machines)

    @property
    def volumes(self) -> tuple[dict[str, str], ...]:
        """What pods of `image` mount, in the words of a spec's `kubernetes.volumes`."""
        return tuple({"mount_path": path, "host_path": path} for path in images.host_paths())

    @property
    def logs(self) -> Path:
        """The folder of every log; those of pods are below `pods`."""
        return self.control_plane.folder

    def process_of(self, name: str) -> int:
        """The first process of a node, in whose namespaces everything of it is."""
        return next(each.process.pid for each in self.control_plane.daemons.started if each.name == name)

    def crash_node(self, name: str) -> None:
        """Everything on the node ends at once, as when the power fails; nobody tells the API server."""
        self._machine(name).crash()
        self._route_to_services()

    def boot_node(self, name: str) -> None:
        """Start a crashed node again, with what was on its disk, and wait until it says itself that it is ready."""
        booted = datetime.now(UTC)
        self._machine(name).boot()
        self._route_to_services()
        self.wait_until(lambda: self.is_up(name, booted), f"{name} is ready", READY_TIMEOUT_S)

    def is_ready(self, name: str) -> bool:
        """Whether the API server holds the node for ready."""
        return _ready_condition(self.api, name).status == "True"

    def is_up(self, name: str, since: datetime = LONG_AGO) -> bool:
        """Whether the node itself has said after `since` that it is ready, and Services work there."""
        condition = _ready_condition(self.api, name)
        said_since = condition.last_heartbeat_time is not None and condition.last_heartbeat_time > since
        return condition.status == "True" and said_since and self._machine(name).translates_services()

    def wait_until(self, happened: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Poll. Raises NotReady with pods, events and every log's last lines, at the deadline or when a daemon ends."""
        try:
            self.control_plane.daemons.wait_until(happened, what, timeout_s)
        except NotReady as error:
            raise NotReady(f"{diagnose(self.api)}\n{error}") from None

    def _machine(self, name: str) -> Node:
        return self.machines[self.nodes.index(name)]

    def _route_to_services(self) -> None:
        """Through the first node that runs."""
        running = (each.index for each in self.machines if each.is_running())
        if (index := next(running, None)) is not None:
            self.network.route_to_services(SERVICE_RANGE, index)


@contextlib.contextmanager
def running_cluster(run: Run, folder: Path) -> Iterator[Cluster]:
    """Start one with logs and certificates in `folder`, and stop it at the end; the run removes what is left then.

    Raises NotReady, with what happened last.
    """
    outside = Daemons(folder, environment=run.environment)
    with outside.running():
        network = lay_network(outside, run.number)
        inside = dataclasses.replace(outside, inside=network.inside)
        with running_api_server(inside, Address(network.control_plane)) as control_plane:
            yield _start(run, network, control_plane, outside)


def _start(run: Run, network: Network, control_plane: ControlPlane, outside: Daemons) -> Cluster:
    """Everything behind the API server; the nodes boot while the rest starts."""
    archives = run.folder / "images"
    images.write_images(archives)
    machines = tuple(
        Node(index, NUM_NODES, run, network, control_plane, archives, outside) for index in range(NUM_NODES)
    )
    cluster = Cluster(control_plane, network, machines)
    network.route_to_pods(NUM_NODES)
    network.route_to_services(SERVICE_RANGE, 0)
    for each in machines:
        each.install()
        each.boot()
    start_controllers(control_plane, node_grace_s=NODE_GRACE_S)
    start_scheduler(control_plane)
    serve_leaderworkersets(control_plane)
    serve_certificates(control_plane)
    serve_definitions(control_plane, [OUR_DEFINITION])
    objects = Objects(control_plane.api, str(control_plane.folder / "discovery.json"))
    start_dns(control_plane, objects)
    start_leaderworkersets(control_plane, objects)
    start_cert_manager(control_plane)
    cluster.wait_until(lambda: dns_answers(control_plane), "cluster DNS answers", READY_TIMEOUT_S)
    cluster.wait_until(
        lambda: all(cluster.is_up(name) for name in cluster.nodes), "the nodes are ready", READY_TIMEOUT_S
    )
    return cluster


def _ready_condition(api: client.ApiClient, name: str) -> client.V1NodeCondition:
    """What the node said of itself last, or what the API server made of its silence."""
    try:
        node = client.CoreV1Api(api).read_node(name)
    except client.ApiException as error:
        if error.status != http.client.NOT_FOUND:
            raise
        return NOT_REGISTERED
    return next((each for each in node.status.conditions or [] if each.type == "Ready"), NOT_REGISTERED)
