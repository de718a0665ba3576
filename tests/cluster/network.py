"""A switch with the control plane on it, and a cable to the host and to every node.

```
host .1 --- [ control plane's namespace: bridge br0 .10 ] --- eth0 .11 of node-0, pods 10.244.0.0/24
                                                         \\--- eth0 .12 of node-1, pods 10.244.1.0/24
```
Each machine is a network namespace that lives as long as its process, without a name: when the process dies, its
devices go, the other ends of their cables go, and so do the routes over them. The host's firewall is not touched. A
namespace outlives its processes by its last unacknowledged packets, minutes by default: hence `tcp_orphan_retries`, and
`cut`, which takes the host off at once.
"""

import http.client
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.processes import Daemons

__all__ = ["POD_RANGE", "Network", "cut", "is_healthy", "lay_network", "wait_for_own_network"]

POD_RANGE = "10.244.0.0/16"
SWITCH = "echo 1 > /proc/sys/net/ipv4/tcp_orphan_retries; exec sleep infinity"
NAMESPACE_TIMEOUT_S = 10
HEALTH_TIMEOUT_S = 2
BRIDGE_ADDRESS = "02:00:00:00:00:0a"  # otherwise the lowest of its cables, and another one when that node dies


@dataclass(frozen=True)
class Network:
    """`10.250.<number>.0/24`, switched in the namespace of the process `switch`."""

    number: int
    switch: int

    @property
    def cable(self) -> str:
        """The host's end of it."""
        return f"tidemill{self.number}"

    @property
    def host(self) -> str:
        """The host's address."""
        return f"10.250.{self.number}.1"

    @property
    def control_plane(self) -> str:
        """The address of API server, DNS and webhooks."""
        return f"10.250.{self.number}.10"

    @property
    def inside(self) -> tuple[str, ...]:
        """What to put before a command that is to run in the control plane's network."""
        return ("nsenter", f"--net=/proc/{self.switch}/ns/net", "--")

    def node(self, index: int) -> str:
        """The address of a node."""
        return f"10.250.{self.number}.{11 + index}"

    def pods(self, index: int) -> str:
        """The addresses of a node's pods."""
        return f"10.244.{index}.0/24"

    def plug_in(self, index: int, process: int) -> None:
        """A cable from the switch to `eth0` of a node's first process, which has a network of its own."""
        self._run_inside(f"ip link add node-{index} type veth peer name eth0 netns {process}")
        self._run_inside(f"ip link set node-{index} master br0 up")

    def route_to_pods(self, num_nodes: int) -> None:
        """From the host and from the control plane, which calls webhooks and kubelets."""
        for index in range(num_nodes):
            command = f"ip route add {self.pods(index)} via {self.node(index)}"
            _run(command)
            self._run_inside(command)

    def route_to_services(self, services: str, index: int) -> None:
        """The host reaches ClusterIPs through the kube-proxy of one node, which answers for all."""
        _run(f"ip route replace {services} via {self.node(index)}")

    def lay(self) -> None:
        """The switch, the control plane's address on it, and the cable to the host."""
        self._run_inside("ip link set lo up")
        self._run_inside(f"ip link add br0 address {BRIDGE_ADDRESS} type bridge")
        self._run_inside(f"ip address add {self.control_plane}/24 dev br0")
        self._run_inside("ip link set br0 up")
        _run(f"ip link add {self.cable} type veth peer name host netns {self.switch}")
        self._run_inside("ip link set host master br0 up")
        _run(f"ip address add {self.host}/24 dev {self.cable}")
        _run(f"ip link set {self.cable} up")

    def _run_inside(self, command: str) -> None:
        _run(f"{' '.join(self.inside)} {command}")


def lay_network(daemons: Daemons, number: int) -> Network:
    """A new one."""
    switch = daemons.start("switch", "unshare", "--net", "sh", "-c", SWITCH)
    wait_for_own_network(switch, daemons)
    network = Network(number, switch)
    network.lay()
    return network


def cut(number: int) -> None:
    """Take the host off that network, if there is one; its routes go with it."""
    cable = Network(number, switch=0).cable
    done = subprocess.run(["ip", "link", "delete", cable], capture_output=True, text=True, check=False)
    assert cable not in os.listdir("/sys/class/net"), done.stderr  # otherwise it was there or gone already


def is_healthy(address: str, port: int, path: str) -> bool:
    """Whether a daemon's health page says so; False as long as nobody answers."""
    connection = http.client.HTTPConnection(address, port, timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except OSError:
        return False
    finally:
        connection.close()


def wait_for_own_network(process: int, daemons: Daemons) -> None:
    """Until it has left ours, just after it started."""
    daemons.wait_until(lambda: _has_own_network(process), f"{process} has a network", NAMESPACE_TIMEOUT_S)


def _has_own_network(process: int) -> bool:
    return _network_of(process) != _network_of(os.getpid())


def _network_of(process: int) -> str:
    return os.readlink(Path(f"/proc/{process}/ns/net"))


def _run(command: str) -> None:
    """Raises AssertionError with the command's own words."""
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
