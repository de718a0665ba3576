"""What a change makes of a day in dollars, and of what all units together compute: both plans on one basis.

Both are of the ordinary day as it runs: without `kubernetes.controller` all units stay on, and cost that.
"""

from collections.abc import Iterator

from planner.diff.change import Net
from planner.facts.terms import PHASES, Phase
from planner.plan.plan import Plan
from planner.report.as_run import as_run


def compare_days(before: Plan, after: Plan) -> Net:
    """Return a day's income less its cost before and after the change, and the capacity of phases in both plans."""
    has_income = all(plan.cost and plan.cost.revenue_usd_per_day is not None for plan in (before, after))
    old, new = (_usd_left(plan, has_income=has_income) for plan in (before, after))
    known = {phase: (_capacity(before, phase), _capacity(after, phase)) for phase in PHASES}
    capacity = {phase: (one, other) for phase, (one, other) in known.items() if one is not None and other is not None}
    return Net(has_income=has_income, before=old, after=new, capacity=capacity)


def describe_net(net: Net) -> Iterator[str]:
    """Yield the line on what the change costs a day, and on the capacity."""
    parts = []
    if net.before is not None and net.after is not None:
        more = round(net.after - net.before)
        effect = f"{'brings' if more > 0 else 'costs'} ${abs(more):,} a day" if more else "costs nothing"
        left = f" ({_usd(net.before)} -> {_usd(net.after)} left of a day's income)"
        parts.append(f"the change {effect}{left if net.has_income else ', income aside'}")
    rates = [f"{phase} {_rates(*sides)}" for phase, sides in net.capacity.items()]
    parts += [f"capacity of all units, tokens/s: {', '.join(rates)}"] if rates else []
    if parts:
        yield "; ".join(parts)


def _usd_left(plan: Plan, *, has_income: bool) -> float | None:
    """Return a day's income less its cost, in dollars; None without a price.

    Income counts as 0 unless `has_income`.
    """
    cost = as_run(plan).cost
    if cost is None:
        return None
    return (cost.revenue_usd_per_day or 0.0) * has_income - cost.usd_per_day


def _capacity(plan: Plan, phase: Phase) -> float | None:
    """Return the tokens/s of all units of `phase` at the expected speed; None if the speed is not known."""
    found = (plan.performance or {}).get(phase)
    rate = found and found.tokens_per_s_per_unit
    return rate.mid * len(plan.units_of(phase)) if rate else None


def _usd(usd: float) -> str:
    return f"{'-' if usd < 0 else ''}${abs(usd):,.0f}"


def _rates(before: float, after: float) -> str:
    return f"{before:,.0f}" if before == after else f"{before:,.0f} -> {after:,.0f}"
