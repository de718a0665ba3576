"""The status of a TidemillDeployment, built from a round's decision and the previous status. Pure.

kubectl get tidemill    state, units, next change, why
changes                 what changes have done, and what was promised of them (`changes.py`)
conditions              Following: the day is followed, or held, or cannot be read
                        Served: every unit that is wanted is ready
                        Healthy: no unit has to stay on a faulty node
                        Forecast: demand asks for no more units than the day
                        Current: no unit waits for a new template, or takes one
                        Ready: the plan is carried out: Served and Current, and no unit that left it is there
                        Stalled: it will not be until a person does something; absent otherwise

The last two, with `observedGeneration`, are what Flux and `kubectl wait` read of any kind.
Source: github.com/kubernetes-sigs/cli-utils pkg/kstatus/README.md
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.facts.calendar import wall_time
from planner.facts.day import hh_mm
from stacks.controller.changes import ChangeRecord, changes_json
from stacks.controller.clock import Clock, timestamp
from stacks.controller.decide import Decision, NextChange
from stacks.controller.demand import Demand
from stacks.controller.lend import FREE, RECLAIMED, Marks
from stacks.controller.measure import Measurement
from stacks.controller.observe import CURRENT
from stacks.controller.situation import Orders, Situation
from stacks.controller.stragglers import Suspect
from stacks.controller.turns import Turns
from stacks.kube.manifest import Manifest, find_condition

__all__ = [
    "FOLLOWING",
    "FORECAST",
    "HEALTHY",
    "Status",
    "build_status",
    "build_wrong_day_status",
]

FOLLOWING, SERVED, HEALTHY, FORECAST = "Following", "Served", "Healthy", "Forecast"
READY, STALLED = "Ready", "Stalled"
WRONG_DAY, STOPPED = "WrongDay", "Stopped"  # reasons of problems that only a person can solve

Status = dict[str, Any]
Condition = tuple[str, str, str, str]  # type, status, reason, message


def build_status(
    measurement: Measurement,
    decision: Decision,
    marks: Marks,
    problems: Sequence[str] | None,
    unit_names: Sequence[str],
    changes: Sequence[ChangeRecord],
    maps: Sequence[Mapping[str, Any]],
    now: float,
    deployment: Manifest,
) -> Status:
    """Return the whole status at the wall-clock time `now`, with every field built anew.

    A condition that has the same status in `deployment` keeps the time of its last transition.

    `problems` are reasons why units stay on faulty nodes, None if this round did not look at nodes. `unit_names` are
    the units of the plan, and those that have left it and still exist. `maps` are units' expert maps in service.
    """
    observation, demand = measurement.observation, measurement.demand
    situation = observation.situation
    departed = [name for name in unit_names if name not in situation.phases()]
    lent_nodes = {"freeNodes": len(marks.free), "nodes": {FREE: [*marks.free], RECLAIMED: [*marks.reclaimed]}}
    conditions = [
        (FOLLOWING, *_following_status(situation.orders, decision), decision.reason),
        (CURRENT, *_current_status(decision.turns, [unit.name for unit in situation.departed])),
        (SERVED, "False" if decision.shortages else "True", *_served_reason(decision.shortages)),
        *_healthy_condition(problems, find_condition(deployment, HEALTHY)),
        *_forecast_condition(decision, demand),
    ]
    return {
        "state": decision.state,
        "units": _units_text(situation, decision),
        "next": _next_change_text(decision.next_change, situation.timetable.timezone, observation.clock),
        "why": decision.reason,
        "unitNames": [*unit_names],
        **(lent_nodes if situation.lends_nodes else {}),
        **({"demand": list(_floors_json(demand))} if demand else {}),
        **({"stragglers": list(_suspects_json(measurement.suspects))} if measurement.suspects else {}),
        **({"changes": changes_json(changes)} if changes else {}),
        **({"expertMaps": [*maps]} if maps else {}),
        **_conditions_json([*conditions, *_ready_conditions(conditions, departed)], deployment, now),
    }


def build_wrong_day_status(why: str, now: float, deployment: Mapping[str, Any]) -> Status:
    """Return the status of a deployment whose day cannot be followed."""
    kept = {
        key: value
        for key, value in (deployment.get("status") or {}).items()
        if key in ("state", "units", "freeNodes", "nodes", "demand", "stragglers", "unitNames", "changes", "expertMaps")
    }
    conditions = [(FOLLOWING, "False", WRONG_DAY, why)]
    return kept | {"why": why, **_conditions_json([*conditions, *_ready_conditions(conditions, ())], deployment, now)}


def _following_status(orders: Orders, decision: Decision) -> tuple[str, str]:
    """Return (status, reason) of the condition Following: whether units follow the day or a forced state."""
    follows = "True" if orders.may_drain and not decision.is_held else "False"
    if orders.unreadable:
        return follows, "WrongOrder"
    return follows, "Held" if decision.is_held else "Forced" if decision.is_forced else "AsPlanned"


def _ready_conditions(others: Sequence[Condition], departed: Sequence[str]) -> Iterator[Condition]:
    """Yield the condition Ready, and the condition Stalled for each problem that only a person can solve.

    `departed` units have left the plan and still exist.
    """
    stops = [each for each in others if each[2] in (WRONG_DAY, STOPPED)]
    unmet = stops or [each for each in others if each[0] in (CURRENT, SERVED) and each[1] != "True"]
    if unmet:
        yield READY, "False", unmet[0][2], "; ".join(message for *_, message in unmet)
    elif departed:
        yield READY, "False", "UnitsLeave", f"{', '.join(departed)} left the plan: not deleted yet"
    else:
        yield READY, "True", "CarriedOut", "every unit that is wanted is ready, with its newest template"
    for _, _, reason, message in stops:
        yield STALLED, "True", reason, message


def _served_reason(short: Sequence[str]) -> tuple[str, str]:
    return ("TooFewUnits", "; ".join(short)) if short else ("AllReady", "every unit that is wanted is ready")


def _current_status(turns: Turns, departed: Sequence[str]) -> tuple[str, str, str]:
    if departed and not turns.outdated:
        return (
            "False",
            "Leaving",
            f"{', '.join(departed)} left the plan, and {'is' if len(departed) == 1 else 'are'} there",
        )
    if not turns.outdated:
        return "True", "NewestTemplates", "every unit has its newest template"
    return "False", STOPPED if turns.is_stopped else "InTurns", turns.reason


def _healthy_condition(problems: Sequence[str] | None, before: Mapping[str, str]) -> Iterator[Condition]:
    if problems:
        yield HEALTHY, "False", "Stuck", "; ".join(problems)
    elif problems is not None:
        yield HEALTHY, "True", "NoFaults", "no unit has to stay on a faulty node"
    elif before:
        yield HEALTHY, before["status"], before["reason"], before["message"]


def _forecast_condition(decision: Decision, demand: Demand | None) -> Iterator[Condition]:
    if demand is None:
        return
    if demand.unknown:
        yield FORECAST, "Unknown", "NoFigures", demand.unknown
    elif decision.unmet_demand or decision.extra_demand:
        reason = "BeyondPlan" if decision.unmet_demand else "MoreDemand"
        yield FORECAST, "False", reason, "; ".join([*decision.unmet_demand, *decision.extra_demand])
    else:
        yield FORECAST, "True", "AsForecast", "demand asks for no more units than the day"


def _floors_json(demand: Demand) -> Iterator[dict[str, Any]]:
    """Yield the demand floors in the form in which the status keeps them for the next round."""
    for phase, floor in demand.floors.items():
        until = timestamp(floor.until)
        yield {"phase": phase, "units": floor.units, "until": until, "peak": floor.peak, **_since_json(floor.since)}


def _suspects_json(suspects: Mapping[str, Suspect]) -> Iterator[dict[str, Any]]:
    """Yield the suspects in the form in which the status keeps them for the next round."""
    for unit, each in suspects.items():
        yield {"unit": unit, "isLast": each.is_last, **_since_json(each.since)}


def _since_json(instant: float | None) -> dict[str, str]:
    return {} if instant is None else {"since": timestamp(instant)}


def _units_text(situation: Situation, decision: Decision) -> str:
    """Return how many units of each phase are ready, over how many are wanted: `prefill 2/2, decode 1/1`."""
    phases = situation.phases()
    wanted = [phases[unit] for unit in decision.wanted]
    ready = [unit.phase for unit in situation.units if unit.is_ready]
    return ", ".join(f"{phase} {ready.count(phase)}/{wanted.count(phase)}" for phase in dict.fromkeys(phases.values()))


def _next_change_text(change: NextChange | None, timezone: str, clock: Clock) -> str:
    """Return when and how the day's state changes next: `22:00: 1 fewer (2026-...Z)`, or `never`.

    The first time is in the schedule's timezone.
    """
    if change is None:
        return "never"
    at = hh_mm(wall_time(change.instant, timezone).minute)
    parts = [f"{len(units)} {verb}" for units, verb in ((change.starts, "more"), (change.stops, "fewer")) if units]
    return f"{at}: {', '.join(parts)} ({timestamp(clock.world_time(change.instant))})"


def _conditions_json(conditions: Sequence[Condition], deployment: Mapping[str, Any], now: float) -> dict[str, Any]:
    before = {kind: find_condition(deployment, kind) for kind, *_ in conditions}
    return {
        "observedGeneration": deployment["metadata"]["generation"],
        "conditions": list(_conditions(conditions, before, now)),
    }


def _conditions(
    conditions: Sequence[Condition], before: Mapping[str, Mapping[str, str]], now: float
) -> Iterator[dict[str, str]]:
    """Yield the conditions in the status's form, each with the time since when it has its present status.

    `before` maps a condition's type to the condition as the status has it now.
    """
    for kind, status, reason, message in conditions:
        same = before.get(kind)
        since = same["lastTransitionTime"] if same and same["status"] == status else timestamp(now)
        yield {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}
