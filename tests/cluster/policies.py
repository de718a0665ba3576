"""NetworkPolicies enforced on the test cluster, which has no network plugin that does it.

A thread looks at policies, pods, namespaces and Services several times a second, and writes each selected pod's rules
into iptables of the pod's own network namespace. So a refused connection is refused by the kernel, and seen: it fails
with "no route to host", where nobody listening would be "connection refused".

It is for tests alone. A pod runs for a moment before its rules are there; only IPv4, TCP and UDP; a Service is allowed
where the pods behind it are. `test_policies.py` holds it against cases after Kubernetes' own conformance tests.
"""

import functools
import subprocess
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kubernetes import client

from tests.cluster.cluster import Cluster

__all__ = ["connects", "enforced_policies", "inside_network"]

POLL_S = 0.3
CONNECT_S = 2
# Prints the network namespaces of pods that have the address $0.
FIND = (
    "for each in /run/netns/cni-*; do "
    'nsenter --net=$each ip -4 -o address show dev eth0 | grep -qF " $0/" && echo $each; done'
)
TRY = "import socket, sys\nsocket.create_connection((sys.argv[1], int(sys.argv[2])), {seconds}).close()"
ENDED = ("Succeeded", "Failed")

Rule = tuple[Any, Any]  # peers and ports


@dataclass(frozen=True)
class Seen:
    """One look at what policies are about."""

    pods: Sequence[Any]
    namespaces: Mapping[str, Mapping[str, str]]  # name -> labels
    services: Sequence[Any]
    policies: Sequence[Any]


@dataclass
class Enforcer:
    """What was written into which pod."""

    cluster: Cluster
    written: dict[str, str] = field(default_factory=dict)  # uid -> rules

    def enforce(self) -> None:
        """Write the rules of each pod for which they have changed."""
        seen = look(self.cluster)
        for pod in seen.pods:
            rules = rules_of(pod, seen, _gateway_of(pod))
            if rules != self.written.get(pod.metadata.uid, "") and _write(self.cluster, pod, rules or OPEN):
                self.written[pod.metadata.uid] = rules


@contextmanager
def enforced_policies(cluster: Cluster) -> Iterator[None]:
    """Enforce until the block ends; then pods are open again."""
    enforcer, is_over, failures = Enforcer(cluster), threading.Event(), []

    def run() -> None:
        while not is_over.is_set():
            try:
                enforcer.enforce()
            except Exception as error:  # noqa: BLE001 - raised at the end, where somebody sees it
                failures.append(error)
            is_over.wait(POLL_S)

    thread = threading.Thread(target=run, name="policies")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    for pod in look(cluster).pods:
        if enforcer.written.get(pod.metadata.uid):
            _write(cluster, pod, OPEN)
    if failures:
        raise failures[-1]


