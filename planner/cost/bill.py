"""Bill the nodes that are on and the tokens that are sold, by the spec's rates, prices and discounts.

Nodes are billed from the spec's supplies in their order, then at the common rate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.schedule.stretches import Stretch, TimesOfDay
from planner.spec.cost import CostSpec, PriceSpec, SupplyKind

__all__ = ["MILLION", "Bill", "Sales", "Supply", "bill", "list_supplies", "make_sales"]

MILLION = 1e6


@dataclass(frozen=True)
class Supply:
    """Nodes of one GPU type at one rate."""

    kind: SupplyKind
    gpu: str
    nodes: int | None  # None: unlimited
    usd_per_gpu_hour: float


@dataclass(frozen=True)
class Bill:
    """The cost of one stretch of the day, in US dollars."""

    by_gpu: Mapping[str, float]  # GPU type -> cost of its nodes that are on
    idle: float  # own nodes that are off
    spot_nodes: int

    @property
    def usd(self) -> float:
        """Return the total."""
        return sum(self.by_gpu.values()) + self.idle


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


def list_supplies(cost: CostSpec, gpus: Sequence[str], cluster_gpu: str) -> tuple[Supply, ...]:
    """Return the spec's supplies in order, then an unlimited one for each type of `gpus`."""
    listed = [Supply(each.kind, each.gpu or cluster_gpu, each.nodes, each.usd_per_gpu_hour) for each in cost.supplies]
    return (*listed, *(Supply("rented", gpu, None, cost.usd_per_gpu_hour) for gpu in gpus))


def bill(stretch: Stretch, nodes: Mapping[str, int], supplies: Sequence[Supply], gpus_per_node: int) -> Bill:
    """Return the bill for `stretch`. `nodes` has the number of nodes that are on, by GPU type."""
    left, by_gpu = dict(nodes), dict.fromkeys(nodes, 0.0)
    idle, spot_nodes = 0.0, 0
    for supply in supplies:
        usd_per_node = supply.usd_per_gpu_hour * gpus_per_node * stretch.hours
        wanted = left.get(supply.gpu, 0)
        taken = wanted if supply.nodes is None else min(wanted, supply.nodes)
        if taken:
            left[supply.gpu] -= taken
            by_gpu[supply.gpu] += taken * usd_per_node
        spot_nodes += taken if supply.kind == "spot" else 0
        if supply.kind == "own" and supply.nodes is not None:
            idle += (supply.nodes - taken) * usd_per_node
    return Bill(by_gpu, idle, spot_nodes)


def make_sales(prices: PriceSpec) -> Sales:
    """Return the prices per token, with the discounts of the day."""
    factor = TimesOfDay.written(((each.at, each.factor) for each in prices.hours), 1.0)
    return Sales(prices.input_hit / MILLION, prices.input_miss / MILLION, prices.output / MILLION, factor)
