"""Judge how much of each phase keeps serving during a change, by hour and by tool, and how long the change takes.

    with a controller    one unit of a phase changes at a time, prefill and decode side by side, whoever applies it.
                         Another unit stands in at hours with nodes for it (docs/design/rollouts.md). Units that leave
                         the plan go last, unless others need their nodes or `pulumi up` applies it: it ends them first
    pulumi up            likewise, but no unit stands in, and units on other nodes change at once
    Git, kubectl         every pod that differs ends at once, and starts again with all others

The new gateway is ready before the old one ends. A starting unit counts only once it serves. `serving.py` has the law
of how many units of a phase serve at least, and

    asked  = the hour's tokens / a unit's maximum rate, at most the units that are on

With another KV format new units cannot serve together with old ones. With a controller, the first new unit of each
phase brings the new gateway, and then all other units change. Without a controller all units change at once. The time
is

    together    drain + start of all that start together
    in turn     (drain + start of one unit of each phase) x turns of the phase with most
    in pairs    drain + start of one unit of each phase, then drain + start of all others
    minutes     the longer of the first two, or the third; plus the drain of removed units. With a controller the sum
                of the first two, since it gives turns only while all other units are ready

If `served` is zero, the verdict is an outage; if it is below `asked`, the service is degraded; else the change rolls.
Hours are judged one by one, each as if the whole change fell into it, and the worst hour decides the verdict.

Only ordinary days are judged, not `other_days`.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from planner.diff.change import ENDING_FATES, STARTING_FATES, Rollout, Tool, UnitChange, UnitCount, Verdict
from planner.diff.serving import PhaseUnits, Turns, least_serving
from planner.facts.day import MINUTE_S, minute_of, periods
from planner.facts.engines import OURS
from planner.facts.names import GATEWAY_LAUNCH_FILE
from planner.facts.terms import Phase
from planner.plan.plan import Plan
from planner.plan.unit_starts import joint_start_s
from planner.schedule.starts import READY_S, start_stages
from planner.schedule.stretches import Stretch, TimesOfDay, demand_shares, entry_starts, stretches_between
from planner.spec.schedule import StartSpec

TOOLS: tuple[Tool, ...] = ("git", "pulumi")
SEVERITY: tuple[Verdict, ...] = ("no_restart", "rolling", "degraded", "outage")
ROUNDING = 1e-9


@dataclass(frozen=True)
class _Way:
    """How a tool carries the change out: which units change when, and whether new units serve beside old ones."""

    turns: Turns
    go_last: Collection[str]  # units that leave the plan, once all others have changed
    in_pairs: bool  # whether first one unit of each phase changes, with the gateway: KV formats differ


@dataclass(frozen=True)
class _Hour:
    """A part of the day: each phase's units that are on before the change, and the number that demand needs."""

    stretch: Stretch
    on: Mapping[Phase, tuple[UnitChange, ...]]
    asked: Mapping[Phase, float]
    stand_ins: frozenset[Phase]  # phases in which a unit that is off can be on while others change


def judge_rollouts(before: Plan, after: Plan, changes: Sequence[UnitChange]) -> dict[Tool, Rollout]:
    """Return how the change goes with each tool: verdict, duration, and the least that serves."""
    in_pairs = _changes_in_pairs(before, after)
    hours = tuple(_judged_hours(before, after, changes, in_pairs=in_pairs))
    go_last = {"git": _units_that_go_last(before, after, changes), "pulumi": set[str]()}
    return {
        tool: _rollout(_Way(_turns_of(tool, after), go_last[tool], in_pairs), hours, after, changes) for tool in TOOLS
    }


def worst_rollout(ways: Mapping[Tool, Rollout]) -> Rollout:
    """Return the rollout with the worst verdict; of equals, the first."""
    return max(ways.values(), key=lambda way: SEVERITY.index(way.verdict))


