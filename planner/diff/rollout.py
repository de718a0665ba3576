"""Judge how much of each phase keeps serving during a change, by hour and by tool, and how long the change takes.

    with a controller    one unit of a phase changes at a time, prefill and decode side by side, whoever applies it.
                         Another unit stands in at hours with nodes for it (docs/design/rollouts.md). Units that leave
                         the plan go last, unless others need their nodes
    pulumi up            likewise, but no unit stands in, units on other nodes change at once, and those that leave end
                         first
    Git, kubectl         every pod that differs ends at once, and starts again with all others

The new gateway is ready before the old one ends. A starting unit counts only once it serves. `serving.py` has the laws
of how many units of a phase serve at least and of the seconds, and

    asked  = the hour's tokens / a unit's maximum rate, at most the units that are on

With `kubernetes.tls` on one side alone, the gateway has changed long before the units, so nothing serves until the
first new unit of each phase does; turns are given all the same. Another issuer ends no pod: pods read new certificates,
and until all have, they do not trust each other.

With another KV format new units cannot serve together with old ones. With a controller, the first new unit of each
phase brings the new gateway, and then all other units change. Without a controller all units change at once. The time
is

    together    drain + start of all that start together
    in turn     (drain + start of one unit of each phase) x turns of the phase with most
    in pairs    drain + start of one unit of each phase, then drain + start of all others
    minutes     the longer of the first two, or the third; plus the drain of removed units. With a controller the sum
                of the first two, since it gives turns only while all other units are ready

`drain` is the old plan's: it is in the pods that end.

If `served` is zero, the verdict is an outage; if it is below `asked`, the service is degraded; else the change rolls.

The new plan's days count like the change itself: an hour without a unit is an outage, and one with too few is degraded,
even if no pod restarts. If the old plan missed as much at that hour, the change is not to blame. Then the verdict
leaves it out, and `shortages` names it.

Hours are judged one by one (`hours.py`), each as if the whole change fell into it, and the worst hour of the worst kind
of day decides the verdict.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import ceil

from planner.diff.change import ENDING_FATES, STARTING_FATES, Rollout, Shortage, Tool, UnitChange, UnitCount, Verdict
from planner.diff.hours import Hour, describe_times, full_unit_rate, has_controller, units_left_off
from planner.diff.pods import is_same_deployment
from planner.diff.serving import PhaseUnits, Turns, change_s, least_serving
from planner.facts import names
from planner.facts.day import MINUTE_S
from planner.facts.engines import OURS
from planner.facts.names import GATEWAY_LAUNCH_FILE
from planner.facts.quantities import first_of
from planner.facts.terms import Phase
from planner.plan.plan import Plan
from planner.plan.unit_starts import joint_start_s
from planner.schedule.starts import READY_S, start_stages
from planner.spec.schedule import StartSpec

TOOLS: tuple[Tool, ...] = ("git", "pulumi")
SEVERITY: tuple[Verdict, ...] = ("no_restart", "rolling", "degraded", "outage")
ROUNDING = 1e-9
CERTIFICATES_S = 120  # assumed: a kubelet brings a changed Secret within its minute, and pods read it every half minute


@dataclass(frozen=True)
class _Way:
    """How a tool carries the change out: which units change when, and whether new units serve beside old ones."""

    turns: Turns
    go_last: Collection[str]  # units that leave the plan, once all others have changed
    in_pairs: bool  # whether first one unit of each phase changes, with the gateway: KV formats differ
    cuts_off: bool  # whether the gateway and units do not talk to each other for a while: certificates differ


@dataclass(frozen=True)
class _Step:
    """The change if it falls into an hour: each phase's units that are on before, and what the hour asks."""

    hour: Hour
    on: Mapping[Phase, tuple[UnitChange, ...]]
    stand_ins: frozenset[Phase]  # phases in which a unit that is off can be on while others change


