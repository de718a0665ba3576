"""What a change makes of a day in dollars, and of what all units together compute: both plans on one basis.

Both are of the ordinary day as it runs: without `kubernetes.controller` all units stay on, and cost that.
"""

from collections.abc import Iterator, Sequence

from planner.diff.change import Net, NetSides
from planner.diff.hours import LEAST_SHARE, Hour
from planner.facts.terms import PHASES, Phase
from planner.plan.plan import Plan


def compare_days(before: Plan, after: Plan, hours: Sequence[Hour]) -> Net:
    """Return a day's bill and income before and after the change, and the capacity of phases in both plans.

    `hours` are those of all kinds of day.
    """
    old, new = before.cost, after.cost
    known = {phase: (_capacity(before, phase), _capacity(after, phase)) for phase in PHASES}
    return Net(
        bill=(old.usd_per_day, new.usd_per_day) if old and new else None,
        income=_sides(old.revenue_usd_per_day, new.revenue_usd_per_day) if old and new else None,
        capacity={phase: sides for phase, each in known.items() if (sides := _sides(*each)) is not None},
        on_demand=_lost_on_demand(before, after),
        at_an_hour=_lost_at_an_hour(before, after, hours),
    )


def describe_net(net: Net) -> Iterator[str]:
    """Yield the line on what the change makes of a day's bill and income, and of the capacity."""
    parts = [_describe_usd(net.bill, net.income)] if net.bill else []
    rates = [f"{phase} {_rates(*sides)}" for phase, sides in net.capacity.items()]
    parts += [f"capacity of all units, tokens/s: {', '.join(rates)}"] if rates else []
    parts += describe_lost(net)
    if parts:
        yield "; ".join(parts)


def describe_lost(net: Net) -> Iterator[str]:
    """Say that `kubernetes.controller.demand` may start less, and that less is on without a former demand to ask."""
    whys = (
        ("kubernetes.controller.demand may start less", net.on_demand),
        ("no former traffic says that less is enough at an hour", net.at_an_hour),
    )
    for why, lost in whys:
        if lost:
            yield f"{why}: {', '.join(f'{what} {_rates(*sides)}' for what, sides in lost.items())}"


def _lost_on_demand(before: Plan, after: Plan) -> dict[str, NetSides]:
    """Return what the old plan's controller may have on for demand beyond the schedule, where the new one's has less.

    These are the GPUs of a phase's units, and the nodes of the largest state.
    """
    controller = before.kubernetes.controller
    if controller is None or controller.demand is None or before.timetable is None:
        return {}
    old, new = (
        {f"GPUs of {phase}": sum(unit.ranks for unit in plan.units_of(phase)) for phase in before.phases}
        | {"nodes": plan.timetable.peak_nodes if plan.timetable else sum(len(unit.nodes) for unit in plan.units)}
        for plan in (before, after)
    )
    return {what: (number, new[what]) for what, number in old.items() if new[what] < number}


def _lost_at_an_hour(before: Plan, after: Plan, hours: Sequence[Hour]) -> dict[str, NetSides]:
    """Return what units that are on have less of after the change, in the hour that loses most, if traffic is new.

    Without former traffic no load before is known. Speed alone does not tell: it is predicted for the new traffic.
    """
    if before.spec.traffic is not None or after.spec.traffic is None or before.digest == after.digest:
        return {}
    found: dict[str, NetSides] = {}
    for phase in before.phases:
        for what, of_unit in (("GPUs of", _unit_gpus), ("tokens/s of", _unit_rate)):
            old, new = (of_unit(plan, phase) for plan in (before, after))
            if old is not None and new is not None:
                sides = ((load.before * old, load.after * new) for load in (hour.loads[phase] for hour in hours))
                was, now = min(sides, key=lambda each: each[1] - each[0])
                found |= {f"{what} {phase}": (was, now)} if now < was * (1 - LEAST_SHARE) else {}
    return found


def _describe_usd(bill: NetSides, income: NetSides | None) -> str:
    """Say how bill and income move, and what that costs or brings a day."""
    if income is None:
        return f"the bill {_move(*bill)}, income aside"
    left = [round(earned - paid) for paid, earned in zip(bill, income, strict=True)]
    more = left[1] - left[0]
    effect = f"{'brings' if more > 0 else 'costs'} ${abs(more):,} a day" if more else "costs nothing"
    moves = f"the bill {_move(*bill)}, income {_move(*income)}"
    return f"{moves}: the change {effect} ({_usd(left[0])} -> {_usd(left[1])} left of a day's income)"


def _move(before: float, after: float) -> str:
    """Say how a day's dollars move: `rises $544 a day`."""
    more = round(after - before)
    return f"{'rises' if more > 0 else 'falls'} ${abs(more):,} a day" if more else "stays"


def _sides(before: float | None, after: float | None) -> NetSides | None:
    """Return both figures; None if either is unknown."""
    return None if before is None or after is None else (before, after)


def _capacity(plan: Plan, phase: Phase) -> float | None:
    """Return the tokens/s of all units of `phase` at the expected speed; None if the speed is not known."""
    rate = _unit_rate(plan, phase)
    return rate and rate * len(plan.units_of(phase))


def _unit_rate(plan: Plan, phase: Phase) -> float | None:
    """Return a unit's tokens/s at the expected speed; None if that is not known."""
    found = (plan.performance or {}).get(phase)
    return found.tokens_per_s_per_unit.mid if found and found.tokens_per_s_per_unit else None


def _unit_gpus(plan: Plan, phase: Phase) -> int:
    return next((unit.ranks for unit in plan.units_of(phase)), 0)


def _usd(usd: float) -> str:
    return f"{'-' if usd < 0 else ''}${abs(usd):,.0f}"


def _rates(before: float, after: float) -> str:
    return f"{before:,.0f}" if before == after else f"{before:,.0f} -> {after:,.0f}"
