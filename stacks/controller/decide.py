"""Decides which units to start and drain now to follow the day's schedule. Pure: it reads no clock and no cluster.

    start   a unit that the day wants, from its warm-up on, or that demand asks for
    drain   a unit that neither asks for, as soon as enough others of every phase are ready;
            and one whose turn it is to take a new template (`turns.py`), once nothing else is to do
    delete  a unit that has left the plan, as soon as it might be drained and all turns are over, or a unit that is to
            run needs its nodes

A unit is one group: if somebody scales it to more, it is scaled to 1 again.

A unit is drained by scaling it to 0: its pods are told to end, the gateway sends them nothing new, and they go when
their answers are done. Prefill and decode change together, since no unit goes while either phase would have fewer ready
units than the day wants. So a unit that stays away keeps another one in its place.

Demand adds the next units of a phase to those of the day, as long as the day's largest state takes no fewer nodes. So
do turns, which add one that stands in. A unit starts once its newest template is current, and no other one has pods on
its nodes.

An operator may hold everything as it is, or force another state of the day, each until a given time; demand adds
nothing meanwhile. Units that serve once the order is over warm up before that. If the end of a hold cannot be read,
units start and none drains.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor

from planner.facts.day import DAY_S
from planner.facts.terms import Phase
from planner.schedule.schedule import Step
from stacks.controller.situation import Force, LiveUnit, Situation
from stacks.controller.turns import Turns, decide_turns, find_holders
from stacks.day.clock import changes_between, state_at, units_at
from stacks.day.runs import runs_between

__all__ = ["Decision", "NextChange", "Scale", "count_planned_units", "decide", "required_units", "units_required_soon"]

LOOK_AHEAD_S = 8 * DAY_S  # weekdays repeat after a week: only dates come later. A day more for DST


@dataclass(frozen=True)
class Scale:
    """A unit to start or to drain."""

    unit: str
    is_on: bool
    reason: str


@dataclass(frozen=True)
class NextChange:
    """The next change of the day's state: when it comes, and which units then serve or stop."""

    instant: int
    starts: tuple[str, ...]
    stops: tuple[str, ...]


@dataclass(frozen=True)
class Decision:
    """What the controller does in this round, and what the status reports about it."""

    state: str  # the time at which the wanted state began: `22:00`
    scales: tuple[Scale, ...]
    wanted: tuple[str, ...]  # the units that have to serve now
    next_change: NextChange | None
    is_held: bool
    is_forced: bool
    shortages: tuple[str, ...]  # phases with fewer ready units than wanted: `1 of 2 decode units are ready`
    extra_demand: tuple[str, ...]  # phases with more demand than planned: `demand asks for 3 decode units, ...`
    unmet_demand: tuple[str, ...]  # phases with more demand than units, and what the operator can do
    turns: Turns
    stand_ins: tuple[str, ...]  # units that run, or will, while wanted ones take a new template
    leaving: tuple[str, ...]  # units to delete, which have left the plan
    reason: str


def decide(situation: Situation, now: float) -> Decision:
    """Return what to do at `now`, in seconds since 1970-01-01 00:00 UTC."""
    orders, force = situation.orders, _active_force(situation, now)
    planned, wanted = _planned_units(situation, now, force), _wanted_units(situation, now, force)
    shortages = tuple(_describe_shortages(situation.units, _count_by_phase(situation, wanted)))
    decision = Decision(
        state=force.state if force else state_at(situation.timetable, floor(now)).at,
        scales=(),
        wanted=wanted,
        next_change=_next_change(situation, now),
        is_held=orders.hold_until is not None and now < orders.hold_until,
        is_forced=force is not None,
        shortages=shortages,
        extra_demand=tuple(_describe_extra_demand(situation, planned, wanted)),
        unmet_demand=tuple(_describe_unmet_demand(situation, wanted, force)),
        turns=_pause_turns(situation, "held as it is"),
        stand_ins=tuple(sorted(_stand_ins(situation, now))),
        leaving=(),
        reason="; ".join([*orders.unreadable, "held as it is"]),
    )
    if decision.is_held:
        return replace(decision, scales=tuple(_warm_ups_for_end_of_hold(situation, now)))
    on = required_units(situation, now)
    starts = tuple(_units_to_start(situation, on, {*wanted} - {*planned}))
    may_go = [unit for unit in situation.units if unit.is_on and unit.name not in on] if orders.may_drain else []
    leaving = _units_to_delete(situation, wanted, on) if orders.may_drain else []
    drains = tuple(_units_to_drain(situation, wanted, may_go, leaving))
    drained = {each.unit for each in drains}
    kept = [unit.name for unit in may_go if unit.name not in drained]
    single = tuple(_undo_extra_groups(unit for unit in situation.units if unit.name not in drained))
    scales = starts + single + drains
    turns = _decide_turns(situation, decision.wanted, on, scales, decision.stand_ins)
    decision = replace(decision, scales=scales + tuple(_take_turns(turns)), turns=turns, leaving=tuple(leaving))
    return replace(decision, reason=_explain(situation, decision, kept, force))


