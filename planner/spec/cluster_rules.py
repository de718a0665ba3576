"""The rules between fields of `cluster`; `layout_rules.py` asks them with the others."""

import re
from collections.abc import Iterator
from typing import Any

from planner.facts.catalog import GPUS
from planner.facts.gpu_names import instead_of_gpu, unplanned_gpu
from planner.facts.names import logical_node
from planner.facts.quantities import read_link
from planner.facts.terms import PHASES
from planner.problems.fix import Fix, close_to, did_you_mean, for_example, nearest, nearest_of, removal
from planner.spec.rule import Broken, Partial, Rule, declare_in

__all__ = ["RULES"]

DNS_1123_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
COUNTED = re.compile(r"node-[0-9]+")  # as nodes are called that are only counted
TAINT = re.compile(rf"[A-Za-z0-9./_-]+(=[A-Za-z0-9._-]*)?:({'|'.join(EFFECTS)})")

Nodes = int | list[dict[str, Any]]  # a count, or a list as the spec has it

RULES: list[Rule] = []
_reads = declare_in(RULES)


# An own GPU


@_reads("cluster.gpu.name")
def own_gpus_have_names_of_their_own(name: str) -> Broken | None:
    """What is known of a GPU of the catalog, such as whose it is, would not be asked of one that is only called so."""
    known = next((each for each in GPUS if each == name.casefold()), None)
    if known is None:
        return None
    fix = Fix(f"write gpu: {known}", ({"cluster.gpu": known},))
    return Broken(f"S420 must not be {known}", "the catalog has that GPU and its figures", fix)


@_reads("cluster.gpu.peer", "cluster.gpu.nvlink")
def peers_are_part_of_the_whole(peer: str | None, nvlink: str | None) -> Broken | None:
    """All links of a mesh together are at least one of them."""
    if peer is None or nvlink is None or (read_link(peer) or 0) <= (read_link(nvlink) or 0):
        return None
    reason = "nvlink is the bandwidth of a GPU to all others together, so it includes this"
    return Broken(f"S416 must be at most nvlink ({nvlink})", reason, nearest(nvlink))


@_reads("cluster.gpu.peer", "cluster.gpu.nvlink")
def peers_have_a_whole(peer: str | None, nvlink: str | None) -> Broken | None:
    """The links of a mesh, without what they are together."""
    return _alone(peer is not None and nvlink is None, "nvlink", "450GB/s")


@_reads("cluster.gpu.nvlink_domain", "cluster.gpu.nvlink")
def domains_have_links(domain: int | None, nvlink: str | None) -> Broken | None:
    """GPUs that reach each other, nobody knows how fast."""
    return _alone(domain is not None and nvlink is None, "nvlink", "450GB/s")


@_reads("cluster.gpu.nvlink_domain", "cluster.gpus_per_node")
def domains_and_nodes_fit_together(domain: int | None, gpus_per_node: int) -> Broken | None:
    """A node is cut into equal domains, or a domain is made of whole nodes."""
    if domain is None or gpus_per_node % domain == 0 or domain % gpus_per_node == 0:
        return None
    rule = f"S418 must divide gpus_per_node ({gpus_per_node}) or be a multiple of it"
    parts = [size for size in range(1, gpus_per_node) if gpus_per_node % size == 0]
    whole = [gpus_per_node, domain - domain % gpus_per_node or gpus_per_node, domain + -domain % gpus_per_node]
    reason = "an NVLink domain covers whole nodes, or a node holds whole domains"
    return Broken(rule, reason, nearest_of(domain, sorted({*parts, *whole})))


@_reads("cluster.gpu.gpus_per_nic", "cluster.gpu.nic")
def shared_nics_have_links(gpus_per_nic: int, nic: str | None) -> Broken | None:
    """GPUs that share a NIC, nobody knows how fast it is."""
    return _alone(gpus_per_nic > 1 and nic is None, "nic", "400Gbps")


def _alone(is_alone: bool, link: str, example: str) -> Broken | None:
    if not is_alone:
        return None
    rule, reason = f"S417 must come with {link}", "it describes a link that would not exist"
    return Broken(rule, reason, f"write {link} too, for example {link}: {example}, or remove it")


# Nodes