def judge_rollouts(
    before: Plan, after: Plan, changes: Sequence[UnitChange], hours: Sequence[Hour]
) -> dict[Tool, Rollout]:
    """Return how the change goes with each tool: verdict, duration, and the fewest units that serve."""
    in_pairs = _changes_in_pairs(before, after)
    steps = tuple(_steps(before, after, changes, hours, in_pairs=in_pairs))
    go_last = _units_that_go_last(before, after, changes)
    cuts_off = before.kubernetes.tls != after.kubernetes.tls
    ways = {tool: _Way(_turns_of(tool, after), go_last, in_pairs, cuts_off) for tool in TOOLS}
    return {tool: _rollout(way, steps, before, after, changes) for tool, way in ways.items()}


def find_shortages(after: Plan, hours: Sequence[Hour]) -> Iterator[Shortage]:
    """Yield the hours at which units of the new plan miss demand: those the change is to blame for, then the others."""
    for phase, is_new, is_empty in product(after.phases, (True, False), (True, False)):
        loads = [(each, each.loads[phase]) for each in hours]
        short = [
            (hour, load)
            for hour, load in loads
            if (load.after == 0) == is_empty and load.is_worse == is_new and (is_new or load.misses_any)
        ]
        if short:
            missed = [load.missed for _, load in short]
            yield Shortage(
                phase=phase,
                times=describe_times([hour for hour, _ in short], hours),
                missed_share=None if None in missed else max(each for each in missed if each is not None),
                has_no_unit=is_empty,
                is_new=is_new,
            )


def worst_rollout(ways: Mapping[Tool, Rollout]) -> Rollout:
    """Return the rollout with the worst verdict, the first of equally bad ones."""
    return max(ways.values(), key=lambda way: SEVERITY.index(way.verdict))


def may_take_turns(plan: Plan) -> bool:
    """Return whether the plan has no controller, and with one would change its units in turns.

    Only LeaderWorkerSets of our own engine are sure to change so.
    """
    return not has_controller(plan) and plan.kubernetes.unit_kind == "leaderworkerset" and plan.engine == OURS


def rollout_s(
    before: Plan, plan: Plan, changes: Sequence[UnitChange], *, in_turns: bool, in_pairs: bool = False
) -> int:
    """Return the seconds, rounded up, until all pods of `plan` are ready if every unit is on.

    Pods that end were started by the plan `before`, so they drain as it says.

    `in_turns` says whether units that can change one by one do so; `in_pairs` is as in `_Way`.
    """
    turns = [each for each in changes if each.in_turn and in_turns]
    together = [each for each in changes if each.change in STARTING_FATES and each not in turns]
    pair = _one_of_each_phase(together) if in_pairs else []
    rounds = [pair, [each for each in together if each not in pair]]
    start_s, *joint_s = (_start_s(plan, each) for each in (_one_of_each_phase(turns), *rounds))
    drains_s = [before.drain_s * any(each.change in ENDING_FATES for each in units) for units in rounds]
    together_s = sum(drains_s) + sum(joint_s)
    num_turns = max(Counter(each.phase for each in turns).values(), default=0)
    drains_last = any(each.change == "removed" for each in changes)
    law = partial(change_s, drain_s=before.drain_s, start_s=start_s, drains_last=drains_last)
    is_in_order = has_controller(plan) and any(each.phase in plan.phases for each in together)
    return law(together_s, num_turns) if is_in_order else max(law(together_s, 0), law(0.0, num_turns))


