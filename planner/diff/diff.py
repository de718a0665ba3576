"""Compare two plans by a pure function, which reads no file and asks no cluster.

Figures are rows of both plans' reports, matched by section and name. Pods are compared as rendered, so a reviewer sees
what the objects that would be applied change.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from planner.diff.change import (
    Change,
    DayCost,
    DecisionSides,
    LossSides,
    NodeMoves,
    Sides,
    SpecField,
    State,
    StateSides,
    WarningMoves,
    WarningSides,
    Yardsticks,
)
from planner.diff.clients import LONGEST_REQUEST, find_client_fields
from planner.diff.experts import count_expert_moves, estimate_weight_reads
from planner.diff.former import compare_loads, explain_unknown_loads
from planner.diff.hours import Hour, cut_hours, moved_zones
from planner.diff.net import compare_days
from planner.diff.pods import compare_pods
from planner.diff.rollout import find_shortages, judge_rollouts, may_take_turns, rollout_assumptions, worst_rollout
from planner.diff.unjudged import find_unjudged
from planner.diff.wording import COSTS, SPEEDS
from planner.diff.yardsticks import Remeasured, measure_by_former
from planner.estimate.failures import Loss
from planner.facts.terms import PHASES, Phase
from planner.plan.expected import Promise
from planner.plan.plan import Plan
from planner.plan.row import Row
from planner.problems.finding import Finding
from planner.report.report import Report
from planner.report.rows import rows_of
from planner.spec.decision import AS_BEFORE, DEFAULT, FIELDS

NUMBERS = re.compile(r"[\d.,:%\s-]+")
NO_FIGURES = "a rendered folder keeps none"
NOT_OLD = "as in the plan that the new one was made near, which is not the old one here"
TRAFFIC = "tokens_per_day"
UNSHOWN = ("tokens_per_s_per_unit", "not_predicted", "hours_beyond")  # figures of a phase that have no line


def compare_plans(
    before: Plan,
    after: Plan,
    notes: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
    no_figures: str = "",
    judged: Plan | None = None,
    remeasured: Remeasured | None = None,
    added: Sequence[str] = (),
    edits: Mapping[str, str | None] | None = None,
) -> Change:
    """Return the effects of changing from the plan `before` to the plan `after`.

    `notes` say how the plans were obtained. `files` are the manifests of `after`, if these are rendered already.
    `no_figures` is the reason why `before` has no figures. It is empty for a rendered folder, which keeps none.
    `judged` is `before` with its figures for the expert loads of `after`, as `former.py` makes it. `remeasured` is
    `after` under the yardsticks of `before`, as `yardsticks.py` makes it; without it these figures are unknown. `added`
    names what else changes in pod templates. `edits` are the manifests of the folder of `before` that its plan renders
    differently.

    Raises InfeasibleError if an engine cannot run its plan, because there are no pods to compare then.
    """
    units = compare_pods(before, after, files, added, edits)
    loads = compare_loads(before, after, is_judged=judged is not None and judged is not before)
    unknown_loads = tuple(explain_unknown_loads(before, after))
    remeasured = remeasured or measure_by_former(before, after)
    yardsticks = _yardsticks(before, remeasured)
    by_former = (before, remeasured.plan) if remeasured.plan and remeasured.counts else None
    before = judged or before
    hours = cut_hours(before, after, by_former)
    ways = judge_rollouts(before, after, units, hours)
    worst = worst_rollout(ways)
    clients = tuple(find_client_fields(before, after))
    performance, cost = _compare_figures(before, after)
    return Change(
        name=after.name,
        old=before.digest,
        new=after.digest,
        verdict=worst.verdict,
        minutes=worst.minutes,
        least_capacity=worst.least_capacity,
        ways=ways,
        shortages=tuple(find_shortages(after, hours)),
        may_take_turns=may_take_turns(after),
        compared=tuple(notes),
        loads=loads,
        yardsticks=yardsticks,
        clients=clients,
        unjudged=tuple(find_unjudged(before, after, _named_fields(clients), added)),
        decided=tuple(_decisions(before, after)),
        units=units,
        experts=count_expert_moves(before, after),
        weights=estimate_weight_reads(after, units),
        nodes=_nodes(before, after),
        schedule=_schedule(before, after),
        performance=performance,
        former_promises=_former_promises(before, after),
        cost=cost,
        net=compare_days(before, after, hours),
        cost_of_other_days=tuple(_cost_of_days(before, after, remeasured.plan, hours)),
        failures={phase: _failures(before, after, phase) for phase in _phases(before, after)},
        warnings=_warnings(before, after),
        assumed=(
            *_explain_unknown(before, after, no_figures),
            *unknown_loads,
            *rollout_assumptions(before, after, units),
        ),
    )


def _explain_unknown(before: Plan, after: Plan, no_figures: str) -> Iterator[str]:
    """Yield a sentence for each plan without estimates: why its figures are unknown."""
    for word, plan, why in (("before", before, no_figures or NO_FIGURES), ("after", after, NO_FIGURES)):
        if plan.report is None:
            yield f"figures {word} the change are unknown: {why}"


def _yardsticks(before: Plan, remeasured: Remeasured) -> Yardsticks | None:
    plan = remeasured.plan
    if not remeasured.moved:
        return None
    performance, cost = _compare_figures(before, plan) if plan else ({}, Sides(before={}, after={}))
    return Yardsticks(
        moved=remeasured.moved,
        counts=remeasured.counts,
        performance=performance,
        cost=cost,
        promises=plan.promises if plan else {},
        unknown=remeasured.unknown,
    )


def _named_fields(clients: Sequence[SpecField]) -> set[str]:
    """Return the paths of fields that the diff names with their effect."""
    paths = {each.path for each in clients}
    return paths | {f"{phase}.{LONGEST_REQUEST}" for phase in PHASES if LONGEST_REQUEST in paths}


def _former_promises(before: Plan, after: Plan) -> dict[str, Promise | None]:
    """Return the promises of `before`, without the hours in which they were missed if the time zones differ."""
    if moved_zones(before, after) is None:
        return before.promises
    return {name: each and each.model_copy(update={"misses": None}) for name, each in before.promises.items()}


def _decisions(before: Plan, after: Plan) -> Iterator[DecisionSides]:
    """Yield the sizes of units that the planner decided and that differ between the plans."""
    decided = {each.path: each for each in after.decisions if each.why != DEFAULT}
    for phase in (each for each in after.phases if each in before.phases):
        for field in FIELDS:
            new, old = decided.get(f"{phase}.{field}"), getattr(before.spec.phase(phase), field)
            if new is not None and new.value != old:
                why = NOT_OLD if new.why == AS_BEFORE else new.why
                yield DecisionSides(path=new.path, before=old, after=new.value, why=why)


def _phases(before: Plan, after: Plan) -> list[Phase]:
    return list(dict.fromkeys([*after.phases, *before.phases]))


def _nodes(before: Plan, after: Plan) -> NodeMoves:
    old, new = ([node for unit in plan.units for node in unit.nodes] for plan in (before, after))
    taken, freed = set(new) - set(old), set(old) - set(new)
    return NodeMoves(
        taken=tuple(node for node in new if node in taken), freed=tuple(node for node in old if node in freed)
    )


def _schedule(before: Plan, after: Plan) -> StateSides | None:
    if before.timetable is None and after.timetable is None:
        return None
    is_executed = not any(_stays_on(plan) for plan in (before, after))
    return StateSides(before=_states(before), after=_states(after), is_executed=is_executed)


def _stays_on(plan: Plan) -> bool:
    """Return whether all units stay on although the schedule switches some off, for lack of a controller."""
    return plan.switches_units and plan.kubernetes.controller is None


def _states(plan: Plan) -> tuple[State, ...]:
    """Return the states of an ordinary day. Without a schedule there is a single one with all units on."""
    if plan.timetable is None:
        units = {phase: len(plan.units_of(phase)) for phase in PHASES if phase in plan.phases}
        return (State(at="00:00", nodes=sum(len(unit.nodes) for unit in plan.units), units=units),)
    return tuple(
        State(
            at=step.at,
            nodes=step.num_nodes,
            units={phase: step.num_units[phase] for phase in PHASES if phase in plan.phases},
        )
        for step in plan.timetable.steps
    )


def _compare_figures(before: Plan, after: Plan) -> tuple[dict[Phase, Sides], Sides]:
    """Return (what is compared of each phase's speed and load, of a day's cost)."""
    reports = [(plan, Report(() if plan.report is None else rows_of(plan))) for plan in (before, after)]
    performance = {}
    for phase in _phases(before, after):
        old, new = (_performance(plan, report, phase) for plan, report in reports)
        performance[phase] = Sides(before=old, after=new)
    old, new = (_figures(report, ["cost"], COSTS) for _, report in reports)
    return performance, Sides(before=old, after=new)


def _performance(plan: Plan, report: Report, phase: Phase) -> dict[str, Row]:
    """Return the rows that a diff compares of a phase's speed and load, by name."""
    sections, names = (f"performance.{phase}", f"demand.{phase}"), (*SPEEDS, *UNSHOWN)
    return _traffic(plan, phase) | _figures(report, sections, names)


