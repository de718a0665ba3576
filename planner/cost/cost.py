"""Compute the cost and income of a day of the plan.

    cost     = sum over stretches of the day: nodes taken, and spares, x GPUs of a node x hours x rate
    taken    = nodes of units that serve, warm up or drain
    answered = share of a stretch's tokens that no phase refuses: the least over phases of min(1, maximum rate of its
               nodes / its demand); 0 while a phase has no unit on
    income   = sum over stretches: answered x tokens x price
    margin   = (income - cost) / income
    markup   = (income - cost) / cost
    freed    = node-hours, out of the peak's nodes, for which nodes are not taken, valued at the common rate

Worked example, DeepSeek's day: 226.75 nodes in use on average x 8 GPUs x 24 h x $2 = $87,072. 608e9 prompt tokens,
56.3 % of them hits, at $0.14 and $0.55 a million, and 168e9 output tokens at $2.19 are $561,975 if all are answered: a
margin of 84.5 %, and a markup of 545 %, which is published as "cost profit margin". A plan in which that many nodes
serve takes more of them: with a warm-up of 10 min and a drain of 5 min they are 228.94, for $87,912.

The planner decides nothing by cost. No request waits for a quieter hour: demand beyond the units' maximum rate is
refused.

Source: open-infra-index, open source week, day 6 (cost, income and markup, and their limits).
"""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import fsum
from typing import Annotated, NamedTuple

from pydantic import Field

from planner.facts.day import DAY_MINUTES, HOUR_MINUTES, MINUTE_S
from planner.facts.part import ClockTime, Part
from planner.facts.terms import Phase
from planner.layout.unit import Unit
from planner.schedule.schedule import Timetable
from planner.schedule.stretches import (
    Stretch,
    TimesOfDay,
    demand_shares,
    entry_starts,
    nodes_on,
    nodes_taken,
    stretches_between,
)
from planner.spec.cost import MILLION, CostSpec
from planner.spec.schema import Spec
from planner.spec.traffic import HOURS

MAX_CASES = 100  # what-if days; a plan has ten
CHANGES = {"20% less": 0.8, "20% more": 1.2}  # of traffic and prices, in what-if cases

Rates = Mapping[Phase, float]


class StateCost(Part):
    """The cost of one step of the schedule or, without a schedule, of the whole day."""

    at: ClockTime
    minutes: int
    nodes: int  # of units that serve; dollars are for those that warm up or drain too
    usd: float
    usd_per_hour: float
    input_tokens: float | None  # None if there is no traffic
    output_tokens: float | None
    answered_share: float  # of input and output tokens; 1 without tokens
    revenue_usd: float | None  # None if there are no prices
    margin: float | None


class PhaseCost(Part):
    """The cost of one phase's nodes for the hours in which they are taken."""

    usd_per_day: float
    mean_nodes: float  # nodes of units that warm up or drain included
    usd_per_million_tokens: float | None  # per prompt token, cache hits included, or per output token; None: mixed


class Freed(Part):
    """The node-hours a day in which nodes that serve at the peak are not taken, and their price.

    The price is in US dollars, at the common rate.
    """

    node_hours_per_day: float
    usd_per_day: float


class Case(Part):
    """A what-if day with the plan's units, such as one with more traffic."""

    name: Annotated[str, Field(pattern=r"^[0-9a-zA-Z%-]+( [0-9a-zA-Z%-]+)+$")]
    usd_per_day: float
    answered_share: float | None  # None if there is no traffic
    revenue_usd_per_day: float | None  # None if there are no prices
    margin: float | None


class Cost(Part):
    """The cost and income of a day in US dollars. A figure is null if the spec lacks the traffic or prices for it."""

    usd_per_day: float
    spares_usd_per_day: float
    usd_per_million_input_tokens: float | None  # the whole bill over input tokens alone
    usd_per_million_output_tokens: float | None
    answered_share: float | None  # of the day's tokens
    speed_unknown: tuple[Phase, ...]  # phases with unknown speed; assumed to answer everything while a unit is on
    revenue_usd_per_day: float | None
    revenue_if_all_answered_usd_per_day: float | None
    margin: float | None
    markup: float | None
    phases: dict[Phase, PhaseCost]
    states: Annotated[tuple[StateCost, ...], Field(max_length=DAY_MINUTES)]
    freed: Freed
    cases: Annotated[tuple[Case, ...], Field(max_length=MAX_CASES, exclude_if=operator.not_)] = ()