def connects(cluster: Cluster, pod: Any | None, address: str, port: int) -> bool:
    """Whether the pod, or this host, can connect; to be refused by whoever listens is to connect."""
    attempt = ["python3", "-c", TRY.format(seconds=CONNECT_S), address, str(port)]
    done = subprocess.run(
        [*inside_network(cluster, pod), *attempt] if pod else attempt, capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().rpartition("\n")[2]
    assert done.returncode == 0 or "OSError" in last or "Refused" in last or "Timeout" in last, done.stderr
    return done.returncode == 0 or "Connection refused" in last


def look(cluster: Cluster) -> Seen:
    """One look."""
    core = client.CoreV1Api(cluster.api)
    found = core.list_pod_for_all_namespaces().items
    return Seen(
        [
            each
            for each in found
            if each.status.pod_ip and each.status.phase not in ENDED and not each.spec.host_network
        ],
        {each.metadata.name: each.metadata.labels or {} for each in core.list_namespace().items},
        core.list_service_for_all_namespaces().items,
        client.NetworkingV1Api(cluster.api).list_network_policy_for_all_namespaces().items,
    )


OPEN = "*filter\nCOMMIT\n"
REJECT = "-j REJECT --reject-with icmp-admin-prohibited"


@dataclass(frozen=True)
class Way:
    """One of the two, in the words of a policy and of iptables."""

    name: str
    chain: str
    device: str
    peer: str

    def rules(self, policy: Any) -> Sequence[Rule]:
        """A policy's rules about it, each with its peers."""
        if self is IN:
            return [(each._from, each.ports) for each in policy.spec.ingress or []]
        return [(each.to, each.ports) for each in policy.spec.egress or []]


IN, OUT = Way("Ingress", "INPUT", "-i", "-s"), Way("Egress", "OUTPUT", "-o", "-d")


def rules_of(pod: Any, seen: Seen, gateway: str) -> str:
    """The pod's `filter` table, for iptables-restore; empty where no policy selects it. `gateway` is its node."""
    about = [
        each
        for each in seen.policies
        if each.metadata.namespace == pod.metadata.namespace and _matches(each.spec.pod_selector, pod.metadata.labels)
    ]
    if not about:
        return ""
    lines: list[str] = []
    for way in (IN, OUT):
        policies = [each for each in about if way.name in each.spec.policy_types]
        if not policies:
            continue
        lines += [f"-A {way.chain} {way.device} lo -j ACCEPT"]
        lines += [f"-A {way.chain} -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"]
        lines += [f"-A {way.chain} -s {gateway} -j ACCEPT"] if way is IN else []
        for policy in policies:
            for peers, ports in way.rules(policy):
                lines += _allow(way, pod, policy.metadata.namespace, peers, ports, seen)
        lines += [f"-A {way.chain} {REJECT}"]
    chains = dict.fromkeys(word for line in lines for word in line.split() if word.startswith("BLOCK-"))
    return "\n".join(["*filter", *(f":{each} - [0:0]" for each in chains), *lines, "COMMIT", ""])


def _allow(way: Way, pod: Any, namespace: str, peers: Any, ports: Any, seen: Seen) -> Iterator[str]:
    """Yield what one rule of a policy of that namespace lets through."""
    if not peers:
        yield from (f"-A {way.chain} {words} -j ACCEPT" for words in _ports(ports, pod))
    for peer in peers or []:
        if peer.ip_block:
            yield from _block(way, pod, peer.ip_block, ports)
            continue
        meant = [each for each in seen.pods if _is_peer(each, peer, namespace, seen)]
        for each in meant:
            for words in _ports(ports, pod if way is IN else each):
                yield f"-A {way.chain} {way.peer} {each.status.pod_ip} {words} -j ACCEPT"
        if way is OUT:
            yield from _services(ports, meant, seen)


def _block(way: Way, pod: Any, block: Any, ports: Any) -> Iterator[str]:
    """Addresses with holes have a chain of their own, from which a hole returns."""
    name = f"BLOCK-{zlib.crc32(repr((way.name, block, ports)).encode()):08x}"
    yield f"-A {way.chain} {way.peer} {block.cidr} -j {name}"
    yield from (f"-A {name} {way.peer} {each} -j RETURN" for each in block._except or [])
    yield from (f"-A {name} {words} -j ACCEPT" for words in _ports(ports, pod))


def _services(ports: Any, meant: Sequence[Any], seen: Seen) -> Iterator[str]:
    """A pod sees a Service's own address: it is translated on the node."""
    for service in seen.services:
        behind = [each for each in meant if _is_behind(each, service)]
        if not behind or service.spec.cluster_ip in (None, "None"):
            continue
        for port in service.spec.ports:
            target = _number(port.target_port, behind[0])
            if not ports or any(_holds(each, target, behind[0]) for each in ports):
                yield f"-A {OUT.chain} -d {service.spec.cluster_ip} -p tcp --dport {port.port} -j ACCEPT"


def _is_behind(pod: Any, service: Any) -> bool:
    selector = service.spec.selector
    is_near = pod.metadata.namespace == service.metadata.namespace
    return bool(selector) and is_near and selector.items() <= (pod.metadata.labels or {}).items()


def _holds(told: Any, number: int, pod: Any) -> bool:
    if told.port is None:
        return True
    first = _number(told.port, pod)
    return first <= number <= (told.end_port or first)


def _ports(told: Sequence[Any] | None, pod: Any) -> Iterator[str]:
    """Words of iptables for each port; one empty for all."""
    if not told:
        yield ""
        return
    for each in told:
        protocol = (each.protocol or "TCP").lower()
        if each.port is None:
            yield f"-p {protocol}"
            continue
        first = _number(each.port, pod)
        yield f"-p {protocol} --dport {first}:{each.end_port or first}"


def _number(port: int | str, pod: Any) -> int:
    if isinstance(port, int) or port.isdigit():
        return int(port)
    named = {each.name: each.container_port for one in pod.spec.containers for each in one.ports or []}
    return int(named.get(port, 0))


def _is_peer(pod: Any, peer: Any, namespace: str, seen: Seen) -> bool:
    if peer.namespace_selector is None:
        is_near = pod.metadata.namespace == namespace
    else:
        is_near = _matches(peer.namespace_selector, seen.namespaces.get(pod.metadata.namespace, {}))
    return is_near and (peer.pod_selector is None or _matches(peer.pod_selector, pod.metadata.labels))


def _matches(selector: Any, labels: Mapping[str, str] | None) -> bool:
    labels = labels or {}
    if not (selector.match_labels or {}).items() <= labels.items():
        return False
    return all(_is_met(each, labels) for each in selector.match_expressions or [])


def _is_met(expression: Any, labels: Mapping[str, str]) -> bool:
    value = labels.get(expression.key)
    return {
        "Exists": value is not None,
        "DoesNotExist": value is None,
        "In": value in (expression.values or []),
        "NotIn": value not in (expression.values or []),
    }[expression.operator]


def _gateway_of(pod: Any) -> str:
    """The node's address among its pods, from which the kubelet probes them: the first of the range."""
    return f"{pod.status.pod_ip.rpartition('.')[0]}.1"


def _write(cluster: Cluster, pod: Any, rules: str) -> bool:
    """Whether it was written: a pod may be gone by now, or its network not be there yet."""
    inside = inside_network(cluster, pod)
    if not inside:
        return False
    return (
        subprocess.run(
            [*inside, "iptables-restore"], input=rules, text=True, capture_output=True, check=False
        ).returncode
        == 0
    )


def inside_network(cluster: Cluster, pod: Any) -> list[str]:
    """What to put before a command to run it in the pod's network; empty where it is not to be found."""
    process = cluster.process_of(pod.spec.node_name)
    inside = ["nsenter", f"--target={process}", "--mount", "--net", "--"]
    path = _network_of(tuple(inside), pod.status.pod_ip, pod.metadata.uid)
    return [*inside, "nsenter", f"--net={path}"] if path else []


@functools.cache
def _network_of(inside: tuple[str, ...], address: str, _: str) -> str | None:
    """The network namespace with that address, by its path on the node; once for each pod, by its uid."""
    found = subprocess.run([*inside, "sh", "-c", FIND, address], capture_output=True, text=True, check=False)
    return (found.stdout.split() or [None])[0]