def _traffic(plan: Plan, phase: Phase) -> dict[str, Row]:
    """Return the tokens that a day's traffic asks of a phase; empty if the plan has no traffic or no figures."""
    if plan.report is None or plan.spec.traffic is None:
        return {}
    return {TRAFFIC: Row(f"demand.{phase}", TRAFFIC, plan.spec.traffic.tokens_of(phase), "")}


def _cost_of_days(before: Plan, after: Plan, by_former: Plan | None, hours: Sequence[Hour]) -> Iterator[DayCost]:
    for day in dict.fromkeys(hour.day for hour in hours if hour.day.names):
        usd = [None if plan is None else plan.usd_of_day(day.names[0]) for plan in (before, after, by_former)]
        yield DayCost(days=day.names, before=usd[0], after=usd[1], after_by_former=usd[2])


def _figures(report: Report, sections: Sequence[str], names: Iterable[str]) -> dict[str, Row]:
    rows = ((name, report.find(section, name)) for section in sections for name in names)
    return {name: row for name, row in rows if row is not None}


def _failures(before: Plan, after: Plan, phase: Phase) -> LossSides:
    old, new = ((plan.failures or {}).get(phase, {}) for plan in (before, after))
    on = [_fewest_units_on(plan, phase) for plan in (before, after)]
    if on != [len(plan.units_of(phase)) for plan in (before, after)]:
        old, new = (losses | _losses_at_fewest(losses, number) for losses, number in zip((old, new), on, strict=True))
    return LossSides(before=old, after=new)


