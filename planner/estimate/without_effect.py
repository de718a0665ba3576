"""Warnings about fields that lack what makes them work, and prices and supplies that nobody has.

They stay warnings: jobs may give way by themselves, and spares may be named later.
"""

from collections.abc import Iterator

from planner.problems.errors import Violation
from planner.problems.fix import nearest, removal
from planner.spec.check import ResolvedSpec
from planner.spec.cost import CostSpec, PriceSpec, SupplySpec
from planner.spec.schema import Spec

__all__ = ["without_effect"]

LEAST_PRICE = 1e-4  # USD of a million tokens: assumed, a hundredth of the cheapest that are sold
MILLION = 1e6
LEAST_PERCENT = 10.0  # as a factor of prices: assumed, as no hour of a day is so much dearer
HUNDRED = 100.0
LEAST_PER_USD = 0.25  # assumed: the dearest currency, Kuwait's dinar, is about 0.31 a US dollar
OF_AUTO = {  # fields of a schedule that count only where another one is `auto`
    "windows": ("headroom", "min_units", "min_stay", "max_starts", "max_stops"),
    "drain": ("answered",),
}


def without_effect(resolved: ResolvedSpec) -> Iterator[Violation]:
    """Yield healing without spares, nodes lent for good, rules for a day that is written already, traffic that nothing
    reads, prices of one token or of no hour, nodes that are not there, and rates that nobody pays."""
    spec = resolved.written
    controller = spec.kubernetes.controller
    if controller is not None and controller.heal is not None and not spec.cluster.spares:
        rule, reason = "W127 has no spares to heal with", "a unit leaves a faulty node for one of cluster.spares"
        fix = "name nodes that no unit takes in cluster.spares, or remove heal"
        yield Violation("kubernetes.controller.heal", None, rule, reason, fix)
    if controller is not None and controller.lend_nodes and spec.kubernetes.priority_class is None:
        rule = "W128 is set without kubernetes.priority_class"
        reason = "if a job does not leave a lent node in time, the unit's pods stay pending"
        fix = "write kubernetes.priority_class: a class above that of the jobs, so that the scheduler preempts them"
        yield Violation("kubernetes.controller.lend_nodes", True, rule, reason, fix)
    yield from _of_a_written_day(resolved)
    yield from _of_traffic(resolved)
    if spec.cost is not None:
        is_list = isinstance(spec.cost.prices, list)
        for index, prices in enumerate(spec.cost.all_prices):
            place = f"cost.prices.{index}" if is_list else "cost.prices"
            yield from _of_one_token(prices, place)
            yield from _never_asked(prices, place)
            yield from _of_percent(prices, place)
        yield from _of_the_other_currency(spec.cost)
        yield from _more_than_there_are(spec)
        yield from _never_paid(spec.cost)


def _of_a_written_day(spec: ResolvedSpec) -> Iterator[Violation]:
    """Yield what only a day that is left to the planner would follow."""
    written = spec.document.data.get("schedule")
    if not isinstance(written, dict):
        return
    for decided, fields in OF_AUTO.items():
        if f"schedule.{decided}" in spec.document.autos:
            continue
        for field in (each for each in fields if each in written):
            rule = f"W139 has an effect only with schedule.{decided}: auto"
            reason = f"the planner leaves any other schedule.{decided} as it is"
            counted = ", units: auto in each phase, and no other_days" if decided == "windows" else ""
            fix = removal(words=f"remove it, or write schedule.{decided}: auto{counted}")
            yield Violation(f"schedule.{field}", written[field], rule, reason, fix)


def _of_traffic(spec: ResolvedSpec) -> Iterator[Violation]:
    """Yield fields of traffic that nothing reads."""
    traffic, written = spec.written.traffic, spec.document.data.get("traffic") or {}
    if traffic is None:
        return
    if traffic.capacity is not None and (why := _why_no_capacity(spec)) is not None:
        rule, fix = "W139 has an effect only where windows: auto counts units from it", removal()
        yield Violation("traffic.capacity", traffic.capacity, rule, why, fix)
    if "quantile" in written and traffic.history is None:
        rule, reason = "W139 has an effect only with traffic.history", "it is a quantile of the forecast from past days"
        yield Violation("traffic.quantile", traffic.quantile, rule, reason, removal())
    if traffic.output_lengths is not None and "schedule.drain" not in spec.document.autos:
        rule, reason = "W139 has an effect only with schedule.drain: auto", "nothing but that drain follows from it"
        fix = removal(words="remove it, or write schedule.drain: auto")
        yield Violation("traffic.output_lengths", None, rule, reason, fix)