def required_units(situation: Situation, now: float) -> set[str]:
    """Return the units that have to run now: units to serve, units to warm up, and stand-ins."""
    wanted = _wanted_units(situation, now, _active_force(situation, now))
    stand_ins = _stand_ins(situation, now) if situation.has_given_notice else set()
    return _planned_running_units(situation, now, 0.0) | {*wanted} | stand_ins


def units_required_soon(situation: Situation, now: float) -> set[str]:
    """Return the units that may have to run within the notice that users of their free nodes get."""
    return (
        _planned_running_units(situation, now, situation.timetable.notice_s)
        | required_units(situation, now)
        | _stand_ins(situation, now)
        | situation.expected_units
    )


def count_planned_units(situation: Situation, now: float) -> Counter[Phase]:
    """Return for each phase how many units the schedule, or a forced state instead, wants to serve now."""
    return _count_by_phase(situation, _planned_units(situation, now, _active_force(situation, now)))


def _planned_running_units(situation: Situation, now: float, ahead_s: float) -> set[str]:
    """Return the units that run by the schedule, or by a forced state, now or within `ahead_s` seconds."""
    timetable, force = situation.timetable, _active_force(situation, now)
    if force is None:
        runs = runs_between(timetable, floor(now), floor(now + ahead_s) + 1)
        return {
            run.unit
            for run in runs
            if (run.starts is None or run.starts <= now + ahead_s) and (run.drains is None or now < run.drains)
        }
    is_near = force.until - now <= timetable.warm_up_s + ahead_s
    return {*_forced_step(situation, force).units, *(units_at(timetable, floor(force.until)) if is_near else ())}


def _wanted_units(situation: Situation, now: float, force: Force | None) -> tuple[str, ...]:
    """Return the units that have to serve now, including those that demand adds."""
    planned = _planned_units(situation, now, force)
    return planned if force else _raise_to_floors(situation, planned, situation.floors)


def _stand_ins(situation: Situation, now: float) -> set[str]:
    """Return a stand-in, the phase's next unit, for each phase with an outdated wanted unit.

    None while a state is forced.

    If KV formats differ, a stand-in can serve only with a stand-in in the other phases. So if no phase may lack a unit,
    either all those phases get a stand-in or none does.
    """
    kv_formats_differ = any(unit.has_other_kv_format for unit in situation.units)
    if _active_force(situation, now) or (kv_formats_differ and situation.gateway == "blind"):
        return set()
    wanted = _wanted_units(situation, now, None)
    behind = {each.phase for each in situation.units if each.is_on and each.is_outdated and each.name in wanted}
    floors = {phase: count + 1 for phase, count in _count_by_phase(situation, wanted).items() if phase in behind}
    found = {*_raise_to_floors(situation, wanted, floors)} - {*wanted}
    is_alone = kv_formats_differ and not situation.may_lack_one and len(found) < len(behind)
    return set() if is_alone else found


def _planned_units(situation: Situation, now: float, force: Force | None) -> tuple[str, ...]:
    """Return the units that the schedule, or a forced state instead, wants to serve now."""
    if force is not None:
        return _forced_step(situation, force).units
    return units_at(situation.timetable, floor(now))


