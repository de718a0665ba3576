"""What tokens sell for: each model's prices and share of the traffic, what of it is paid, discounts by the hour."""

from dataclasses import dataclass

from planner.cost.day import Stretch, TimesOfDay
from planner.spec.cost import CostSpec, PriceSpec

__all__ = ["Sales", "sales_of"]

MILLION = 1e6


@dataclass(frozen=True)
class Sales:
    """One model's prices in US dollars a token, weighed with its share of the traffic that is paid for."""

    input_hit: float
    input_miss: float
    output: float
    factor: TimesOfDay[float]

    def usd(self, stretch: Stretch, hits: float, misses: float, output: float) -> float:
        """Return the income of so many tokens of all models in `stretch`."""
        usd = hits * self.input_hit + misses * self.input_miss + output * self.output
        return usd * self.factor.at(stretch.start)

    def given_up(self, stretch: Stretch, hits: float) -> float:
        """Return what cache hits would have earned besides, at the price of computed tokens."""
        return hits * (self.input_miss - self.input_hit) * self.factor.at(stretch.start)


def sales_of(cost: CostSpec) -> tuple[Sales, ...]:
    """Return what each model of the spec sells for; none where nothing is sold."""
    per_usd = cost.currency.per_usd if cost.currency else 1.0
    return tuple(_sales(each, per_usd) for each in cost.all_prices)


def _sales(price: PriceSpec, per_usd: float) -> Sales:
    weight = price.share * price.paid_share / per_usd / MILLION
    factor = TimesOfDay.written(((each.at, each.factor) for each in price.hours), 1.0)
    return Sales(price.input_hit * weight, price.input_miss * weight, price.output * weight, factor)