def may_take_turns(plan: Plan) -> bool:
    """Return whether the plan has no controller, and with one would change its units in turns.

    Only LeaderWorkerSets of our own engine are sure to change so.
    """
    return not _has_controller(plan) and plan.kubernetes.unit_kind == "leaderworkerset" and plan.engine == OURS


def rollout_minutes(plan: Plan, changes: Sequence[UnitChange], *, in_turns: bool, in_pairs: bool = False) -> int | None:
    """Return the minutes, rounded up, until all pods are ready if every unit is on; None if units' reads are unknown.

    `in_turns` says whether units that can change one by one do so; `in_pairs` is that of `_Way`.
    """
    turns = [each for each in changes if each.in_turn and in_turns]
    together = [each for each in changes if each.change in STARTING_FATES and each not in turns]
    pair = _one_of_each_phase(together) if in_pairs else []
    rounds = [pair, [each for each in together if each not in pair]]
    start_s, *joint_s = (_start_s(plan, each) for each in (_one_of_each_phase(turns), *rounds))
    if start_s is None or None in joint_s:
        return None
    drains_s = [plan.drain_s * any(each.change in ENDING_FATES for each in units) for units in rounds]
    together_s = sum(drains_s) + sum(each for each in joint_s if each)
    most_turns = max(Counter(each.phase for each in turns).values(), default=0)
    turns_s = most_turns * (plan.drain_s + start_s)
    is_in_order = _has_controller(plan) and any(each.phase in plan.phases for each in together)
    changing_s = together_s + turns_s if is_in_order else max(together_s, turns_s)
    leave_s = plan.drain_s if any(each.change == "removed" for each in changes) else 0.0
    return ceil((leave_s + changing_s) / MINUTE_S)


def rollout_assumptions(before: Plan, after: Plan, changes: Sequence[UnitChange]) -> Iterator[str]:
    """Yield what verdict and minutes assume, because no spec says it."""
    if not any(each.change in (*ENDING_FATES, "new") for each in changes):
        return
    if start_stages(after.spec) == StartSpec():
        yield "units start as fast as the defaults of schedule.start say; images are on the nodes"
    if after.kubernetes.unit_kind == "statefulset" and any(each.change in ENDING_FATES for each in changes):
        yield "pods of a StatefulSet end once somebody deletes them, those of a unit together"
    ending = {each.phase for each in changes if each.change in ENDING_FATES}
    if any(_full_unit_rate(after, phase) is None for phase in after.phases if phase in ending):
        yield "no hour's demand is known: every unit that stays in the plan is needed"
    if _never_has_room(after) and any(each.change in ENDING_FATES for each in changes):
        yield "units wait for a state with room, and all states want as many: set kubernetes.controller.turns: now"
    if before.switches_units and not _has_controller(before):
        yield "without kubernetes.controller all units are on all day"


def _one_of_each_phase(units: Sequence[UnitChange]) -> list[UnitChange]:
    return list({each.phase: each for each in units}.values())


def _start_s(plan: Plan, starting: Sequence[UnitChange]) -> float | None:
    """Return the seconds until all of `starting` are ready if they start together; None if units' reads are unknown."""
    units = Counter(each.phase for each in starting)
    numbers = {phase: units[phase] for phase in plan.phases if units[phase]}
    if numbers:
        return joint_start_s(plan, numbers)
    return start_stages(plan.spec).pods + READY_S if starting else 0.0  # gateway and controller read no weights


def _changes_in_pairs(before: Plan, after: Plan) -> bool:
    """Return whether KV formats differ and a controller changes one unit of each phase first, with a new gateway."""
    old, new = (plan.launch_documents.get(GATEWAY_LAUNCH_FILE, {}).get("kv_digest") for plan in (before, after))
    are_ours = before.engine == after.engine == OURS and all(map(_has_controller, (before, after)))
    return are_ours and old != new


def _units_that_go_last(before: Plan, after: Plan, changes: Sequence[UnitChange]) -> set[str]:
    """Return the units that leave the plan, but that the controller keeps until all others have changed."""
    taken = {node for unit in after.units for node in unit.nodes}
    removed = (each.name for each in changes if each.change == "removed") if _has_controller(after) else ()
    return {name for name in removed if taken.isdisjoint(before.nodes_by_unit.get(name, ()))}


