"""The findings of a probe: why it did not run, nodes without a pod, missing connections, slow links. Pure."""

import statistics
from collections.abc import Iterator, Mapping

from planner.facts.quantities import BYTES_PER_GBIT, counted, gb
from planner.spec.kv_cache import KvDiskSpec
from stacks.doctor.findings import Finding, split_sentence
from stacks.doctor.probing import Disk, Probe
from stacks.kube.manifest import Reference

__all__ = ["probe_findings", "probe_summary"]

MB_PER_GBIT = BYTES_PER_GBIT / 1e6
SLOW = 0.5  # of the median of all pairs; assumed: rails of one kind differ by far less, and a wrong link by far more


def probe_findings(probe: Probe, disk: KvDiskSpec | None = None) -> Iterator[Finding]:
    """Yield a finding for each problem that a probe found. `disk` is the spec's disk for KV, if it has one."""
    for each in probe.foreign_objects:
        reason = "it has a name that the probe gives its own, and this run has not made it"
        fix = f"delete it if a killed probe left it: {_delete_command(each)}; else rename it, or the plan"
        yield Finding("owner", str(each), reason, fix)
    for node, why in probe.not_started.items():
        reason, fix = split_sentence(why)
        yield Finding("image", f"Node {node}", f"a pod with the units' image does not start there: {reason}", fix)
    for node, others in _cut_off_nodes(probe):
        reason = f"pods there have no connection with those on {_name_nodes(others)}"
        fix = "look at its network, and at policies and firewalls between the nodes: units need all TCP ports"
        yield Finding("reach", f"Node {node}", reason, fix)
    yield from _slow_nodes(probe)
    if disk is not None:
        yield from _poor_disks(probe, disk)


def probe_summary(probe: Probe) -> str:
    """Return one line about the rates between nodes and the disks that the probe measured.

    If the names that the probe needs were taken, the line says that nothing was probed.
    """
    if probe.foreign_objects:
        return "nodes were not probed: objects of others have the names of the probe's"
    if probe.median is None:
        return f"nothing was measured between {len(probe.nodes)} nodes{_disk_summary(probe)}"
    worst = min(probe.mb_per_s, key=lambda pair: probe.mb_per_s[pair])
    return (
        f"all to all between {len(probe.nodes)} nodes: {probe.median:g} MB/s between two nodes in the median, "
        f"{probe.mb_per_s[worst]:g} in the worst case ({worst[0]} to {worst[1]}){_disk_summary(probe)}"
    )


def _disk_summary(probe: Probe) -> str:
    found = [each for each in probe.disks.values() if isinstance(each, Disk)]
    if not found:
        return ""
    write, read = min(each.write_mb_per_s for each in found), min(each.read_mb_per_s for each in found)
    named = sum(not each.is_nameless for each in found)
    others = f"; {counted(named, 'disk')} can link no file without a name, so ranks rename theirs" if named else ""
    return f"; KV on {counted(len(found), 'disk')}, at least {write:g} MB/s written and {read:g} read{others}"


def _poor_disks(probe: Probe, disk: KvDiskSpec) -> Iterator[Finding]:
    """Yield a finding for each node whose KV disk is not writable, or smaller or slower than the spec says.

    These findings do not block: ranks on such a node still serve, but keep less KV.
    """
    for node, found in probe.disks.items():
        if isinstance(found, str):
            reason = f"pods cannot write to {disk.path} there: {found}"
            yield Finding("disk", f"Node {node}", reason, "let the pods' user write to that folder", blocks=False)
            continue
        if found.bytes < disk.size:
            reason = (
                f"the disk of {disk.path} has {gb(found.bytes)} there, less than kv_cache.disk.size ({gb(disk.size)})"
            )
            yield Finding("disk", f"Node {node}", reason, "write a smaller size, or use a larger disk", blocks=False)
        slowest = min(found.write_mb_per_s, found.read_mb_per_s)
        if disk.bandwidth is not None and slowest < (wanted := disk.bandwidth * MB_PER_GBIT):
            reason = (
                f"it writes {found.write_mb_per_s:g} MB/s to {disk.path} and reads {found.read_mb_per_s:g}; "
                f"kv_cache.disk.bandwidth says {wanted:g}"
            )
            fix = "write the lower rate as bandwidth, so that ranks do not queue more than the disk takes"
            yield Finding("disk", f"Node {node}", reason, fix, blocks=False)


def _cut_off_nodes(probe: Probe) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (node, nodes that it cannot reach) for few nodes that together explain all missing connections.

    Greedy: repeatedly take the node with the most missing connections that no node taken before explains. A node whose
    pod has not started explains its own missing connections.
    """
    missing = {
        frozenset((node, other))
        for node, others in probe.unreached.items()
        for other in others
        if other not in probe.not_started
    }
    while missing:
        counts = {node: sum(node in pair for pair in missing) for node in probe.nodes}
        worst = max(counts, key=lambda node: counts[node])
        yield worst, tuple(sorted(other for pair in missing if worst in pair for other in pair - {worst}))
        missing = {pair for pair in missing if worst not in pair}


def _slow_nodes(probe: Probe) -> Iterator[Finding]:
    if probe.median is None:
        return
    for node in probe.nodes:
        own = _node_rates(node, probe.mb_per_s)
        if own and statistics.median(own) < SLOW * probe.median:
            reason = (
                f"it exchanges {statistics.median(own):g} MB/s with other nodes; the median between nodes is "
                f"{probe.median:g}"
            )
            fix = "look at its links: a wrong speed, a broken cable, another leaf switch"
            yield Finding("slow", f"Node {node}", reason, fix, blocks=False)


def _node_rates(node: str, rates: Mapping[tuple[str, str], float]) -> list[float]:
    return [rate for pair, rate in rates.items() if node in pair]


def _delete_command(each: Reference) -> str:
    within = f" --namespace {each.namespace}" if each.namespace else ""
    return f"kubectl delete {each.kind.lower()} {each.name}{within}"


def _name_nodes(nodes: tuple[str, ...]) -> str:
    shown, more = ", ".join(nodes[:3]), len(nodes) - 3
    return f"{shown} and {more} more" if more > 0 else shown