def _fewest_units_on(plan: Plan, phase: Phase) -> int:
    """Return the number of units of `phase` that are on while the fewest are, without times at which none is."""
    steps = plan.running_schedule.all_steps if plan.running_schedule else ()
    on = [number for step in steps if (number := step.num_units.get(phase))]
    return min(on, default=len(plan.units_of(phase)))


def _losses_at_fewest(losses: Mapping[str, Loss], units_on: int) -> dict[str, Loss]:
    """Return the loss by the smallest failure domain while only `units_on` units are on."""
    return {
        f"{domain}, while fewest units are on": Loss(units=min(loss.units, units_on), of_units=units_on, at=loss.at)
        for domain, loss in [*losses.items()][:1]
    }


def _warnings(before: Plan, after: Plan) -> WarningMoves:
    """Compare warnings by their words, ignoring numbers and files.

    A plan without estimates, as in rendered folders, has no warnings to compare.
    """
    if before.report is None or after.report is None:
        return WarningMoves(new=(), gone=(), changed=())
    old, new = ({_wording_key(each): each for each in plan.warnings} for plan in (before, after))
    return WarningMoves(
        new=tuple(each for said, each in new.items() if said not in old),
        gone=tuple(each for said, each in old.items() if said not in new),
        changed=tuple(
            WarningSides(before=old[said], after=each)
            for said, each in new.items()
            if said in old and old[said].rule_and_reason != each.rule_and_reason
        ),
    )


def _wording_key(warning: Finding) -> tuple[str, str]:
    return warning.path, NUMBERS.sub(" ", warning.rule_and_reason)
