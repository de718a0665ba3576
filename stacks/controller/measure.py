"""What a round makes of the gateway's figures: how many units demand asks for, and which of them serve last.

`demand.py` and `stragglers.py` decide. What they go on from is in the deployment's status.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.facts.terms import Phase
from stacks.controller.clock import instant_of
from stacks.controller.decide import planned_units, units_on
from stacks.controller.demand import Demand, Floor, Limits, Room, follow_demand
from stacks.controller.figures import Figures, NoFigures, read_figures
from stacks.controller.observe import Observed
from stacks.controller.situation import Situation
from stacks.controller.stragglers import LASTS_S, Suspect, follow_stragglers, with_last
from stacks.kube.manifest import Manifest

__all__ = ["Measured", "floors_before", "measure", "suspects_before"]


@dataclass(frozen=True)
class Measured:
    """What was observed, with what the gateway's figures make of it."""

    observed: Observed
    demand: Demand | None = None  # none for a deployment that does not follow it
    suspects: Mapping[str, Suspect] | None = None  # likewise


def measure(deployment: Manifest, observed: Observed, now: float) -> Measured:
    """Return what the gateway's figures make of a look at `now`, the world's time."""
    told = deployment["spec"]
    if "metrics" not in told:
        return Measured(observed)
    try:
        figures, unknown = read_figures(told["metrics"]), None
    except NoFigures as error:
        figures, unknown = Figures({}, frozenset()), str(error)
    demand = suspects = None
    if "demand" in told:
        demand = replace(_demand(deployment, observed, figures, now), unknown=unknown)
    if "stragglersLast" in told:
        suspects = suspects_before(deployment) if unknown else _suspects(deployment, observed, figures, now)
    return Measured(_with(observed, demand, suspects or {}, now), demand, suspects)


def floors_before(deployment: Manifest) -> dict[Phase, Floor]:
    """Return the floors as they were written last; not those that are until no time."""
    written = (deployment.get("status") or {}).get("demand") or []
    return {
        each["phase"]: Floor(each["units"], until, each["peak"], _since(each))
        for each in written
        if (until := instant_of(each["until"])) is not None
    }


def suspects_before(deployment: Manifest) -> dict[str, Suspect]:
    """Return the suspects as they were written last."""
    written = (deployment.get("status") or {}).get("stragglers") or []
    return {each["unit"]: Suspect(each["isLast"], _since(each)) for each in written}


def _demand(deployment: Manifest, observed: Observed, figures: Figures, now: float) -> Demand:
    told = deployment["spec"]["demand"]
    rooms = dict(_rooms(told))
    loads = {phase: load for phase, load in figures.loads.items() if phase in rooms}
    after_s = max(told["afterSeconds"], _notice_s(observed))
    limits = Limits(told["used"], told["backlog"], after_s, told["staySeconds"])
    planned = planned_units(observed.situation, observed.clock.of(now))
    return follow_demand(floors_before(deployment), loads, rooms, planned, now, limits)


def _rooms(told: Mapping[str, Any]) -> Iterator[tuple[Phase, Room]]:
    for phase, room in told["rooms"].items():
        yield phase, Room(room.get("requests", 0), room.get("kvTokens", 0), room.get("promptTokens", 0))


def _suspects(deployment: Manifest, observed: Observed, figures: Figures, now: float) -> dict[str, Suspect]:
    units = {unit.name: unit.is_on and unit.is_ready for unit in observed.situation.units}
    before = {unit: each for unit, each in suspects_before(deployment).items() if unit in units}
    serving = {unit for unit, is_ready in units.items() if is_ready}
    lasts_s = max(LASTS_S, _notice_s(observed))
    return follow_stragglers(before, figures.stragglers & units.keys(), serving, now, lasts_s)


def _notice_s(observed: Observed) -> float:
    """Return the world's seconds that whoever uses nodes of a unit that is off gets, before another one starts."""
    return observed.situation.timetable.notice_s / observed.clock.pace


def _with(observed: Observed, demand: Demand | None, suspects: Mapping[str, Suspect], now: float) -> Observed:
    """Return what was observed, with floors and order as they are, and the units that would be on if all this lasts."""
    floors = {phase: each.units for phase, each in demand.floors.items()} if demand else {}
    last = {unit for unit, each in suspects.items() if each.is_last}
    may_be_last = last ^ {unit for unit, each in suspects.items() if each.since is not None}
    as_is = _in_order(observed.situation, last, floors)
    if_it_lasts = _in_order(observed.situation, may_be_last, floors | (dict(demand.soon) if demand else {}))
    soon = frozenset(units_on(if_it_lasts, observed.clock.of(now)))
    return replace(observed, situation=replace(as_is, soon=soon))


def _in_order(situation: Situation, last: set[str], floors: Mapping[Phase, int]) -> Situation:
    return replace(with_last(situation, last), floors=floors)


def _since(written: Mapping[str, Any]) -> float | None:
    return instant_of(written["since"]) if "since" in written else None
