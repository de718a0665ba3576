"""Suggest an idle node as a spare. With a spare, a unit that lost a node serves again long before the repair."""

from collections.abc import Iterable
from math import ceil

from planner.estimate.uptime import recovery_s
from planner.facts.day import MINUTE_S
from planner.facts.terms import Phase
from planner.layout.nodes import nodes_of
from planner.layout.unit import Unit
from planner.spec.schema import Spec

__all__ = ["suggest_spare"]


def suggest_spare(spec: Spec, units: Iterable[Unit], phase: Phase) -> str:
    """Return a suggestion of an idle node as spare for units of `phase`.

    It is empty if no node is idle, or if the spec has spares.
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
