"""Compute the income from tokens: prices, and discounts by the hour."""

from dataclasses import dataclass

from planner.schedule.stretches import Stretch, TimesOfDay
from planner.spec.cost import PriceSpec

__all__ = ["Sales", "make_sales"]

MILLION = 1e6


@dataclass(frozen=True)
class Sales:
    """Prices in US dollars a token."""

    input_hit: float
    input_miss: float
    output: float
    factor: TimesOfDay[float]

    def usd(self, stretch: Stretch, hits: float, misses: float, output: float) -> float:
        """Return the income from these tokens in `stretch`."""
        usd = hits * self.input_hit + misses * self.input_miss + output * self.output
        return usd * self.factor.at(stretch.start)

    def given_up(self, stretch: Stretch, hits: float) -> float:
        """Return the income that cache hits give up against the price of computed tokens."""
        return hits * (self.input_miss - self.input_hit) * self.factor.at(stretch.start)


def make_sales(prices: PriceSpec) -> Sales:
    """Return the prices per token, with the discounts of the day."""
    factor = TimesOfDay.written(((each.at, each.factor) for each in prices.hours), 1.0)
    return Sales(prices.input_hit / MILLION, prices.input_miss / MILLION, prices.output / MILLION, factor)