class _Tokens(NamedTuple):
    """The tokens of a day, or of a part of it."""

    hits: float  # prompt tokens found in a cache
    computed: float  # other prompt tokens
    output: float

    @property
    def prompts(self) -> float:
        return self.hits + self.computed


class _PricedStretch(NamedTuple):
    """One stretch of the day with its nodes, cost and income."""

    stretch: Stretch
    nodes: Mapping[Phase, int]  # of units that serve
    taken: Mapping[Phase, float]
    spares_usd: float
    phases_usd: Mapping[Phase, float]
    demand: float  # share of the day's tokens that arrive in the stretch
    answered: float  # share of the day's tokens that arrive in the stretch and are answered
    revenue_usd: float
    asked_usd: float  # income if all were answered

    @property
    def usd(self) -> float:
        return sum(self.phases_usd.values()) + self.spares_usd


def estimate_cost(
    spec: Spec, schedule: Timetable | None, units: Sequence[Unit], most_per_node: Mapping[Phase, float]
) -> Cost | None:
    """Return a day's cost and income for `spec` with its placed `units`, or None if the spec has no `cost`.

    `most_per_node` has the maximum tokens/s of a node of each phase with a known speed.
    """
    if spec.cost is None:
        return None
    priced = _price_stretches(spec, spec.cost, schedule, units, most_per_node)
    phases = {phase: _phase_cost(spec, phase, priced) for phase in spec.phases}
    usd = fsum(each.usd for each in priced)
    answered = _mean_answered_share(priced)
    sold = _tokens_for_share(spec, answered)
    is_sold = spec.traffic is not None and spec.cost.prices is not None
    revenue_usd = fsum(each.revenue_usd for each in priced) if is_sold else None
    return Cost(
        usd_per_day=usd,
        spares_usd_per_day=fsum(each.spares_usd for each in priced),
        usd_per_million_input_tokens=_per_million(usd, sold.prompts),
        usd_per_million_output_tokens=_per_million(usd, sold.output),
        answered_share=answered if spec.traffic else None,
        speed_unknown=tuple(phase for phase in spec.phases if spec.traffic and phase not in most_per_node),
        revenue_usd_per_day=revenue_usd,
        revenue_if_all_answered_usd_per_day=fsum(each.asked_usd for each in priced) if is_sold else None,
        margin=profit_margin(revenue_usd, usd),
        markup=(revenue_usd - usd) / usd if revenue_usd is not None and usd else None,
        phases=phases,
        states=_price_states(spec, schedule, priced),
        freed=_sum_freed(spec, priced),
    )


def profit_margin(revenue_usd: float | None, usd: float | None) -> float | None:
    """Return the share of income left after the cost; None if there is no income or an amount is missing."""
    return (revenue_usd - usd) / revenue_usd if revenue_usd and usd is not None else None


def with_cases(found: Cost, cases: Iterable[tuple[str, Cost | None]]) -> Cost:
    """Return `found` with what-if cases: the name and the cost of each."""
    figures = Case.model_fields.keys() - {"name"}
    known = (Case(name=name, **{each: getattr(cost, each) for each in figures}) for name, cost in cases if cost)
    return found.model_copy(update={"cases": tuple(known)})


