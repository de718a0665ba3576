"""Rules about `cluster`, and about `coverage: rack`, which needs the racks of the cluster's nodes."""

from collections.abc import Iterator
from typing import Any

from planner.facts.catalog import GPUS, suggest_gpu, unplanned_gpu
from planner.facts.names import logical_node
from planner.facts.terms import PHASES, Phase
from planner.problems.finding import Finding
from planner.problems.fix import Fix, closest_choice, did_you_mean, for_example, nearest_of, removal
from planner.rules.rule import Rule
from planner.rules.valid_values import ValidValues
from planner.spec.undecided import AUTO

Nodes = int | list[dict[str, Any]]  # a count, or the spec's list


def auto_nodes_need_units_or_traffic(c: ValidValues) -> Iterator[Finding]:
    """Reject `nodes: auto` if `units` are auto too and there is no traffic that would decide one of them."""
    are_units_open = any(c.is_open(f"{phase}.units") for phase in c.phases)
    if c.is_open("cluster.nodes") and are_units_open and "traffic" not in c.sections:
        rule = "S728 must be a number when units are auto and there is no traffic"
        reason = "without traffic, the planner counts units from nodes, or nodes from units"
        fix = "write cluster.nodes, or units of each phase, or traffic"
        yield Finding("cluster.nodes", AUTO, rule, reason, fix)


def custom_gpu_names_are_new(c: ValidValues) -> Iterator[Finding]:
    """Reject a custom GPU with a catalog GPU's name: the catalog's facts, such as its vendor, would not apply to it."""
    name: str = c["cluster.gpu.name"]
    known = next((each for each in GPUS if each == name.casefold()), None)
    if known is None:
        return
    fix = Fix(f"write gpu: {known}", ({"cluster.gpu": known},))
    reason = "the catalog has that GPU and its figures"
    yield Finding("cluster.gpu.name", name, f"S420 must not be {known}", reason, fix)


def nvlink_domains_align_with_nodes(c: ValidValues) -> Iterator[Finding]:
    """Reject an NVLink domain whose size neither divides the GPUs of a node nor is a multiple of them."""
    domain: int | None = c["cluster.gpu.nvlink_domain"]
    gpus_per_node: int = c["cluster.gpus_per_node"]
    if domain is None or gpus_per_node % domain == 0 or domain % gpus_per_node == 0:
        return
    rule = f"S418 must divide gpus_per_node ({gpus_per_node}) or be a multiple of it"
    parts = [size for size in range(1, gpus_per_node) if gpus_per_node % size == 0]
    whole = [gpus_per_node, domain - domain % gpus_per_node or gpus_per_node, domain + -domain % gpus_per_node]
    reason = "an NVLink domain covers whole nodes, or a node holds whole domains"
    yield Finding("cluster.gpu.nvlink_domain", domain, rule, reason, nearest_of(domain, sorted({*parts, *whole})))


def rack_coverage_needs_racks(c: ValidValues) -> Iterator[Finding]:
    """Reject `coverage: rack` if a node's rack is unknown: replicas are spread over racks."""
    if c["coverage"] != "rack" or c["cluster.rack_size"] is not None:
        return
    is_counted = isinstance(c["cluster.nodes"], int)
    if is_counted or not all(c[f"{node}.rack"] for node in c.expand_paths("cluster.nodes.*")):
        rule = "S516 needs the rack of every node"
        reason = "replicas are spread over racks, so each node's rack must be known"
        fix = for_example("cluster.rack_size: 4") if is_counted else "write rack for each node"
        yield Finding("coverage", "rack", rule, reason, fix)


def node_gpus_are_known(c: ValidValues) -> Iterator[Finding]:
    """Reject a node's `gpu` if no GPU has that name: a misspelt name would leave the node unused.

    GPU models that are on sale but not supported are accepted, and nodes with them stay unused.
    """
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
            yield Finding(f"cluster.nodes.{index}.gpu", gpu, rule, reason, suggest_gpu(gpu, known))


def phase_gpus_have_nodes(c: ValidValues, phase: Phase) -> Iterator[Finding]:
    """Reject a phase's own GPU model if no listed node has it."""
    gpu: str | None = c[f"{phase}.gpu"]
    is_counted = isinstance(c["cluster.nodes"], int)
    if gpu is None or gpu == c.get("cluster.gpu"):
        return
    if any(c[f"{node}.gpu"] == gpu for node in c.expand_paths("cluster.nodes.*")):
        return
    rule = "S516 needs a list of nodes, some of which have this GPU"
    reason = "nodes given as a number all have cluster.gpu" if is_counted else "none of the listed nodes has it"
    yield Finding(f"{phase}.gpu", gpu, rule, reason, f"write gpu: {gpu} at the nodes that have it")


def spares_are_cluster_nodes(c: ValidValues) -> Iterator[Finding]:
    """Reject spares that are not nodes of the cluster."""
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


def spares_match_used_gpus(c: ValidValues) -> Iterator[Finding]:
    """Reject a spare that has fewer GPUs than `gpus_per_node`, or GPUs that no phase uses: it could replace no node."""
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


def _known_names(nodes: Nodes) -> list[str]:
    """Return the names of the cluster's nodes.

    If the spec gives only their number, they are node-0, node-1 and so on.
    """
    return [name for _, name in _names(nodes)] if isinstance(nodes, list) else list(map(logical_node, range(nodes)))


def _likely_spare(name: str, nodes: Nodes, spares: list[str]) -> Fix | str:
    """Return a fix that suggests a node with a name similar to `name` that is not a spare yet.

    Return only words if there is no such node, or if the spec gives only a number of nodes.
    """
    if isinstance(nodes, int):
        return f"they are {logical_node(0)} to {logical_node(nodes - 1)}: write one of these"
    meant = closest_choice(name, [each for _, each in _names(nodes) if each not in spares])
    return did_you_mean(name, [meant]) if meant else "write the name of one of them, or remove it"


def _listed(nodes: Nodes) -> Iterator[tuple[int, dict[str, Any]]]:
    return iter([]) if isinstance(nodes, int) else enumerate(nodes)


def _names(nodes: Nodes) -> Iterator[tuple[int, str]]:
    return ((index, node["name"]) for index, node in _listed(nodes) if "name" in node)


RULES = (
    Rule("S728", "fields", auto_nodes_need_units_or_traffic),
    Rule("S420", "fields", custom_gpu_names_are_new),
    Rule("S418", "fields", nvlink_domains_align_with_nodes),
    Rule("S516", "fields", rack_coverage_needs_racks),
    Rule("S304", "fields", node_gpus_are_known),
    Rule("S516", "fields", phase_gpus_have_nodes, PHASES),
    Rule("S304", "fields", spares_are_cluster_nodes),
    Rule("S433", "fields", spares_match_used_gpus),
)
