"""Offer an idle node as a spare: with one, a unit that loses a node serves again long before that node is mended."""

from collections.abc import Iterable
from math import ceil

from planner.estimate.uptime import recovery_s
from planner.facts.day import MINUTE_S
from planner.facts.terms import Phase
from planner.layout.nodes import nodes_of
from planner.layout.unit import Unit
from planner.spec.schema import Spec

__all__ = ["offered_spare"]


def offered_spare(spec: Spec, units: Iterable[Unit], phase: Phase) -> str:
    """Return which idle node could be a spare for units of `phase`; empty where none is idle, or spares are named."""
    if spec.cluster.spares:
        return ""
    taken = {node for unit in units for node in unit.nodes}
    nodes = nodes_of(spec.cluster, (spec.gpu_name(phase),), spec.kubernetes.tolerations)
    idle = [each.name for each in nodes if each.unusable is None and each.name not in taken]
    if not idle:
        return ""
    minutes = ceil(recovery_s(spec) / MINUTE_S)
    return f"with cluster.spares: [{idle[-1]}] the unit serves again after {minutes} min"
