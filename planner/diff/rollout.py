"""Judge what still serves of each phase while a change is carried out, hour by hour and by each tool.

    Git, kubectl    every pod that differs ends at once, and starts again with all others
    pulumi up       units that leave end first. One unit of a phase changes at a time, prefill and decode side by side;
                    units on other nodes or with another KV format change at once (docs/design/rollouts.md)

The gateway is ready anew before the old one ends, whoever applies it. A unit that starts is not counted before it
serves. So the least of a phase is

    served = units on that are kept + (pulumi up: units that take turns, less one)
    asked  = the hour's tokens / what a full unit makes, at most the units that are on

`served` of zero is an outage, below `asked` it is degraded, else the change rolls. Hours are judged one by one, each as
if the whole change fell into it, and the worst one names the verdict.

A day is one like most: `other_days` are not looked at.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.diff.change import ENDS, Tool, UnitChange, Units, Verdict, Way
from planner.diff.minutes import minutes_of, start_of
from planner.facts.day import MINUTE_S, minute_of, periods
from planner.facts.terms import Phase
from planner.plan.plan import Plan
from planner.schedule.stretches import Stretch, TimesOfDay, demand_shares, entry_starts, stretches_between
from planner.spec.start import StartSpec

__all__ = ["assumptions", "ways_of", "worst_way"]

TOOLS: tuple[Tool, ...] = ("git", "pulumi")
SEVERITY: tuple[Verdict, ...] = ("no_restart", "rolling", "degraded", "outage")
ROUNDING = 1e-9


@dataclass(frozen=True)
class _Hour:
    """A stretch of the day: the units of each phase that are on before the change, and how many are asked for."""

    stretch: Stretch
    on: Mapping[Phase, tuple[UnitChange, ...]]
    asked: Mapping[Phase, float]


def ways_of(before: Plan, after: Plan, changes: Sequence[UnitChange]) -> dict[Tool, Way]:
    """Return how the change goes by each tool."""
    hours = tuple(_hours(before, after, changes))
    return {tool: _way(tool, hours, after, changes) for tool in TOOLS}


def worst_way(ways: Mapping[Tool, Way]) -> Way:
    """Return the way that goes worse; of equals, the first."""
    return max(ways.values(), key=lambda way: SEVERITY.index(way.verdict))


def assumptions(before: Plan, after: Plan, changes: Sequence[UnitChange]) -> Iterator[str]:
    """Yield what verdict and minutes rest on that no spec says."""
    if not any(each.change in (*ENDS, "new") for each in changes):
        return
    if start_of(after) == StartSpec():
        yield "a start takes what schedule.start has by default; images are on the nodes"
    if after.kubernetes.unit_kind == "statefulset" and any(each.change in ENDS for each in changes):
        yield "pods of a StatefulSet end once somebody deletes them, those of a unit together"
    ending = {each.phase for each in changes if each.change in ENDS}
    if any(_full_unit_tokens_per_s(after, phase) is None for phase in after.phases if phase in ending):
        yield "no hour's demand is known: every unit that stays in the plan is needed"
    if before.switches_units and not _follows_day(before):
        yield "without kubernetes.controller all units are on all day"


def _hours(before: Plan, after: Plan, changes: Sequence[UnitChange]) -> Iterator[_Hour]:
    """Yield the stretches of a day like most in which the same units are on and the same is asked."""
    traffic = after.spec.traffic
    profile = traffic.profile_on(None) if traffic else None
    on_before, on_after, phases = _really_on(before), _really_on(after), list(before.phases)
    rates = _slower_tokens_per_s(before, after, phases)
    stretches = stretches_between([*entry_starts(profile), *on_before.starts, *on_after.starts])
    for stretch, share in zip(stretches, demand_shares(profile, stretches), strict=True):
        now, later = on_before.at(stretch.start), on_after.at(stretch.start)
        on = {phase: tuple(each for each in changes if each.phase == phase and each.name in now) for phase in phases}
        per_s = share / (stretch.minutes * MINUTE_S)
        wanted = {phase: _units_wanted(after, phase, later, per_s, rates.get(phase)) for phase in phases}
        yield _Hour(stretch, on, {phase: min(wanted[phase], len(units)) for phase, units in on.items()})


def _units_wanted(
    plan: Plan, phase: Phase, on: Collection[str], share_per_s: float, tokens_per_s: float | None
) -> float:
    """Return the full units that traffic wants which has this share of a day's tokens in a second.

    Where nobody knows, it is the units that the plan has `on`.
    """
    if plan.spec.traffic is None or tokens_per_s is None:
        return sum(unit.phase == phase and unit.name in on for unit in plan.units)
    return plan.spec.traffic.tokens_of(phase) * share_per_s / tokens_per_s


def _slower_tokens_per_s(before: Plan, after: Plan, phases: Collection[Phase]) -> dict[Phase, float]:
    """Return what a full unit makes in the plan in which it makes less, of phases for which anybody knows."""
    found = {}
    for phase in phases:
        rates = [rate for plan in (before, after) if (rate := _full_unit_tokens_per_s(plan, phase))]
        if rates and phase in after.phases:
            found[phase] = min(rates)
    return found


def _full_unit_tokens_per_s(plan: Plan, phase: Phase) -> float | None:
    """Return what a full unit makes, from the fullest hour of the plan's demand; None where nobody knows."""
    demand = (plan.demand or {}).get(phase)
    if demand is None or not demand.most_tokens_per_s:
        return None
    on = _planned_on(plan).at(minute_of(demand.at))
    return demand.most_tokens_per_s / sum(unit.phase == phase and unit.name in on for unit in plan.units)