def _why_no_capacity(spec: ResolvedSpec) -> str | None:
    """Say why no unit is counted from traffic.capacity; None where some are."""
    if not spec.has_windows_of_traffic:
        return "no window is left to the planner"
    if any(f"{phase}.units" not in spec.document.autos for phase in spec.phases):
        return None
    from planner.estimate.case import is_predictable  # imported late: few specs have the field

    if all(is_predictable(spec, phase) for phase in spec.phases):
        return "units that are auto are counted from the tokens/s that they are predicted to make"
    return None


def _of_one_token(prices: PriceSpec, place: str) -> Iterator[Violation]:
    """Yield prices that are one token's, where a million's are asked for."""
    for field in ("input_hit", "input_miss", "output"):
        price = getattr(prices, field)
        if 0 < price < LEAST_PRICE:
            rule, reason = f"W129 is less than {LEAST_PRICE:g}", "it is the price of a million tokens"
            yield Violation(f"{place}.{field}", price, rule, reason, nearest(round(price * MILLION, 9)))


def _never_asked(prices: PriceSpec, place: str) -> Iterator[Violation]:
    """Yield discounts that leave no time of day to the prices themselves: each holds until the next one's time."""
    if prices.hours and all(each.factor != 1 for each in prices.hours):
        rule = f"W148 leaves no time of day to the prices of {place}: no factor is 1"
        last = prices.hours[-1]
        reason = f"each factor holds until the next one's time, and {last.factor:g} from {last.at} on"
        fix = f"add the time from which the factor is 1 to {place}.hours"
        yield Violation(f"{place}.hours", None, rule, reason, fix)


def _of_percent(prices: PriceSpec, place: str) -> Iterator[Violation]:
    """Yield factors of prices that are percentages."""
    for index, each in enumerate(prices.hours):
        if each.factor >= LEAST_PERCENT:
            rule, reason = f"W149 makes prices {each.factor:g} times as high", "a factor of 1 leaves them as they are"
            yield Violation(f"{place}.hours.{index}.factor", each.factor, rule, reason, nearest(each.factor / HUNDRED))


def _of_the_other_currency(cost: CostSpec) -> Iterator[Violation]:
    """Yield exchange rates that are how many US dollars a currency is, where the inverse is asked for."""
    currency = cost.currency
    if currency is not None and currency.per_usd < LEAST_PER_USD:
        rule = (
            f"W150 is less than {LEAST_PER_USD:g} {currency.code}, and no country's money is worth so many US dollars"
        )
        reason = f"it is how many {currency.code} a US dollar is"
        yield Violation(
            "cost.currency.per_usd", currency.per_usd, rule, reason, nearest(round(1 / currency.per_usd, 4))
        )


def _more_than_there_are(spec: Spec) -> Iterator[Violation]:
    """Yield supplies of more nodes than the cluster has."""
    assert spec.cost is not None
    nodes = spec.cluster.nodes
    there = nodes if isinstance(nodes, int) else len(nodes)
    for index, supply in enumerate(spec.cost.supplies):
        if supply.nodes is not None and supply.nodes > there:
            rule, reason = f"W130 is more than the cluster's {there} nodes", "no unit can use the others"
            yield Violation(f"cost.supplies.{index}.nodes", supply.nodes, rule, reason, nearest(there))


def _never_paid(cost: CostSpec) -> Iterator[Violation]:
    """Yield rates in whose place `hours` has others for all the day: each entry holds until the next one's time."""
    supplies = {f"cost.supplies.{index}": each for index, each in enumerate(cost.supplies)}
    places: dict[str, CostSpec | SupplySpec] = {"cost": cost, **supplies}
    for place, written in places.items():
        rate, others = written.usd_per_gpu_hour, [each.usd_per_gpu_hour for each in written.hours]
        if others and rate not in others:
            rule = f"W147 is paid at no time of day: {place}.hours has another rate for all of it"
            last = written.hours[-1]
            reason = (
                f"each of its rates holds until the next one's time, and {last.usd_per_gpu_hour:g} from {last.at} on"
            )
            fix = f"add the time from which {rate:g} is paid to {place}.hours, or write one of its rates here"
            yield Violation(f"{place}.usd_per_gpu_hour", rate, rule, reason, fix)
