"""Find how many units the loss of one GPU, node or rack stops, in the worst case, and for how long.

A unit with a dead rank stops: its ranks step together, and the bundled runtime, like most, cannot continue without one
of them. So the report counts whole units as lost. On a spare a unit serves again after a warm-up; without a spare it is
out until somebody repairs the node. How often parts fail is not estimated.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil

from planner.facts.day import MINUTE_S
from planner.facts.part import Part
from planner.facts.quantities import read_seconds
from planner.facts.terms import Phase
from planner.layout.nodes import named_places, nodes_of, spares_with
from planner.layout.unit import Unit
from planner.spec.resolved import ResolvedSpec
from planner.spec.schedule import ScheduleSpec
from planner.spec.schema import Spec

HOUR_S = 3600


class Loss(Part):
    """The most units of a phase that stop when one failure domain of a kind is lost."""

    units: int  # units of the phase that stop
    of_units: int  # all units of the phase
    at: str  # the lost rank, node or rack


def report_failures(spec: ResolvedSpec, units: Sequence[Unit]) -> dict[Phase, dict[str, Loss]]:
    """Return phase -> kind of failure domain -> the most units that stop if one such domain is lost.

    Kinds are in order of size: GPU and node, and rack if the spec names racks.
    """
    rack_of = named_places(nodes_of(spec.cluster), "rack")
    return {phase: dict(_losses([each for each in units if each.phase == phase], rack_of)) for phase in spec.phases}


def recovery_s(spec: Spec) -> float:
    """Return the seconds from a node's loss until its unit serves again on a spare.

    The unit starts anew there, so these are the seconds of a warm-up.
    """
    usual = read_seconds(ScheduleSpec.model_fields["warm_up"].default) or 0.0
    return usual if spec.schedule is None else spec.schedule.warm_up


def outage_share(spec: Spec, phase: Phase) -> float:
    """Return the share of an hour for which a unit of `phase` is down after it loses a node; 1 without a spare."""
    has_spare = spares_with(spec.cluster, spec.gpu_name(phase), spec.kubernetes.tolerations)
    return min(recovery_s(spec) / HOUR_S, 1.0) if has_spare else 1.0


def suggest_spare(spec: Spec, units: Iterable[Unit], phase: Phase) -> str:
    """Return words that suggest an idle node as a spare for units of `phase`.

    Returns an empty string if no node is idle, or if the spec has spares already.
    """
    if spec.cluster.spares:
        return ""
    taken = {node for unit in units for node in unit.nodes}
    nodes = nodes_of(spec.cluster, (spec.gpu_name(phase),), spec.kubernetes.tolerations)
    idle = [each.name for each in nodes if each.unusable is None and each.name not in taken]
    if not idle:
        return ""
    minutes = ceil(recovery_s(spec) / MINUTE_S)
    return f"with cluster.spares: [{idle[-1]}] the unit serves again after {minutes} min"


def _losses(units: Sequence[Unit], rack_of: Mapping[str, str]) -> Iterator[tuple[str, Loss]]:
    yield "gpu", Loss(units=1, of_units=len(units), at=f"{units[0].name} rank 0")
    yield "node", Loss(units=1, of_units=len(units), at=units[0].nodes[0])
    if loss := _worst_rack(units, rack_of):
        yield "rack", loss


def _worst_rack(units: Sequence[Unit], rack_of: Mapping[str, str]) -> Loss | None:
    """Return the loss of the rack that stops most units, or None if the spec names no racks."""
    stopped: dict[str, set[str]] = {}  # rack -> units with a node there
    for unit in units:
        for name in unit.nodes:
            stopped.setdefault(rack_of[name], set()).add(unit.name)
    if "" in stopped:
        return None
    worst = max(stopped, key=lambda rack: len(stopped[rack]))  # the first of equals
    return Loss(units=len(stopped[worst]), of_units=len(units), at=worst)