def _judged_hours(before: Plan, after: Plan, changes: Sequence[UnitChange], *, in_pairs: bool) -> Iterator[_Hour]:
    """Yield the parts of an ordinary day in which the units that are on and the demand are constant."""
    traffic = after.spec.traffic
    profile = traffic.profile_on(None) if traffic else None
    on_before, on_after, phases = _running_units(before), _running_units(after), list(before.phases)
    rates = _lower_unit_rates(before, after, phases)
    stretches = stretches_between([*entry_starts(profile), *on_before.starts, *on_after.starts])
    for stretch, share in zip(stretches, demand_shares(profile, stretches), strict=True):
        now, later = on_before.at(stretch.start), on_after.at(stretch.start)
        on = {phase: tuple(each for each in changes if each.phase == phase and each.name in now) for phase in phases}
        per_s = share / (stretch.minutes * MINUTE_S)
        wanted = {phase: _units_needed(after, phase, later, per_s, rates.get(phase)) for phase in phases}
        asked = {phase: min(wanted[phase], len(units)) for phase, units in on.items()}
        changing = [each for each in changes if each.in_turn or (in_pairs and each.change in ENDING_FATES)]
        yield _Hour(stretch, on, asked, frozenset(_stand_ins(after, changing, later)))


def _stand_ins(plan: Plan, changes: Sequence[UnitChange], on: Collection[str]) -> Iterator[Phase]:
    """Yield the phases in which the controller can start one unit more than `on`: the largest state has room."""
    if not _has_controller(plan) or plan.timetable is None:
        return
    sizes = {unit.name: len(unit.nodes) for unit in plan.units}
    left = max(step.num_nodes for step in plan.timetable.all_steps) - sum(sizes[name] for name in on)
    for phase in plan.phases:
        changing = any(each.phase == phase and each.name in on for each in changes)
        off = [sizes[unit.name] for unit in plan.units_of(phase) if unit.name not in on]
        if changing and off and off[0] <= left:
            left -= off[0]
            yield phase


def _never_has_room(plan: Plan) -> bool:
    """Return whether units wait for a state of the day with free nodes, although all states use as many nodes."""
    controller = plan.kubernetes.controller
    if controller is None or controller.turns == "now" or plan.timetable is None:
        return False
    return len({step.num_nodes for step in plan.timetable.all_steps}) == 1


def _units_needed(
    plan: Plan, phase: Phase, on: Collection[str], share_per_s: float, tokens_per_s: float | None
) -> float:
    """Return how many fully loaded units of `phase` can serve `share_per_s` of a day's tokens in each second.

    `tokens_per_s` is the rate of a fully loaded unit. If that rate or the traffic is unknown, return the number of the
    phase's units in `on`, the names of the units that are on.
    """
    if plan.spec.traffic is None or tokens_per_s is None:
        return sum(unit.phase == phase and unit.name in on for unit in plan.units)
    return plan.spec.traffic.tokens_of(phase) * share_per_s / tokens_per_s


def _lower_unit_rates(before: Plan, after: Plan, phases: Collection[Phase]) -> dict[Phase, float]:
    """Return phase -> the lower of both plans' maximum tokens/s of a unit, for phases with a known rate."""
    found = {}
    for phase in phases:
        rates = [rate for plan in (before, after) if (rate := _full_unit_rate(plan, phase))]
        if rates and phase in after.phases:
            found[phase] = min(rates)
    return found


def _full_unit_rate(plan: Plan, phase: Phase) -> float | None:
    """Return the maximum tokens/s of one unit, from the plan's demand; None if unknown."""
    demand = (plan.demand or {}).get(phase)
    if demand is None or not demand.most_tokens_per_s:
        return None
    on = _scheduled_units(plan).at(minute_of(demand.at))
    return demand.most_tokens_per_s / sum(unit.phase == phase and unit.name in on for unit in plan.units)


