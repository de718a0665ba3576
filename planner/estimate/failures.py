"""Find how many units the loss of one GPU, node, rack or power domain stops, in the worst case.

A unit with a dead rank stops: its ranks step together, and the bundled runtime, like most, cannot continue without one
of them. So the report counts whole units as lost. Probabilities are not estimated here.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from planner.facts.part import Part
from planner.facts.terms import Phase
from planner.layout.nodes import named_places, nodes_of
from planner.layout.unit import Unit
from planner.spec.resolved import ResolvedSpec

SharedDomain = Literal["rack", "power"]  # domains that units can share

SHARED_DOMAINS: tuple[SharedDomain, ...] = ("rack", "power")


class Loss(Part):
    """The most units of a phase that stop when one failure domain of a kind is lost."""

    units: int  # units of the phase that stop
    of_units: int  # all units of the phase
    at: str  # the lost rank, node, rack or power domain


def report_failures(spec: ResolvedSpec, units: Sequence[Unit]) -> dict[Phase, dict[str, Loss]]:
    """Return, for each phase, the most units that losing one domain stops, by kind of domain, smallest kind first.

    The kinds are GPU and node, and rack and power if the spec names them.
    """
    nodes = nodes_of(spec.cluster)
    places = {kind: named_places(nodes, kind) for kind in SHARED_DOMAINS}
    return {phase: dict(_losses([each for each in units if each.phase == phase], places)) for phase in spec.phases}


def _losses(units: Sequence[Unit], places: Mapping[SharedDomain, Mapping[str, str]]) -> Iterator[tuple[str, Loss]]:
    yield "gpu", Loss(units=1, of_units=len(units), at=f"{units[0].name} rank 0")
    yield "node", Loss(units=1, of_units=len(units), at=units[0].nodes[0])
    for domain in SHARED_DOMAINS:
        if loss := _worst_shared_loss(units, places[domain]):
            yield domain, loss


def _worst_shared_loss(units: Sequence[Unit], place_of: Mapping[str, str]) -> Loss | None:
    """Return the loss of the domain that stops most units, or None if some node has no named domain.

    `place_of` has the rack, or the power domain, of each node.
    """
    stopped: dict[str, set[str]] = {}  # place -> units with a node there
    for unit in units:
        for name in unit.nodes:
            stopped.setdefault(place_of[name], set()).add(unit.name)
    if "" in stopped:
        return None
    worst = max(stopped, key=lambda place: len(stopped[place]))  # the first of equals
    return Loss(units=len(stopped[worst]), of_units=len(units), at=worst)
