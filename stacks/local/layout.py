"""The processes that a plan becomes on this machine, and their addresses.

Every gateway and node gets a loopback address of its own: the gateway HOST, node 0 the next, node 1 the one after.
Several gateways come first, then the nodes. So the ports of the launch files need no change, and the runtime's
arguments differ from a pod's in addresses alone.
"""

import ipaddress
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal

from planner.facts import names
from planner.plan.plan import Plan
from planner.plan.sections import LiveMap
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from stacks.measured.limits import Limits

__all__ = [
    "SERVED_TOKENIZER",
    "SERVED_WEIGHTS",
    "GatewayProcess",
    "Identity",
    "Layout",
    "Listener",
    "LiveSettings",
    "NodeProcess",
    "lay_out_locally",
]

SERVED_WEIGHTS = "served-weights"  # a file beside the launch files that gateways write
SERVED_TOKENIZER = "served-tokenizer"  # likewise
GATEWAY = "gateway"  # no unit has this name, with or without a number


@dataclass(frozen=True)
class NodeProcess:
    """One process to start: a node of a unit, or a gateway (`unit` is None)."""

    name: str
    unit: str | None
    command: tuple[str, ...]


@dataclass(frozen=True)
class GatewayProcess:
    """The process of one gateway, and its HTTP address. Several gateways may run side by side."""

    process: NodeProcess
    host: str
    http_port: int

    @property
    def name(self) -> str:
        """The name of the gateway's process."""
        return self.process.name

    @property
    def endpoint(self) -> str:
        """The gateway's address, without `/v1`."""
        return f"http://{self.host}:{self.http_port}"


@dataclass(frozen=True)
class Identity:
    """The URI by which a gateway or a unit's ranks identify themselves, and the folder of its certificate."""

    uri: str
    side: Literal["server", "client"]
    folder: Path


@dataclass(frozen=True)
class Listener:
    """An address and a port at which a process will listen, and what for."""

    address: str
    port: int
    purpose: str


@dataclass(frozen=True)
class LiveSettings:
    """The spec's limits on live changes of expert maps, and for each phase the rules that such maps must keep."""

    limits: Limits
    rules: Mapping[str, LiveMap]  # by phase


@dataclass(frozen=True)
class Layout:
    """The processes that a plan becomes on this machine, with their files, certificates and ports."""

    gateways: tuple[GatewayProcess, ...]
    nodes: tuple[NodeProcess, ...]
    identities: tuple[Identity, ...]
    drain_s: float  # seconds that running answers get when their process has to end
    listeners: tuple[Listener, ...] = ()  # some of each address, which must be free before anything starts
    files: Mapping[str, str] = field(default_factory=dict)  # name -> text, of the launch files
    metrics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # gateway or unit -> addresses of metrics
    live: LiveSettings | None = None  # None: units keep their maps until they restart


def lay_out_locally(
    plan: Plan, folder: Path, certificates: Path, kv_folder: Path, host: str, keys: Path | None = None
) -> Layout:
    """Return the processes of `plan`, with launch files in `folder` and certificates below the folder `certificates`.

    KV that a plan keeps on disks goes to `kv_folder`: this machine need not have the nodes' disks. `keys` is the
    gateways' file of keys.

    Raises CallError when `host` is not loopback.
    """
    hosts, drain = _consecutive_addresses(host), ("--drain", f"{plan.drain_s:g}")
    gateways = tuple(
        GatewayProcess(
            NodeProcess(name, None, _gateway_command(plan, folder, certificates / name, keys, address)),
            address,
            plan.gateway.port,
        )
        for name, address in zip(_gateway_names(plan.gateway.replicas), hosts, strict=False)
    )
    addresses = dict(zip(dict.fromkeys(node for unit in plan.units for node in unit.nodes), hosts, strict=False))
    gateway_hosts = ",".join(gateway.host for gateway in gateways)
    nodes = []
    for unit in plan.units:
        for node in unit.nodes:
            place = ("--node", node, "--address", addresses[node], "--leader", addresses[unit.nodes[0]])
            launch = ("--launch", str(folder / names.launch_file(unit.name)))
            folders = ("--tls", str(certificates / unit.name), "--control", str(folder))
            command = _runtime("node", *launch, *place, "--gateway", gateway_hosts, *drain, *folders)
            nodes.append(NodeProcess(f"{unit.name}.{node}", unit.name, command))
    identities, listeners = _list_identities(plan, gateways, certificates), _list_listeners(plan, gateways, addresses)
    files, metrics = plan.launch_files(str(kv_folder)), dict(_list_metrics(plan, gateways, addresses))
    limits, rules = plan.spec.expert_load.live, plan.live_maps
    live = (
        None if limits is None or rules is None else LiveSettings(Limits.of(limits), dict[str, LiveMap](rules.items()))
    )
    return Layout(gateways, tuple(nodes), identities, plan.drain_s, tuple(listeners), files, metrics, live)


