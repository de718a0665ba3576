"""The day that a plan really has: without `kubernetes.controller` nothing switches units, so all of them stay on.

PLAN.json has the day as scheduled, which is what the user asked for and what a controller would make of it. Text, page
and pictures tell the day as it runs, and then what a controller would change.
"""

from collections.abc import Mapping

from planner.cost.cost import Cost, estimate_cost, list_cases, with_cases
from planner.cost.demand import compute_loads
from planner.facts.day import minute_of
from planner.facts.terms import Phase
from planner.plan.expected import Demand, StretchDemand
from planner.plan.plan import Plan
from planner.schedule.stretches import TimesOfDay


def as_run(plan: Plan) -> Plan:
    """Return `plan` if its schedule is carried out; else a copy with load and cost of all units on all day."""
    if not plan.switches_units or plan.kubernetes.controller:
        return plan
    always_on = plan.with_sections(written=plan.written | {"schedule": None}, schedule=None)
    return always_on.with_sections(demand=_demand(plan), cost=_cost(plan, always_on))


def _demand(plan: Plan) -> dict[Phase, Demand] | None:
    """Return each phase's load with all units on, from a unit's rates in the scheduled day; None if unknown."""
    if plan.demand is None or plan.spec.traffic is None:
        return None
    num_units = {phase: len(plan.units_of(phase)) for phase in plan.demand}
    usual, most = (_rates_of_a_unit(plan, figure) for figure in ("served_tokens_per_s", "most_tokens_per_s"))
    loads = compute_loads(plan.spec.traffic, None, num_units, usual, most)
    return {each.phase: Demand.model_validate(each) for each in loads}


def _cost(plan: Plan, always_on: Plan) -> Cost | None:
    """Return the cost and income of the day with all units on, and of its what-if cases; None if it has no figures."""
    if plan.cost is None:
        return None
    most = {
        phase: rate / plan.phases[phase].nodes_per_unit
        for phase, rate in _rates_of_a_unit(plan, "most_tokens_per_s").items()
    }
    found = estimate_cost(always_on.spec, None, plan.units, most)
    speeds = {phase: each.tokens_per_s_per_gpu for phase, each in (plan.performance or {}).items() if phase in most}
    ends = {phase: (each.low / each.mid, each.high / each.mid) for phase, each in speeds.items() if each}
    days = list_cases(always_on.spec, most, ends)
    cases = [(name, estimate_cost(spec, None, plan.units, rates)) for name, spec, rates in days]
    return found and with_cases(found, cases)


def _rates_of_a_unit(plan: Plan, figure: str) -> Mapping[Phase, float]:
    """Return phase -> one unit's tokens/s by `figure`, a field of demands; a phase without units is left out."""
    assert plan.timetable is not None  # it switches units
    on = TimesOfDay.from_pairs(((step.at, step.num_units) for step in plan.timetable.steps), {})
    rates = dict[Phase, list[float]]()
    for phase, each in (plan.demand or {}).items():
        loads: list[Demand | StretchDemand] = [each, *each.stretches]
        units = [on.at(minute_of(load.at)).get(phase, 0) for load in loads]
        rates[phase] = [getattr(load, figure) / number for load, number in zip(loads, units, strict=True) if number]
    return {phase: max(found) for phase, found in rates.items() if found}
