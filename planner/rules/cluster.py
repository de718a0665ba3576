"""The rules of `cluster`, and of `coverage`, which needs its racks."""

from collections.abc import Iterator
from typing import Any

from planner.facts.catalog import GPUS
from planner.facts.gpu_names import instead_of_gpu, unplanned_gpu
from planner.facts.names import logical_node
from planner.facts.quantities import read_link
from planner.facts.terms import PHASES, Phase
from planner.problems.finding import Finding
from planner.problems.fix import Fix, close_to, did_you_mean, for_example, nearest, nearest_of, removal
from planner.rules.rule import Rule, without_effect
from planner.rules.written import Written

__all__ = ["RULES"]

OF_LINKS = {"cluster.gpu.peer": "nvlink", "cluster.gpu.nvlink_domain": "nvlink", "cluster.gpu.gpus_per_nic": "nic"}
A_BANDWIDTH = {"nvlink": "450GB/s", "nic": "400Gbps"}
Nodes = int | list[dict[str, Any]]  # a count, or a list as the spec has it


def own_gpus_have_names_of_their_own(c: Written) -> Iterator[Finding]:
    """What is known of a GPU of the catalog, such as whose it is, would not be asked of one that is only called so."""
    name: str = c["cluster.gpu.name"]
    known = next((each for each in GPUS if each == name.casefold()), None)
    if known is None:
        return
    fix = Fix(f"write gpu: {known}", ({"cluster.gpu": known},))
    reason = "the catalog has that GPU and its figures"
    yield Finding("cluster.gpu.name", name, f"S420 must not be {known}", reason, fix)


def peers_are_part_of_the_whole(c: Written) -> Iterator[Finding]:
    """All links of a mesh together are at least one of them."""
    peer: str | None = c["cluster.gpu.peer"]
    nvlink: str | None = c["cluster.gpu.nvlink"]
    if peer is None or nvlink is None or (read_link(peer) or 0) <= (read_link(nvlink) or 0):
        return
    reason = "nvlink is the bandwidth of a GPU to all others together, so it includes this"
    yield Finding("cluster.gpu.peer", peer, f"S504 must be at most nvlink ({nvlink})", reason, nearest(nvlink))


def links_have_a_bandwidth(c: Written, path: str) -> Iterator[Finding]:
    """GPUs that reach each other, nobody knows how fast."""
    value: Any = c[path]
    link = OF_LINKS[path]
    if value not in (None, 1) and c[f"cluster.gpu.{link}"] is None:
        fix = f"write {link} too, for example {link}: {A_BANDWIDTH[link]}, or remove it"
        yield without_effect(f"without {link}", "it describes a link that would not exist", path, value, fix)


def domains_and_nodes_fit_together(c: Written) -> Iterator[Finding]:
    """A node is cut into equal domains, or a domain is made of whole nodes."""
    domain: int | None = c["cluster.gpu.nvlink_domain"]
    gpus_per_node: int = c["cluster.gpus_per_node"]
    if domain is None or gpus_per_node % domain == 0 or domain % gpus_per_node == 0:
        return
    rule = f"S418 must divide gpus_per_node ({gpus_per_node}) or be a multiple of it"
    parts = [size for size in range(1, gpus_per_node) if gpus_per_node % size == 0]
    whole = [gpus_per_node, domain - domain % gpus_per_node or gpus_per_node, domain + -domain % gpus_per_node]
    reason = "an NVLink domain covers whole nodes, or a node holds whole domains"
    yield Finding("cluster.gpu.nvlink_domain", domain, rule, reason, nearest_of(domain, sorted({*parts, *whole})))


def racks_are_known_where_they_count(c: Written) -> Iterator[Finding]:
    """Experts cannot be spread over racks that nobody named."""
    if c["coverage"] != "rack" or c["cluster.rack_size"] is not None:
        return
    is_counted = isinstance(c["cluster.nodes"], int)
    if is_counted or not all(c[f"{node}.rack"] for node in c.matching("cluster.nodes.*")):
        rule = "S516 needs the rack of every node"
        reason = "replicas are spread over racks, so each node's rack must be known"
        fix = for_example("cluster.rack_size: 4") if is_counted else "write rack for each node"
        yield Finding("coverage", "rack", rule, reason, fix)


def nodes_are_listed_once(c: Written) -> Iterator[Finding]:
    """A node given twice would be planned twice."""
    nodes: Nodes = c["cluster.nodes"]
    first: dict[str, int] = {}
    for index, name in _names(nodes):
        if name in first:
            rule = f"S408 must be listed once, it is cluster.nodes.{first[name]} too"
            fix = Fix("remove one of the two", tuple({f"cluster.nodes.{each}": None} for each in (first[name], index)))
            yield Finding(f"cluster.nodes.{index}.name", name, rule, "otherwise its GPUs would be used twice", fix)
        first.setdefault(name, index)