def _raise_to_floors(situation: Situation, planned: Sequence[str], floors: Mapping[Phase, int]) -> tuple[str, ...]:
    """Return `planned` plus, for each phase, its first `floors[phase]` units, as long as they fit.

    Together they take no more nodes than the day's largest state.
    """
    sizes = {unit.name: unit.num_nodes for unit in situation.units}
    left = _most_nodes(situation) - sum(sizes[name] for name in planned)
    found = set(planned)
    for phase, number in floors.items():
        for unit in [each for each in situation.units if each.phase == phase][:number]:
            if unit.name not in found and unit.num_nodes <= left:
                found.add(unit.name)
                left -= unit.num_nodes
    return tuple(name for name in sizes if name in found)


def _most_nodes(situation: Situation) -> int:
    return max(step.num_nodes for step in situation.timetable.all_steps)


def _active_force(situation: Situation, now: float) -> Force | None:
    force = situation.orders.force
    return force if force and now < force.until else None


def _forced_step(situation: Situation, force: Force) -> Step:
    """Return the forced state; `observe.py` has checked that it exists."""
    return next(step for step in situation.timetable.steps if step.at == force.state)


def _units_to_start(situation: Situation, on: set[str], asked: set[str]) -> Iterator[Scale]:
    """Yield the units to start: those in `on`, which should run, that do not; `asked` are those that demand adds.

    An outdated unit is left out, since it might start with its old template.
    """
    everybody = [*situation.units, *situation.departed]
    for unit in situation.units:
        if unit.name in on and unit.replicas == 0 and not unit.is_outdated and not find_holders(unit, everybody):
            yield Scale(unit.name, True, "demand asks for it" if unit.name in asked else "its time has come")


def _warm_ups_for_end_of_hold(situation: Situation, now: float) -> Iterator[Scale]:
    """Yield the units to start during a hold: those that have to serve when it ends, as long before as they warm up."""
    end = situation.orders.hold_until
    if end is not None and end - now <= situation.timetable.warm_up_s:
        yield from _units_to_start(situation, {*_planned_units(situation, end, _active_force(situation, end))}, set())


def _decide_turns(
    situation: Situation, wanted: Sequence[str], on: set[str], scales: Sequence[Scale], stand_ins: Collection[str]
) -> Turns:
    """Return which units restart now with their new template.

    None restarts while a unit starts or drains, during a hold whose end is unknown, or while more templates may come.
    """
    if not situation.orders.may_drain:
        return _pause_turns(situation, "nobody knows until when to hold")
    if not situation.are_templates_known:
        return _pause_turns(situation, "more templates may be about to come")
    if scales:
        return _pause_turns(situation, f"{', '.join(each.unit for each in scales)} start or drain first")
    needed = _count_by_phase(situation, wanted)
    return decide_turns(situation.units, on, needed, stand_ins, situation.gateway, may_lack_one=situation.may_lack_one)


def _pause_turns(situation: Situation, why: str) -> Turns:
    outdated = tuple(unit.name for unit in situation.units if unit.is_on and unit.is_outdated)
    return Turns((), outdated, f"{', '.join(outdated)} keep their template: {why}" if outdated else "")


def _take_turns(turns: Turns) -> Iterator[Scale]:
    for unit in turns.begin:
        yield Scale(unit, False, "its turn has come: it starts again with its newest template")


def _undo_extra_groups(units: Iterable[LiveUnit]) -> Iterator[Scale]:
    """Yield a Scale to one group for each unit that somebody scaled to more, which would take other units' nodes."""
    for unit in units:
        if unit.replicas is not None and unit.replicas > 1:
            yield Scale(unit.name, True, f"it was scaled to {unit.replicas} groups, and a unit is one")


def _units_to_delete(situation: Situation, wanted: Sequence[str], on: set[str]) -> list[str]:
    """Return the departed units to delete: those no longer needed, and those on nodes that another unit waits for.

    While units wait to restart with a new template, departed units serve in place of the restarting ones.
    """
    awaited = [unit for unit in situation.units if unit.name in on and not unit.is_ready]
    blocking = {each.name for unit in awaited for each in find_holders(unit, situation.departed)}
    found = [unit.name for unit in situation.departed if not unit.is_on or unit.name in blocking]
    if any(unit.is_on and unit.is_outdated for unit in situation.units):
        return found
    staying = [unit for unit in situation.departed if unit.name not in found]
    return found + [each.unit for each in _units_to_drain(situation, wanted, staying, found)]