def _gateway_names(number: int) -> list[str]:
    return [GATEWAY] if number == 1 else [f"{GATEWAY}-{index}" for index in range(number)]


def _gateway_command(plan: Plan, folder: Path, certificate: Path, keys: Path | None, address: str) -> tuple[str, ...]:
    place = ("--launch", str(folder / names.GATEWAY_LAUNCH_FILE), "--address", address, "--tls", str(certificate))
    key_options = () if keys is None else ("--keys", str(keys.absolute()))
    number = ("--gateways", str(plan.gateway.replicas))
    state_files = ("--weights", str(folder / SERVED_WEIGHTS), "--tokenizer", str(folder / SERVED_TOKENIZER))
    return _runtime("gateway", *place, *key_options, *number, *state_files, "--drain", f"{plan.drain_s:g}")


def _list_identities(plan: Plan, gateways: Sequence[GatewayProcess], folder: Path) -> tuple[Identity, ...]:
    """Return the identities of all processes. Gateways share one URI, but each has its own key."""
    namespace = plan.kubernetes.namespace
    gateway_uri, units = names.gateway_identity(namespace, plan.name), names.unit_identities(namespace, plan.name)
    return (
        *(Identity(gateway_uri, "server", folder / gateway.name) for gateway in gateways),
        *(Identity(units + unit.name, "client", folder / unit.name) for unit in plan.units),
    )


def _list_listeners(plan: Plan, gateways: Sequence[GatewayProcess], addresses: Mapping[str, str]) -> Iterator[Listener]:
    """Yield the listeners whose ports must be free before a start.

    A few listeners are enough: any other deployment at one of these addresses would use one of these ports too.
    """
    for gateway in gateways:
        yield Listener(gateway.host, gateway.http_port, "http")
        yield Listener(gateway.host, names.Ports.REGISTRY, "registry")
        yield Listener(gateway.host, names.Ports.METRICS, "metrics")
    for unit in plan.units:
        yield Listener(addresses[unit.nodes[0]], names.Ports.PLACES, "where the unit's nodes meet")
    for address in addresses.values():
        yield Listener(address, names.Ports.METRICS, "metrics")


def _list_metrics(
    plan: Plan, gateways: Sequence[GatewayProcess], addresses: Mapping[str, str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (name, metrics addresses) of each gateway and unit; a unit's addresses are those of its ranks, in order."""
    for gateway in gateways:
        yield gateway.name, (f"{gateway.host}:{names.Ports.METRICS}",)
    for unit in plan.units:
        ranks = unit.rank_places
        yield unit.name, tuple(f"{addresses[rank.node]}:{names.Ports.METRICS + rank.local_rank}" for rank in ranks)


def _consecutive_addresses(host: str) -> Iterator[str]:
    """Yield `host` and the addresses after it. Raises CallError once an address is not loopback."""
    for number in count(int(_loopback(host))):
        yield str(_loopback(str(ipaddress.IPv4Address(number))))


def _loopback(host: str) -> ipaddress.IPv4Address:
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError:
        address = None
    if address is None or not address.is_loopback:
        rule = f"R102 --host ({host}) must be in 127.0.0.0/8, with room above it for the nodes"
        reason = "a deployment on this machine has no authentication"
        raise CallError([Finding("", None, rule, reason, "for example 127.0.0.1").at("tidemill")])
    return address


def _runtime(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "runtime", *arguments)