def rollout_assumptions(before: Plan, after: Plan, changes: Sequence[UnitChange]) -> Iterator[str]:
    """Yield the assumptions behind the verdict and the minutes, on things that no spec states."""
    if not is_same_deployment(before, after):
        yield "the first deployment ends when the change is applied; if its folder stays, both run and need nodes"
    if before.kubernetes.tls and after.kubernetes.tls and before.kubernetes.tls != after.kubernetes.tls:
        yield "running pods read the other issuer's certificates within 2 min, at different times; until then none talk"
    if not any(each.change in (*ENDING_FATES, "new") for each in changes):
        return
    if start_stages(after.spec) == StartSpec():
        yield "units start as fast as the defaults of schedule.start say; images are on the nodes"
    if after.kubernetes.unit_kind == "statefulset" and any(each.change in ENDING_FATES for each in changes):
        yield "pods of a StatefulSet end once somebody deletes them, those of a unit together"
    ending = {each.phase for each in changes if each.change in ENDING_FATES}
    if any(full_unit_rate(after, phase) is None for phase in after.phases if phase in ending):
        yield "no hour's demand is known: every unit that stays in the plan is needed"
    if _never_has_room(after) and any(each.change in ENDING_FATES for each in changes):
        yield "units wait for a state with room, and all states want as many: set kubernetes.controller.turns: now"
    if before.switches_units and not has_controller(before):
        yield "without kubernetes.controller all units are on all day"
    if off := units_left_off(before, after):
        units = first_of([names.short_name(unit.name, before.name) for unit in before.units if unit.name in off], 3)
        yield f"{units} may be off when the controller goes, and stay so until somebody scales them"


def _one_of_each_phase(units: Sequence[UnitChange]) -> list[UnitChange]:
    return list({each.phase: each for each in units}.values())


def _start_s(plan: Plan, starting: Sequence[UnitChange]) -> float:
    """Return the seconds until all of `starting` are ready if they start together."""
    units = Counter(each.phase for each in starting)
    numbers = {phase: units[phase] for phase in plan.phases if units[phase]}
    if numbers:
        return joint_start_s(plan, numbers)
    return start_stages(plan.spec).pods + READY_S if starting else 0.0  # gateway and controller read no weights


def _changes_in_pairs(before: Plan, after: Plan) -> bool:
    """Return whether KV formats differ and a controller changes one unit of each phase first, with a new gateway."""
    old, new = (plan.launch_documents.get(GATEWAY_LAUNCH_FILE, {}).get("kv_digest") for plan in (before, after))
    are_ours = before.engine == after.engine == OURS and all(map(has_controller, (before, after)))
    return are_ours and is_same_deployment(before, after) and old != new


def _units_that_go_last(before: Plan, after: Plan, changes: Sequence[UnitChange]) -> set[str]:
    """Return the units that leave the plan, but that the controller keeps until all others have changed.

    A controller that comes with the new plan does not know those of the old one, so whoever applies it ends them.
    """
    taken = {node for unit in after.units for node in unit.nodes}
    are_known = has_controller(before) and has_controller(after) and is_same_deployment(before, after)
    removed = (each.name for each in changes if each.change == "removed") if are_known else ()
    return {name for name in removed if taken.isdisjoint(before.nodes_by_unit.get(name, ()))}


def _steps(
    before: Plan, after: Plan, changes: Sequence[UnitChange], hours: Sequence[Hour], *, in_pairs: bool
) -> Iterator[_Step]:
    changing = [each for each in changes if each.in_turn or (in_pairs and each.change in ENDING_FATES)]
    known: dict[tuple[Collection[str], Collection[str]], _Step] = {}  # many hours have the same units
    for hour in hours:
        units = hour.now, hour.later
        if units not in known:
            on = {
                phase: tuple(each for each in changes if each.phase == phase and each.name in hour.now)
                for phase in before.phases
            }
            known[units] = _Step(hour, on, frozenset(_stand_ins(after, changing, hour.later)))
        yield replace(known[units], hour=hour)


def _stand_ins(plan: Plan, changes: Sequence[UnitChange], on: Collection[str]) -> Iterator[Phase]:
    """Yield the phases in which the controller can start one unit more while one of `on` changes.

    The nodes for it are free because the largest state of the day uses more nodes. Nothing without a schedule.
    """
    if not has_controller(plan) or plan.timetable is None:
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
    """Return whether units wait for a state of the day with free nodes, although all states use equally many."""
    controller = plan.kubernetes.controller
    if controller is None or controller.turns == "now" or plan.timetable is None:
        return False
    return len({step.num_nodes for step in plan.timetable.all_steps}) == 1