def _units_to_drain(
    situation: Situation, wanted: Sequence[str], may_go: Sequence[LiveUnit], leaving: Collection[str]
) -> Iterator[Scale]:
    """Yield which units of `may_go` to drain, the last first, while every phase keeps as many ready units as wanted."""
    there = [*situation.units, *(unit for unit in situation.departed if unit.name not in leaving)]
    needed, ready = _count_by_phase(situation, wanted), _count_ready(there)
    for unit in reversed(may_go):
        left = ready - Counter({unit.phase: int(unit.is_ready)})
        if all(left[phase] >= number for phase, number in needed.items()):
            ready = left
            yield Scale(unit.name, False, "nobody needs it now")


def _count_by_phase(situation: Situation, units: Sequence[str]) -> Counter[Phase]:
    phases = situation.phases()
    return Counter(phases[unit] for unit in units)


def _count_ready(units: Sequence[LiveUnit]) -> Counter[Phase]:
    return Counter(unit.phase for unit in units if unit.is_ready)


def _describe_shortages(units: Sequence[LiveUnit], needed: Counter[Phase]) -> Iterator[str]:
    ready = _count_ready(units)
    for phase, number in needed.items():
        if ready[phase] < number:
            yield f"{ready[phase]} of {number} {phase} units are ready"


def _describe_extra_demand(situation: Situation, planned: Sequence[str], wanted: Sequence[str]) -> Iterator[str]:
    day, on = _count_by_phase(situation, planned), _count_by_phase(situation, wanted)
    for phase, number in on.items():
        if number > day[phase]:
            yield f"demand asks for {number} {phase} units, the day for {day[phase]}"


def _describe_unmet_demand(situation: Situation, wanted: Sequence[str], force: Force | None) -> Iterator[str]:
    on = _count_by_phase(situation, wanted)
    for phase, number in situation.floors.items():
        asks = f"demand asks for {number} {phase} units"
        if force and number > on[phase]:
            yield f"{asks}, and state {force.state} is forced"
        elif number > on[phase]:
            room = f"the plan's {_most_nodes(situation)} nodes have room for {on[phase]}"
            yield f"{asks}, and {room}: plan again with more"


def _next_change(situation: Situation, now: float) -> NextChange | None:
    """Return the first change of the day's state after `now`; None if there is none within `LOOK_AHEAD_S`.

    A day at a time is searched, since most days have a change.
    """
    for begin in range(floor(now) + 1, floor(now) + LOOK_AHEAD_S, DAY_S):
        end = min(begin + DAY_S, floor(now) + LOOK_AHEAD_S)
        for change in changes_between(situation.timetable, begin, end):
            return NextChange(change.instant, change.starts, change.stops)
    return None


def _explain(situation: Situation, decision: Decision, kept: Sequence[str], force: Force | None) -> str:
    """Return the reason for the status. `kept` are units that stay only while a wanted one is not ready."""
    ready = {unit.name for unit in situation.units if unit.is_ready}
    awaited = [unit for unit in decision.wanted if unit not in ready]
    missing = [unit.name for unit in situation.units if unit.replicas is None]
    departed = [unit.name for unit in situation.departed if unit.name not in decision.leaving]
    parts = [*situation.orders.unreadable, *([f"state {force.state} is forced"] if force else [])]
    parts += [*decision.unmet_demand, *decision.extra_demand, *decision.shortages]
    parts += [decision.turns.reason] if decision.turns.reason else []
    parts += [f"{', '.join(kept)} stays until {' and '.join(awaited)} are ready"] if kept else []
    parts += [f"{', '.join(departed)} left the plan, and serves on until nobody misses it"] if departed else []
    parts += [f"{', '.join(missing)} not created"] if missing else []
    parts += [situation.unseen] if situation.unseen else []
    return "; ".join(parts) or "as planned"
