"""What a round does about demand: ask the gateway, and say what that comes to. `demand.py` decides."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from planner.facts.terms import Phase
from stacks.controller.decide import planned_units
from stacks.controller.demand import Demand, Floor, Limits, Room, follow_demand
from stacks.controller.figures import NoFigures, read_figures
from stacks.controller.observe import Observed
from stacks.kube.manifest import Manifest

__all__ = ["floors_before", "measure"]


def measure(deployment: Manifest, observed: Observed, now: float) -> Demand | None:
    """Return what demand asks for at `now`, the world's time; None for a deployment that follows its day alone."""
    told = deployment["spec"].get("demand")
    if told is None:
        return None
    before = floors_before(deployment)
    try:
        loads = read_figures(told["metrics"]).loads
    except NoFigures as error:
        return Demand(before, {}, str(error))
    rooms = dict(_rooms(told))
    known = {phase: load for phase, load in loads.items() if phase in rooms}
    planned = planned_units(observed.situation, observed.clock.of(now))
    return follow_demand(before, known, rooms, planned, now, _limits(told, observed))


def floors_before(deployment: Manifest) -> dict[Phase, Floor]:
    """Return the floors as they were written last."""
    written = (deployment.get("status") or {}).get("demand") or []
    return {
        each["phase"]: Floor(
            each["units"],
            datetime.fromisoformat(each["until"]).timestamp(),
            each["peak"],
            datetime.fromisoformat(each["since"]).timestamp() if "since" in each else None,
        )
        for each in written
    }


def _rooms(told: Mapping[str, Any]) -> Iterator[tuple[Phase, Room]]:
    for phase, room in told["rooms"].items():
        yield phase, Room(room.get("requests", 0), room.get("kvTokens", 0), room.get("promptTokens", 0))


def _limits(told: Mapping[str, Any], observed: Observed) -> Limits:
    """Return the limits in the world's seconds. Whoever uses nodes of a unit that is off gets their notice first."""
    notice_s = observed.situation.timetable.notice_s / observed.clock.pace
    return Limits(told["used"], told["backlog"], max(told["afterSeconds"], notice_s), told["staySeconds"])