@_reads("coverage", "cluster.rack_size", "cluster.nodes")
def racks_are_known_where_they_count(coverage: str, size: int | None, nodes: Nodes) -> Broken | None:
    """Experts cannot be spread over racks that nobody named."""
    named = size is not None or (
        isinstance(nodes, list) and all(node.get("rack") or isinstance(node, Partial) for node in nodes)
    )
    if coverage != "rack" or named:
        return None
    rule = "S516 needs the rack of every node"
    fix = for_example("cluster.rack_size: 4") if isinstance(nodes, int) else "write rack for each node"
    return Broken(rule, "replicas are spread over racks, so each node's rack must be known", fix)


@_reads("cluster.nodes")
def node_names_are_kubernetes_names(nodes: Nodes) -> Iterator[Broken]:
    """Pods are pinned to nodes by name."""
    for index, name in _names(nodes):
        if not DNS_1123_SUBDOMAIN.fullmatch(name):
            rule = "S407 must be lower-case letters, digits, hyphens and dots (DNS-1123)"
            reason = "no Kubernetes node can have this name, and each node has an entry of its own"
            fix = "write the node's name, as kubectl get nodes shows it"
            yield Broken(rule, reason, fix, f"cluster.nodes.{index}.name", name)


@_reads("cluster.nodes")
def nodes_are_listed_once(nodes: Nodes) -> Iterator[Broken]:
    """A node given twice would be planned twice."""
    first: dict[str, int] = {}
    for index, name in _names(nodes):
        if name in first:
            rule = f"S408 must be listed once, it is cluster.nodes.{first[name]} too"
            fix = Fix("remove one of the two", tuple({f"cluster.nodes.{each}": None} for each in (first[name], index)))
            yield Broken(rule, "otherwise its GPUs would be used twice", fix, f"cluster.nodes.{index}.name", name)
        first.setdefault(name, index)


@_reads("cluster.nodes", "cluster.gpu?", "cluster.gpu.name?")
def gpus_of_nodes_are_known(nodes: Nodes, name: str | None, own: str | None) -> Iterator[Broken]:
    """A misspelt one would leave its node unused; those of other models that are sold are left out on purpose."""
    known = list(dict.fromkeys([each for each in (name, own) if each] + [each for each in GPUS if each != "cpu"]))
    for index, node in _listed(nodes):
        gpu = node.get("gpu")
        if gpu is not None and gpu not in known and unplanned_gpu(gpu) is None:
            rule = f"S419 must be a known GPU ({', '.join(known)})"
            if name or own:
                others = ", ".join(known[1:])
                rule = f"S419 must be {known[0]}, which is the cluster's GPU, or another known GPU ({others})"
            reason = "the plan can only use GPUs whose figures it knows"
            yield Broken(rule, reason, instead_of_gpu(gpu, known), f"cluster.nodes.{index}.gpu", gpu)


@_reads("{phase}.gpu", "cluster.nodes", "cluster.gpu?")
def phases_have_nodes_with_their_gpus(gpu: str | None, nodes: Nodes, own: str | None) -> Broken | None:
    """Only a list says which nodes have other GPUs than the cluster's."""
    if (
        gpu is None
        or gpu == own
        or any(node.get("gpu") == gpu or isinstance(node, Partial) for _, node in _listed(nodes))
    ):
        return None
    rule = "S530 must come with a list of nodes, some of which have this GPU"
    reason = (
        "nodes given as a number all have cluster.gpu" if isinstance(nodes, int) else "none of the listed nodes has it"
    )
    return Broken(rule, reason, f"write gpu: {gpu} at the nodes that have it")


@_reads("cluster.nodes")
def taints_are_as_kubernetes_writes_them(nodes: Nodes) -> Iterator[Broken]:
    """The effect decides whether a node can be used."""
    for index, node in _listed(nodes):
        for number, taint in enumerate(node.get("taints", [])):
            if not TAINT.fullmatch(taint):
                rule = "S409 must be KEY=VALUE:EFFECT or KEY:EFFECT"
                reason = (
                    "the effect, NoSchedule, NoExecute or PreferNoSchedule, decides whether the plan may use the node"
                )
                place = f"cluster.nodes.{index}.taints.{number}"
                yield Broken(rule, reason, _taint(taint), place, taint)


@_reads("cluster.spares", "cluster.nodes")
def spares_are_nodes_of_the_cluster(spares: list[str], nodes: Nodes) -> Iterator[Broken]:
    """A pod finds no node by a misspelt name."""
    if isinstance(nodes, list) and any("name" not in node for node in nodes):
        return
    known = _known_names(nodes)
    for index, name in enumerate(spares):
        if name not in known:
            rule = "S431 must be the name of a node in cluster.nodes"
            reason = "a spare is one of the cluster's nodes"
            yield Broken(rule, reason, _likely_spare(name, nodes, spares), f"cluster.spares.{index}", name)