def _really_on(plan: Plan) -> TimesOfDay[frozenset[str]]:
    """Return the units that run at each time: all of them where nothing follows the day."""
    return _planned_on(plan) if _follows_day(plan) else TimesOfDay.always(frozenset(unit.name for unit in plan.units))


def _planned_on(plan: Plan) -> TimesOfDay[frozenset[str]]:
    steps = plan.timetable.steps if plan.timetable else ()
    return TimesOfDay.written(
        ((step.at, frozenset(step.units)) for step in steps), frozenset(unit.name for unit in plan.units)
    )


def _follows_day(plan: Plan) -> bool:
    return plan.kubernetes.controller is not None


def _way(tool: Tool, hours: Sequence[_Hour], after: Plan, changes: Sequence[UnitChange]) -> Way:
    ends = any(each.change in ENDS for each in changes)
    verdicts = [_verdict(tool, hour) if ends else SEVERITY[0] for hour in hours]
    least = {phase: _least(tool, phase, hours) for phase in hours[0].on if any(hour.on[phase] for hour in hours)}
    return Way(
        verdict=max(verdicts, key=SEVERITY.index),
        minutes=minutes_of(after, changes, in_turns=tool == "pulumi"),
        least_capacity={phase: units / of_units for phase, (units, of_units) in least.items()},
        least_units={phase: Units(units=units, of_units=of_units) for phase, (units, of_units) in least.items()},
        times=_times(hours, verdicts) if len(set(verdicts)) > 1 else {},
    )


def _verdict(tool: Tool, hour: _Hour) -> Verdict:
    """Return the verdict of an hour in which pods end."""
    worst: Verdict = "rolling"
    for phase, units in hour.on.items():
        served = _served(tool, units)
        if units and not served:
            return "outage"
        if served < hour.asked[phase] - ROUNDING:
            worst = "degraded"
    return worst


def _served(tool: Tool, units: Sequence[UnitChange]) -> int:
    """Return how many of a phase's `units` serve at the least."""
    kept = sum(each.change == "kept" for each in units)
    turns = sum(each.in_turn for each in units)
    return kept + (turns - 1 if turns and tool == "pulumi" else 0)


def _times(hours: Sequence[_Hour], verdicts: Sequence[Verdict]) -> dict[Verdict, str]:
    """Return when each verdict holds, the best one first."""
    found: dict[Verdict, list[tuple[int, int]]] = {each: [] for each in SEVERITY}
    for hour, verdict in zip(hours, verdicts, strict=True):
        found[verdict].append((hour.stretch.start, hour.stretch.minutes))
    return {verdict: periods(stretches) for verdict, stretches in found.items() if stretches}


def _least(tool: Tool, phase: Phase, hours: Sequence[_Hour]) -> tuple[int, int]:
    """Return the least share of a phase's units that serve, of all hours in which some are on; of equals, the first."""
    found = [(_served(tool, hour.on[phase]), len(hour.on[phase])) for hour in hours if hour.on[phase]]
    return min(found, key=lambda each: each[0] / each[1])