def _running_units(plan: Plan) -> TimesOfDay[frozenset[str]]:
    """Return the units that run at each time of the day: the scheduled ones, or all if there is no controller."""
    if _has_controller(plan):
        return _scheduled_units(plan)
    return TimesOfDay.always(frozenset(unit.name for unit in plan.units))


def _scheduled_units(plan: Plan) -> TimesOfDay[frozenset[str]]:
    steps = plan.timetable.steps if plan.timetable else ()
    return TimesOfDay.from_pairs(
        ((step.at, frozenset(step.units)) for step in steps), frozenset(unit.name for unit in plan.units)
    )


def _has_controller(plan: Plan) -> bool:
    return plan.kubernetes.controller is not None


def _rollout(way: _Way, hours: Sequence[_Hour], after: Plan, changes: Sequence[UnitChange]) -> Rollout:
    ends = any(each.change in ENDING_FATES for each in changes)
    verdicts = [_verdict(way, hour) if ends else SEVERITY[0] for hour in hours]
    phases = [phase for phase in hours[0].on if any(hour.on[phase] for hour in hours)]
    least = {phase: _lowest_capacity(way, phase, hours) for phase in phases}
    return Rollout(
        verdict=max(verdicts, key=SEVERITY.index),
        minutes=rollout_minutes(after, changes, in_turns=way.turns != "none", in_pairs=way.in_pairs),
        least_capacity={phase: units / of_units for phase, (units, of_units) in least.items()},
        least_units={phase: UnitCount(units=units, of_units=of_units) for phase, (units, of_units) in least.items()},
        times=_verdict_times(hours, verdicts) if len(set(verdicts)) > 1 else {},
    )


def _turns_of(tool: Tool, plan: Plan) -> Turns:
    """Return when `tool` changes the next unit: `now`, `with_room` for a stand-in, or `none` for all at once."""
    controller = plan.kubernetes.controller
    if controller is not None:
        return controller.turns
    return "now" if tool == "pulumi" else "none"


def _verdict(way: _Way, hour: _Hour) -> Verdict:
    """Return the verdict on a part of the day, for a change that ends pods."""
    worst: Verdict = "rolling"
    for phase, units in hour.on.items():
        served = _min_serving(way, hour, phase)
        if units and not served:
            return "outage"
        if served < hour.asked[phase] - ROUNDING:
            worst = "degraded"
    return worst


def _min_serving(way: _Way, hour: _Hour, phase: Phase) -> int:
    """Return how many of a phase's units serve at the least during the change, if it falls into `hour`."""
    units = hour.on[phase]
    counts = PhaseUnits(
        on=len(units),
        kept=sum(each.change == "kept" for each in units),
        in_turn=sum(each.in_turn for each in units),
        go_last=sum(each.name in way.go_last for each in units),
        stay=sum(each.change != "removed" for each in units),
    )
    return least_serving(
        counts,
        way.turns,
        is_replaced=phase in hour.stand_ins,
        all_replaced=hour.stand_ins.issuperset(hour.on),
        in_pairs=way.in_pairs,
    )


def _verdict_times(hours: Sequence[_Hour], verdicts: Sequence[Verdict]) -> dict[Verdict, str]:
    """Return verdict -> its times of the day as text, the best verdict first."""
    found: dict[Verdict, list[tuple[int, int]]] = {each: [] for each in SEVERITY}
    for hour, verdict in zip(hours, verdicts, strict=True):
        found[verdict].append((hour.stretch.start, hour.stretch.minutes))
    return {verdict: periods(stretches) for verdict, stretches in found.items() if stretches}


def _lowest_capacity(way: _Way, phase: Phase, hours: Sequence[_Hour]) -> tuple[int, int]:
    """Return (units that serve, units that are on) of the hour with the lowest share; of equals, the first."""
    found = [(_min_serving(way, hour, phase), len(hour.on[phase])) for hour in hours if hour.on[phase]]
    return min(found, key=lambda each: each[0] / each[1])