@_reads("cluster.spares")
def spares_are_listed_once(spares: list[str]) -> Iterator[Broken]:
    """Twice the name is not twice the node."""
    for index, name in enumerate(spares):
        if name in spares[:index]:
            rule = f"S432 must be listed once, it is cluster.spares.{spares.index(name)} too"
            yield Broken(rule, "a spare can replace only one node", removal(), f"cluster.spares.{index}", name)


@_reads(
    *("cluster.spares", "cluster.nodes", "cluster.gpus_per_node", "cluster.gpu?", "cluster.gpu.name?"),
    *(f"{phase}.gpu?" for phase in PHASES),
)
def spares_have_the_gpus_of_those_they_stand_in_for(
    spares: list[str], nodes: Nodes, gpus_per_node: int, name: str | None, own: str | None, *of_phases: str | None
) -> Iterator[Broken]:
    """The ranks of a lost node start there with the memory and in the number that were planned."""
    gpu = own or name
    used = list(dict.fromkeys(each for each in (gpu, *of_phases) if each))
    listed = {node["name"]: node for _, node in _listed(nodes) if "name" in node}
    for index, spare in enumerate(spares):
        node = listed.get(spare, {})
        has = node.get("gpu") or gpu, gpus_per_node if node.get("gpus") is None else node["gpus"]
        if gpu is not None and (has[0] not in used or has[1] < gpus_per_node):
            rule = f"S433 must have {gpus_per_node} {' or '.join(used)}, it has {has[1]} {has[0]}"
            reason = "it must be able to take over all ranks of a lost node"
            yield Broken(rule, reason, removal(), f"cluster.spares.{index}", spare)


@_reads("cluster.rack_size", "cluster.nodes")
def racks_are_counted_or_listed(size: int | None, nodes: Nodes) -> Broken | None:
    """A listed node says itself where it stands."""
    return _not_beside_a_list(size, nodes, "rack")


@_reads("cluster.leaf_size", "cluster.nodes")
def leaves_are_counted_or_listed(size: int | None, nodes: Nodes) -> Broken | None:
    """A listed node says itself what it is attached to."""
    return _not_beside_a_list(size, nodes, "leaf")


@_reads("cluster.power_domain_size", "cluster.nodes")
def power_domains_are_counted_or_listed(size: int | None, nodes: Nodes) -> Broken | None:
    """A listed node says itself what feeds it."""
    return _not_beside_a_list(size, nodes, "power")


def _not_beside_a_list(size: int | None, nodes: Nodes, key: str) -> Broken | None:
    if size is None or isinstance(nodes, int):
        return None
    reason = f"each listed node gives its own {key}"
    fix = removal(words=f"remove it, and write {key} for each node")
    return Broken("S410 must not be combined with a list of nodes", reason, fix)


def _taint(written: str) -> Fix:
    """Return `written` with its effect as Kubernetes spells it; an example where no effect is."""
    key, _, effect = written.rpartition(":")
    meant = close_to(effect, EFFECTS)
    return nearest(f"{key}:{meant}") if meant and key else for_example(f"dedicated=inference:{EFFECTS[0]}")


def _known_names(nodes: Nodes) -> list[str]:
    """Return the names of all nodes; those that are only counted have names too."""
    return [name for _, name in _names(nodes)] if isinstance(nodes, list) else list(map(logical_node, range(nodes)))


def _likely_spare(name: str, nodes: Nodes, spares: list[str]) -> Fix | str:
    """Ask for the node that `name` is like, of those that are no spares yet."""
    if isinstance(nodes, int):
        return f"they are {logical_node(0)} to {logical_node(nodes - 1)}: write one of these"
    meant = close_to(name, [each for _, each in _names(nodes) if each not in spares])
    return did_you_mean(name, [meant]) if meant else "write the name of one of them, or remove it"


def _listed(nodes: Nodes) -> Iterator[tuple[int, dict[str, Any]]]:
    return iter([]) if isinstance(nodes, int) else enumerate(nodes)


def _names(nodes: Nodes) -> Iterator[tuple[int, str]]:
    return ((index, node["name"]) for index, node in _listed(nodes) if "name" in node)
