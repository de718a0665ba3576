"""What a round does with the gateway's figures: how many units demand asks for, and which units are used last.

`demand.py` and `stragglers.py` decide. Their state is kept in the deployment's status.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from planner.facts.terms import Phase
from stacks.controller.decide import count_planned_units, required_units
from stacks.controller.demand import Demand, Floor, Limits, Room, follow_demand
from stacks.controller.figures import Figures, NoFigures, read_figures
from stacks.controller.observe import Observation
from stacks.controller.situation import Situation
from stacks.controller.stragglers import LASTS_S, Suspect, follow_stragglers, move_last
from stacks.kube.manifest import Manifest, parse_instant

__all__ = ["Measurement", "measure", "previous_floors", "previous_suspects"]


@dataclass(frozen=True)
class Measurement:
    """An observation of the cluster, adjusted by what the gateways measure."""

    observation: Observation
    demand: Demand | None = None  # none for a deployment that does not follow it
    suspects: Mapping[str, Suspect] | None = None  # likewise
    failed: Mapping[str, int] = field(default_factory=dict)  # address of a gateway -> requests that failed there


def measure(deployment: Manifest, observation: Observation, now: float) -> Measurement:
    """Return an observation at the wall-clock time `now`, adjusted by the gateways' figures."""
    settings = deployment["spec"]
    if "metrics" not in settings:
        return Measurement(observation)
    try:
        figures = read_figures(settings["metrics"])
        unknown = None if figures.loads else "the gateway knows of no ready unit"
    except NoFigures as error:
        figures, unknown = Figures({}, frozenset()), str(error)
    demand = suspects = None
    if "demand" in settings:
        demand = replace(_demand(deployment, observation, figures, now), unknown=unknown)
    if "stragglersLast" in settings:
        suspects = previous_suspects(deployment) if unknown else _suspects(deployment, observation, figures, now)
    return Measurement(_apply_demand(observation, demand, suspects or {}, now), demand, suspects, figures.failed)


def previous_floors(deployment: Manifest) -> dict[Phase, Floor]:
    """Return phase -> its floor in the deployment's status, without floors whose end is not a valid time."""
    written = (deployment.get("status") or {}).get("demand") or []
    return {
        each["phase"]: Floor(each["units"], until, each["peak"], _read_since(each))
        for each in written
        if (until := parse_instant(each["until"])) is not None
    }


def previous_suspects(deployment: Manifest) -> dict[str, Suspect]:
    """Return unit -> suspected straggler, as the deployment's status has it."""
    written = (deployment.get("status") or {}).get("stragglers") or []
    return {each["unit"]: Suspect(each["isLast"], _read_since(each)) for each in written}


def _demand(deployment: Manifest, observation: Observation, figures: Figures, now: float) -> Demand:
    settings = deployment["spec"]["demand"]
    rooms = dict(_rooms(settings))
    loads = {phase: load for phase, load in figures.loads.items() if phase in rooms}
    after_s = max(settings["afterSeconds"], _notice_s(observation))
    limits = Limits(settings["used"], settings["backlog"], after_s, settings["staySeconds"])
    planned = count_planned_units(observation.situation, observation.clock.day_time(now))
    return follow_demand(previous_floors(deployment), loads, rooms, planned, now, limits)


def _rooms(settings: Mapping[str, Any]) -> Iterator[tuple[Phase, Room]]:
    for phase, room in settings["rooms"].items():
        yield phase, Room(room.get("requests", 0), room.get("kvTokens", 0), room.get("promptTokens", 0))


def _suspects(deployment: Manifest, observation: Observation, figures: Figures, now: float) -> dict[str, Suspect]:
    units = observation.situation.units
    names, serving = {unit.name for unit in units}, {unit.name for unit in units if unit.is_ready}
    before = {unit: each for unit, each in previous_suspects(deployment).items() if unit in names}
    lasts_s = max(LASTS_S, _notice_s(observation))
    return follow_stragglers(before, figures.stragglers & names, serving, now, lasts_s)


def _notice_s(observation: Observation) -> float:
    """Return how many real seconds of notice users of a lent node get before its unit starts."""
    return observation.situation.timetable.notice_s / observation.clock.pace


def _apply_demand(
    observation: Observation, demand: Demand | None, suspects: Mapping[str, Suspect], now: float
) -> Observation:
    """Return the observation with at least the units that demand asks for, and suspected stragglers used last.

    Its `expected_units` are those that would be on if the load lasted.
    """
    floors = {phase: each.units for phase, each in demand.floors.items()} if demand else {}
    last = {unit for unit, each in suspects.items() if each.is_last}
    may_be_last = last ^ {unit for unit, each in suspects.items() if each.since is not None}
    current = _order_units(observation.situation, last, floors)
    prospective = _order_units(
        observation.situation, may_be_last, floors | (dict(demand.expected_units) if demand else {})
    )
    soon = frozenset(required_units(prospective, observation.clock.day_time(now)))
    return replace(observation, situation=replace(current, expected_units=soon))


def _order_units(situation: Situation, last: set[str], floors: Mapping[Phase, int]) -> Situation:
    return replace(move_last(situation, last), floors=floors)


def _read_since(written: Mapping[str, Any]) -> float | None:
    return parse_instant(written["since"]) if "since" in written else None