def gpus_of_nodes_are_known(c: Written) -> Iterator[Finding]:
    """A misspelt one would leave its node unused; those of other models that are sold are left out on purpose."""
    nodes: Nodes = c["cluster.nodes"]
    name: str | None = c.get("cluster.gpu")
    own: str | None = c.get("cluster.gpu.name")
    known = list(dict.fromkeys([each for each in (name, own) if each] + [each for each in GPUS if each != "cpu"]))
    for index, node in _listed(nodes):
        gpu = node.get("gpu")
        if gpu is not None and gpu not in known and unplanned_gpu(gpu) is None:
            rule = f"S304 must be a known GPU ({', '.join(known)})"
            if name or own:
                others = ", ".join(known[1:])
                rule = f"S304 must be {known[0]}, which is the cluster's GPU, or another known GPU ({others})"
            reason = "the plan can only use GPUs whose figures it knows"
            yield Finding(f"cluster.nodes.{index}.gpu", gpu, rule, reason, instead_of_gpu(gpu, known))


def phases_have_nodes_with_their_gpus(c: Written, phase: Phase) -> Iterator[Finding]:
    """Only a list says which nodes have other GPUs than the cluster's."""
    gpu: str | None = c[f"{phase}.gpu"]
    is_counted = isinstance(c["cluster.nodes"], int)
    if gpu is None or gpu == c.get("cluster.gpu"):
        return
    if any(c[f"{node}.gpu"] == gpu for node in c.matching("cluster.nodes.*")):
        return
    rule = "S516 needs a list of nodes, some of which have this GPU"
    reason = "nodes given as a number all have cluster.gpu" if is_counted else "none of the listed nodes has it"
    yield Finding(f"{phase}.gpu", gpu, rule, reason, f"write gpu: {gpu} at the nodes that have it")


def spares_are_nodes_of_the_cluster(c: Written) -> Iterator[Finding]:
    """A pod finds no node by a misspelt name."""
    spares: list[str] = c["cluster.spares"]
    nodes: Nodes = c["cluster.nodes"]
    if isinstance(nodes, list) and any("name" not in node for node in nodes):
        return
    known = _known_names(nodes)
    for index, name in enumerate(spares):
        if name not in known:
            rule = "S304 must be the name of a node in cluster.nodes"
            reason = "a spare is one of the cluster's nodes"
            yield Finding(f"cluster.spares.{index}", name, rule, reason, _likely_spare(name, nodes, spares))


def spares_are_listed_once(c: Written) -> Iterator[Finding]:
    """Twice the name is not twice the node."""
    spares: list[str] = c["cluster.spares"]
    for index, name in enumerate(spares):
        if name in spares[:index]:
            rule = f"S408 must be listed once, it is cluster.spares.{spares.index(name)} too"
            yield Finding(f"cluster.spares.{index}", name, rule, "a spare can replace only one node", removal())


def spares_have_the_gpus_of_those_they_stand_in_for(c: Written) -> Iterator[Finding]:
    """The ranks of a lost node start there with the memory and in the number that were planned."""
    spares: list[str] = c["cluster.spares"]
    nodes: Nodes = c["cluster.nodes"]
    gpus_per_node: int = c["cluster.gpus_per_node"]
    gpu: str | None = c.get("cluster.gpu.name") or c.get("cluster.gpu")
    used = list(dict.fromkeys(each for each in (gpu, *(c.get(f"{phase}.gpu") for phase in PHASES)) if each))
    listed = {node["name"]: node for _, node in _listed(nodes) if "name" in node}
    for index, spare in enumerate(spares):
        node = listed.get(spare, {})
        has = node.get("gpu") or gpu, gpus_per_node if node.get("gpus") is None else node["gpus"]
        if gpu is not None and (has[0] not in used or has[1] < gpus_per_node):
            rule = f"S433 must have {gpus_per_node} {' or '.join(used)}, it has {has[1]} {has[0]}"
            reason = "it must be able to take over all ranks of a lost node"
            yield Finding(f"cluster.spares.{index}", spare, rule, reason, removal())


def nodes_are_counted_or_listed(c: Written, key: str) -> Iterator[Finding]:
    """A listed node says itself in which rack it is, which leaf it is attached to, and what feeds it."""
    path = f"cluster.{key}_size"
    size: int | None = c[path]
    if size is None or isinstance(c["cluster.nodes"], int):
        return
    word = key.removesuffix("_domain")
    reason = f"each listed node gives its own {word}"
    fix = removal(words=f"remove it, and write {word} for each node")
    yield without_effect("with a list of nodes", reason, path, size, fix)


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


RULES = (
    Rule("S420", "fields", own_gpus_have_names_of_their_own),
    Rule("S504", "fields", peers_are_part_of_the_whole),
    Rule("S560", "fields", links_have_a_bandwidth, tuple(OF_LINKS)),
    Rule("S418", "fields", domains_and_nodes_fit_together),
    Rule("S516", "fields", racks_are_known_where_they_count),
    Rule("S408", "fields", nodes_are_listed_once),
    Rule("S304", "fields", gpus_of_nodes_are_known),
    Rule("S516", "fields", phases_have_nodes_with_their_gpus, PHASES),
    Rule("S304", "fields", spares_are_nodes_of_the_cluster),
    Rule("S408", "fields", spares_are_listed_once),
    Rule("S433", "fields", spares_have_the_gpus_of_those_they_stand_in_for),
    Rule("S560", "fields", nodes_are_counted_or_listed, ("rack", "leaf", "power_domain")),
)