def _rollout(way: _Way, steps: Sequence[_Step], before: Plan, after: Plan, changes: Sequence[UnitChange]) -> Rollout:
    ends = way.cuts_off or any(each.change in ENDING_FATES for each in changes)
    verdicts = [_verdict(way, step, ends=ends) for step in steps]
    phases = [phase for phase in steps[0].on if any(step.on[phase] for step in steps)]
    least = {phase: _lowest_capacity(way, phase, steps) for phase in phases}
    seconds = rollout_s(before, after, changes, in_turns=way.turns != "none", in_pairs=way.in_pairs)
    seconds = max(seconds, CERTIFICATES_S) if way.cuts_off else seconds
    worst = max(verdicts, key=SEVERITY.index)
    return Rollout(
        verdict=worst,
        seconds=seconds,
        minutes=ceil(seconds / MINUTE_S),
        least_capacity={phase: units / of_units for phase, (units, of_units) in least.items()},
        least_units={phase: UnitCount(units=units, of_units=of_units) for phase, (units, of_units) in least.items()},
        missed_share=_missed_share(way, [step for step, each in zip(steps, verdicts, strict=True) if each == worst]),
        times=_verdict_times([step.hour for step in steps], verdicts) if len(set(verdicts)) > 1 else {},
    )


def _turns_of(tool: Tool, plan: Plan) -> Turns:
    """Return when `tool` changes the next unit: `now`, `with_room` for a stand-in, or `none` for all at once."""
    controller = plan.kubernetes.controller
    if controller is not None:
        return controller.turns
    return "now" if tool == "pulumi" else "none"


def _verdict(way: _Way, step: _Step, *, ends: bool) -> Verdict:
    """Return the verdict on an hour. `ends` says whether the change ends pods, or connections between all of them."""
    worse = [load for load in step.hour.loads.values() if load.is_worse]
    serving = {phase: _min_serving(way, step, phase) for phase in step.on}
    if any(not load.after for load in worse) or (
        ends and any(step.on[phase] and not serving[phase] for phase in step.on)
    ):
        return "outage"
    if worse or (ends and any(units < step.hour.loads[phase].wanted - ROUNDING for phase, units in serving.items())):
        return "degraded"
    return "rolling" if ends else "no_restart"


def _min_serving(way: _Way, step: _Step, phase: Phase) -> int:
    """Return how many of a phase's units serve at the least during the change, if it falls into the step's hour."""
    units = step.on[phase]
    if way.cuts_off:
        return 0
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
        is_replaced=phase in step.stand_ins,
        all_replaced=step.stand_ins.issuperset(step.on),
        in_pairs=way.in_pairs,
    )


def _verdict_times(hours: Sequence[Hour], verdicts: Sequence[Verdict]) -> dict[Verdict, str]:
    """Return verdict -> its times as text, the best verdict first."""
    found: dict[Verdict, list[Hour]] = {each: [] for each in SEVERITY}
    for hour, verdict in zip(hours, verdicts, strict=True):
        found[verdict].append(hour)
    return {verdict: describe_times(each, hours) for verdict, each in found.items() if each}


def _missed_share(way: _Way, steps: Sequence[_Step]) -> float | None:
    """Return the largest share of any phase's demand that is missed if the change is carried out by `way` at `steps`.

    Return None if a demand is unknown.
    """
    missed = [
        step.hour.loads[phase].missed_during(_min_serving(way, step, phase)) for step in steps for phase in step.on
    ]
    return None if None in missed else max((each for each in missed if each is not None), default=0.0)


def _lowest_capacity(way: _Way, phase: Phase, steps: Sequence[_Step]) -> tuple[int, int]:
    """Return (units that serve, units that are on) of the hour with the lowest share of units that serve."""
    found = [(_min_serving(way, step, phase), len(step.on[phase])) for step in steps if step.on[phase]]
    return min(found, key=lambda each: each[0] / each[1])