def list_cases(
    spec: Spec, most_per_node: Rates, ends: Mapping[Phase, tuple[float, float]]
) -> Iterator[tuple[str, Spec, Rates]]:
    """Yield (name, spec, maximum tokens/s of a node by phase) of each what-if case for a spec with a `cost`.

    Units are slower or faster, traffic is less or more, GPU-hours are cheaper or dearer. The units and their schedule
    stay as planned: to see how a plan would follow other traffic with other units, plan the changed spec.
    `most_per_node` has the expected maximum tokens/s, and `ends` the slowest and fastest speed over the expected speed.
    """
    if spec.traffic is not None and most_per_node:
        for end, name in enumerate(("the slowest speed", "the fastest speed")):
            yield name, spec, {phase: rate * ends[phase][end] for phase, rate in most_per_node.items()}
    for words, factor in CHANGES.items():
        if spec.traffic is not None:
            yield f"{words} traffic", _with_traffic(spec, factor), most_per_node
    for words, factor in CHANGES.items():
        yield f"GPU-hours for {words}", _with_price(spec, factor), most_per_node


def _price_stretches(
    spec: Spec,
    cost: CostSpec,
    schedule: Timetable | None,
    units: Sequence[Unit],
    most_per_node: Mapping[Phase, float],
) -> tuple[_PricedStretch, ...]:
    """Return the day's stretches, each with its cost, demand and income."""
    by_phase = {phase: [unit for unit in units if unit.phase == phase] for phase in spec.phases}
    on = nodes_on(schedule, {phase: [len(unit.nodes) for unit in each] for phase, each in by_phase.items()})
    by_minute = {phase: nodes_taken(schedule, each) for phase, each in by_phase.items()}
    entries = entry_starts(spec.traffic.profile if spec.traffic else None)
    stretches = stretches_between([*entries, *on.starts])
    shares = demand_shares(spec.traffic.profile if spec.traffic else None, stretches)
    priced = []
    for stretch, share in zip(stretches, shares, strict=True):
        nodes, minutes = on.at(stretch.start), slice(stretch.start, stretch.start + stretch.minutes)
        taken = {phase: fsum(each[minutes]) / stretch.minutes for phase, each in by_minute.items()}
        answered = share * _answered_share(spec, stretch, share, nodes, most_per_node)
        asked, sold = _tokens_for_share(spec, share), _tokens_for_share(spec, answered)
        priced.append(
            _PricedStretch(
                stretch=stretch,
                nodes=nodes,
                taken=taken,
                spares_usd=_node_cost(spec, cost, spec.cluster.gpu_name, len(spec.cluster.spares), stretch),
                phases_usd={p: _node_cost(spec, cost, spec.gpu_name(p), each, stretch) for p, each in taken.items()},
                demand=share,
                answered=answered,
                revenue_usd=cost.prices.income_usd(*sold) if cost.prices else 0.0,
                asked_usd=cost.prices.income_usd(*asked) if cost.prices else 0.0,
            )
        )
    return tuple(priced)


def _answered_share(
    spec: Spec, stretch: Stretch, share: float, nodes: Mapping[Phase, int], most_per_node: Mapping[Phase, float]
) -> float:
    """Return the share of a stretch's tokens that is answered. A request refused by one phase loads no other phase.

    `share` is the stretch's share of the day's tokens, `nodes` the number of each phase's nodes that are on. The result
    is 0 without traffic, or while a phase has no node on. A phase of unknown speed refuses nothing.
    """
    if spec.traffic is None or not all(nodes.values()):
        return 0.0
    most = (
        number * most_per_node[phase] * stretch.minutes * MINUTE_S / asked
        for phase, number in nodes.items()
        if phase in most_per_node and (asked := spec.traffic.tokens_of(phase) * share)
    )
    return min([1.0, *most])


def _node_cost(spec: Spec, cost: CostSpec, gpu: str, number: float, stretch: Stretch) -> float:
    """Return the dollars that `number` nodes with GPUs of the model `gpu` cost in a stretch."""
    return number * (cost.rate_of(gpu) * spec.cluster.gpus_per_node * stretch.hours)


def _tokens_for_share(spec: Spec, share: float) -> _Tokens:
    """Return the tokens that make up a `share` of the day's traffic; zero tokens without traffic."""
    traffic = spec.traffic
    if traffic is None:
        return _Tokens(0.0, 0.0, 0.0)
    tokens = traffic.input_tokens * share
    hits = tokens * traffic.cache_hit_rate
    return _Tokens(hits, tokens - hits, traffic.output_tokens * share)


