"""Estimate the cost and income of days that differ from the expected one: other speeds, traffic and GPU prices.

The units and their schedule stay as planned. Another plan would follow more traffic with more units: plan the changed
spec for that.
"""

from collections.abc import Iterator, Mapping, Sequence

from planner.cost.cost import Case, estimate_cost
from planner.facts.terms import Phase
from planner.layout.unit import Unit
from planner.schedule.schedule import DaySchedule
from planner.spec.schema import Spec

__all__ = ["estimate_cases"]

CHANGES = {"20% less": 0.8, "20% more": 1.2}

Rates = Mapping[Phase, float]


def estimate_cases(
    spec: Spec,
    schedule: DaySchedule | None,
    units: Sequence[Unit],
    most_per_node: Rates,
    ends: Mapping[Phase, tuple[float, float]],
) -> tuple[Case, ...]:
    """Return the cost and income of each other day; none if the spec has no `cost`.

    `most_per_node` has maximum tokens/s, and `ends` the slowest and the fastest speed over the expected one.
    """
    found = []
    for name, changed, rates in _cases(spec, most_per_node, ends):
        cost = estimate_cost(changed, schedule, units, rates)
        if cost is not None:
            income = cost.revenue_usd_per_day
            found.append(
                Case(
                    name=name,
                    usd_per_day=cost.usd_per_day,
                    answered_share=cost.answered_share,
                    revenue_usd_per_day=income,
                    margin=cost.margin,
                )
            )
    return tuple(found)


def _cases(
    spec: Spec, most_per_node: Rates, ends: Mapping[Phase, tuple[float, float]]
) -> Iterator[tuple[str, Spec, Rates]]:
    """Yield (name, spec, maximum rates) of each case."""
    if spec.traffic is not None and most_per_node:
        for end, name in enumerate(("the slowest speed", "the fastest speed")):
            yield name, spec, {phase: rate * ends[phase][end] for phase, rate in most_per_node.items()}
    for words, factor in CHANGES.items():
        if spec.traffic is not None:
            yield f"{words} traffic", _with_traffic(spec, factor), most_per_node
    for words, factor in CHANGES.items():
        yield f"GPU-hours for {words}", _with_price(spec, factor), most_per_node


def _with_traffic(spec: Spec, factor: float) -> Spec:
    traffic = spec.traffic
    assert traffic is not None
    tokens = {"input_tokens": traffic.input_tokens * factor, "output_tokens": traffic.output_tokens * factor}
    return spec.model_copy(update={"traffic": traffic.model_copy(update=tokens)})


def _with_price(spec: Spec, factor: float) -> Spec:
    cost = spec.cost
    if cost is None:
        return spec
    supplies = [each.model_copy(update={"usd_per_gpu_hour": each.usd_per_gpu_hour * factor}) for each in cost.supplies]
    rates = {"usd_per_gpu_hour": cost.usd_per_gpu_hour * factor, "supplies": supplies}
    return spec.model_copy(update={"cost": cost.model_copy(update=rates)})
