"""The processes that a plan becomes on this machine, and their addresses.

Every node gets a loopback address of its own: the gateway HOST, node 0 the next, node 1 the one after. So each port of
the launch files is used as it stands, and what the runtime is told here differs from a pod's in addresses alone.
"""

import ipaddress
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from planner.facts import names
from planner.plan.deployable import Deployable
from planner.problems.errors import CallError, Violation

__all__ = ["Identity", "Layout", "NodeProcess", "lay_out_locally"]

GATEWAY = "gateway"  # no unit is called so


@dataclass(frozen=True)
class NodeProcess:
    """One process to start: a node of a unit, or the gateway (`unit` is None)."""

    name: str
    unit: str | None
    command: tuple[str, ...]


@dataclass(frozen=True)
class Identity:
    """The URI that the gateway, or a unit's ranks, prove to each other, and the folder of the certificate for it."""

    uri: str
    side: Literal["server", "client"]
    folder: Path


@dataclass(frozen=True)
class Layout:
    """The processes of a plan, and where it will answer."""

    gateway_host: str
    http_port: int
    gateway: NodeProcess
    nodes: tuple[NodeProcess, ...]
    identities: tuple[Identity, ...]
    drain_s: float  # for answers that run when their process is told to end

    @property
    def endpoint(self) -> str:
        """The gateway's address, without `/v1`."""
        return f"http://{self.gateway_host}:{self.http_port}"


def lay_out_locally(plan: Deployable, folder: Path, certificates: Path, host: str, keys: Path | None = None) -> Layout:
    """Return the processes of `plan`, whose launch files lie in `folder`, and a folder for each one's certificate.

    `keys` is the gateway's file of keys.

    Raise CallError when `host` is not loopback.
    """
    addresses, drain = _node_addresses(plan, host), ("--drain", f"{plan.drain_s:g}")
    gateway_launch = folder / names.GATEWAY_LAUNCH_FILE
    nodes = []
    for unit in plan.units:
        for node in unit.nodes:
            place = ("--node", node, "--address", addresses[node], "--leader", addresses[unit.nodes[0]])
            launch = ("--launch", str(folder / names.launch_file(unit.name)))
            tls = ("--tls", str(certificates / unit.name))
            command = _runtime("node", *launch, *place, "--gateway", host, *drain, *tls)
            nodes.append(NodeProcess(f"{unit.name}.{node}", unit.name, command))
    gateway = ["gateway", "--launch", str(gateway_launch), "--address", host, *drain]
    gateway += ["--tls", str(certificates / GATEWAY)]
    gateway += ["--keys", str(keys.absolute())] if keys is not None else []
    return Layout(
        gateway_host=host,
        http_port=plan.gateway.port,
        gateway=NodeProcess(GATEWAY, None, _runtime(*gateway)),
        nodes=tuple(nodes),
        identities=_identities(plan, certificates),
        drain_s=plan.drain_s,
    )


def _identities(plan: Deployable, folder: Path) -> tuple[Identity, ...]:
    namespace = plan.kubernetes.namespace
    gateway = Identity(names.gateway_identity(namespace, plan.name), "server", folder / GATEWAY)
    units = names.unit_identities(namespace, plan.name)
    return (gateway, *(Identity(units + unit.name, "client", folder / unit.name) for unit in plan.units))


def _node_addresses(plan: Deployable, host: str) -> dict[str, str]:
    first = _loopback(host)
    node_names = dict.fromkeys(node for unit in plan.units for node in unit.nodes)
    return {node: str(_loopback(str(first + 1 + index))) for index, node in enumerate(node_names)}


def _loopback(host: str) -> ipaddress.IPv4Address:
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError:
        address = None
    if address is None or not address.is_loopback:
        rule = f"R102 --host ({host}) must be in 127.0.0.0/8, with room above it for the nodes"
        reason = "a deployment on this machine has no authentication"
        raise CallError([Violation("", None, rule, reason, "for example 127.0.0.1").at("tidemill")])
    return address


def _runtime(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "runtime", *arguments)