def _per_million(usd: float, tokens: float) -> float | None:
    """Return the dollars per million tokens if `tokens` tokens cost `usd`; None if there are no tokens."""
    return usd / tokens * MILLION if tokens else None


def _price_states(spec: Spec, schedule: Timetable | None, priced: Sequence[_PricedStretch]) -> tuple[StateCost, ...]:
    """Return the cost of each step of the schedule, in order. Without a schedule, return the cost of the whole day."""
    if schedule is None:
        return (_state(spec, "00:00", priced),)
    begins = TimesOfDay.from_pairs(((step.at, step.at) for step in schedule.steps), "")
    of_step: dict[str, list[_PricedStretch]] = {step.at: [] for step in schedule.steps}
    for each in priced:
        of_step[begins.at(each.stretch.start)].append(each)
    return tuple(_state(spec, at, inside) for at, inside in of_step.items())


def _state(spec: Spec, at: str, priced: Sequence[_PricedStretch]) -> StateCost:
    demand, minutes = fsum(each.demand for each in priced), sum(each.stretch.minutes for each in priced)
    usd = fsum(each.usd for each in priced)
    revenue_usd = fsum(each.revenue_usd for each in priced) if spec.cost and spec.cost.prices else None
    return StateCost(
        at=at,
        minutes=minutes,
        nodes=sum(priced[0].nodes.values()),
        usd=usd,
        usd_per_hour=usd / minutes * HOUR_MINUTES,
        input_tokens=spec.traffic.input_tokens * demand if spec.traffic else None,
        output_tokens=spec.traffic.output_tokens * demand if spec.traffic else None,
        answered_share=_mean_answered_share(priced),
        revenue_usd=revenue_usd,
        margin=profit_margin(revenue_usd, usd),
    )


def _mean_answered_share(priced: Sequence[_PricedStretch]) -> float:
    """Return the share of the stretches' demand that is answered; 1 without demand."""
    demand = fsum(each.demand for each in priced)
    return fsum(each.answered for each in priced) / demand if demand else 1.0


def _sum_freed(spec: Spec, priced: Sequence[_PricedStretch]) -> Freed:
    peak = max(sum(each.nodes.values()) for each in priced)
    node_hours = max(0.0, fsum((peak - sum(each.taken.values())) * each.stretch.hours for each in priced))
    rate = spec.cost.usd_per_gpu_hour if spec.cost else 0.0
    return Freed(node_hours_per_day=node_hours, usd_per_day=node_hours * spec.cluster.gpus_per_node * rate)


def _phase_cost(spec: Spec, phase: Phase, priced: Sequence[_PricedStretch]) -> PhaseCost:
    sold = _tokens_for_share(spec, fsum(each.answered for each in priced))
    usd = fsum(each.phases_usd[phase] for each in priced)
    return PhaseCost(
        usd_per_day=usd,
        mean_nodes=fsum(each.taken[phase] * each.stretch.hours for each in priced) / HOURS,
        usd_per_million_tokens=_per_million(usd, {"prefill": sold.prompts, "decode": sold.output}.get(phase, 0.0)),
    )


def _with_traffic(spec: Spec, factor: float) -> Spec:
    traffic = spec.traffic
    assert traffic is not None
    tokens = {"input_tokens": traffic.input_tokens * factor, "output_tokens": traffic.output_tokens * factor}
    return spec.model_copy(update={"traffic": traffic.model_copy(update=tokens)})


def _with_price(spec: Spec, factor: float) -> Spec:
    cost = spec.cost
    if cost is None:
        return spec
    gpus = {gpu: usd * factor for gpu, usd in cost.gpus.items()}
    rates = {"usd_per_gpu_hour": cost.usd_per_gpu_hour * factor, "gpus": gpus}
    return spec.model_copy(update={"cost": cost.model_copy(update=rates)})
