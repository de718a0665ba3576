"""A node: one process (`node-init.sh`) with containerd, kubelet, kube-proxy and all pods below it.

To kill that process is to crash the machine; to start it again is to boot it. What a disk would keep is kept in the
node's folder: images, containers' metadata, the kubelet's state.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.cluster import cgroups
from tests.cluster.build import obtain
from tests.cluster.control_plane import ControlPlane
from tests.cluster.images import PAUSE_IMAGE
from tests.cluster.network import POD_RANGE, Network, is_healthy, wait_for_own_network
from tests.cluster.processes import Daemons
from tests.cluster.products import CNI_PLUGINS, CONTAINERD, KUBE_PROXY, KUBELET, RUNC
from tests.cluster.runs import Run

__all__ = ["Node"]

INIT = Path(__file__).parent / "node-init.sh"
OWN_NAMESPACES = (
    *("unshare", "--net", "--mount", "--pid", "--uts", "--ipc"),
    *("--fork", "--mount-proc", "--kill-child=SIGKILL"),
)
PROXY_HEALTH_PORT = 10256


@dataclass(frozen=True)
class Node:
    """Number `index` of `num_nodes`."""

    index: int
    num_nodes: int
    run: Run
    network: Network
    control_plane: ControlPlane
    images: Path
    daemons: Daemons

    @property
    def name(self) -> str:
        """Also its host name, as in a plan made for a cluster given by counts."""
        return f"node-{self.index}"

    @property
    def address(self) -> str:
        """Its own, in the test network."""
        return self.network.node(self.index)

    @property
    def state(self) -> Path:
        """The node's disk."""
        return self.run.folder / self.name

    @property
    def logs(self) -> Path:
        """Folder of its daemons' logs and, below `pods`, its pods'."""
        return self.daemons.folder

    def install(self) -> None:
        """Make its folders, certificates and configuration; once, before it boots for the first time."""
        for folder in ("kubelet", "containerd", "containerd-run", "cni"):
            (self.state / folder).mkdir(parents=True)
        cgroups.make(self.run.name, self.name)
        self._authenticate("kubelet", f"system:node:{self.name}", "system:nodes")
        self._authenticate("kube-proxy", "system:kube-proxy")
        (self.state / "containerd.toml").write_text(self._containerd())
        (self.state / "cni" / "10-pods.conflist").write_text(json.dumps(self._cni()))
        (self.state / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet()))
        (self.state / "kube-proxy.yaml").write_text(yaml.safe_dump(self._kube_proxy()))

    def boot(self) -> None:
        """Start it; it is on the network, not yet ready."""
        variables = (f"{name}={value}" for name, value in self._variables().items())
        process = self.daemons.start(self.name, *OWN_NAMESPACES, "env", *variables, "bash", INIT)
        wait_for_own_network(process, self.daemons)
        self.network.plug_in(self.index, process)

    def crash(self) -> None:
        """End it and everything on it at once."""
        self.daemons.kill(self.name)

    def is_running(self) -> bool:
        """Whether it was booted and did not crash since."""
        return any(each.name == self.name for each in self.daemons.started)

    def translates_services(self) -> bool:
        """Whether its kube-proxy has written its rules and keeps them up to date."""
        return is_healthy(self.address, PROXY_HEALTH_PORT, "/healthz")

    def _variables(self) -> dict[str, str | Path]:
        programs = [str(obtain(each).parent) for each in (CONTAINERD, RUNC, KUBELET, KUBE_PROXY)]
        others = (index for index in range(self.num_nodes) if index != self.index)
        return {
            "NODE": self.name,
            "ADDRESS": self.address,
            "CONTROL_PLANE": self.network.control_plane,
            "ROUTES": " ".join(f"{self.network.pods(index)}={self.network.node(index)}" for index in others),
            "STATE": self.state,
            "LOGS": self.logs,
            "IMAGES": self.images,
            "KUBECONFIG": self._kubeconfig("kubelet"),
            "PATH": os.pathsep.join([*programs, os.environ["PATH"]]),
        }

    def _authenticate(self, program: str, user: str, group: str | None = None) -> None:
        server = self.control_plane.address.server
        self.control_plane.authority.issue_kubeconfig(f"{self.name}-{program}", server, user, group)

    def _kubeconfig(self, program: str) -> str:
        return str(self.control_plane.folder / f"{self.name}-{program}.kubeconfig")

    def _containerd(self) -> str:
        return f"""\
version = 3
root = "{self.state}/containerd"
state = "{self.state}/containerd-run"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "{self.state}/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true  # no pod starts otherwise where we may not lower that score
  disable_apparmor = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{obtain(CNI_PLUGINS).parent}"]
  conf_dir = "{self.state}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = "{obtain(RUNC)}"
"""

    def _cni(self) -> dict:
        addresses = {
            "type": "host-local",
            "dataDir": str(self.state / "cni-addresses"),
            "ranges": [[{"subnet": self.network.pods(self.index)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipMasq": False}
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge | {"ipam": addresses}, ports]}

    def _kubelet(self) -> dict:
        authority = str(self.control_plane.folder / "ca.crt")
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": authority},
            },
            "authorization": {"mode": "Webhook"},
            "address": self.address,
            "readOnlyPort": 0,
            "healthzPort": 0,
            "containerRuntimeEndpoint": f"unix://{self.state}/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.run.name}/{self.name}",
            "failCgroupV1": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "localStorageCapacityIsolation": False,  # it cannot tell what disk a node has here
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "podLogsDir": str(self.logs / "pods" / self.name),
            "clusterDNS": [self.network.control_plane],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 4,
            "syncFrequency": "10s",
            "kubeAPIQPS": 100,
            "kubeAPIBurst": 200,
            "serializeImagePulls": False,
            "oomScoreAdj": 0,
        }

    def _kube_proxy(self) -> dict:
        unchanged = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clientConnection": {"kubeconfig": self._kubeconfig("kube-proxy")},
            "clusterCIDR": POD_RANGE,
            "hostnameOverride": self.name,
            "healthzBindAddress": f"{self.address}:{PROXY_HEALTH_PORT}",
            "metricsBindAddress": "127.0.0.1:10249",
            "oomScoreAdj": 0,
            "conntrack": unchanged,  # read-only in a namespace
            "iptables": {"syncPeriod": "30s", "minSyncPeriod": "100ms"},
        }
