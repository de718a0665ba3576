"""Compute the bill for the nodes that are on, and the income from sold tokens, for one stretch of the day.

Nodes are taken from the spec's supplies in the order in which they are listed. Further nodes cost the common rate,
`cost.usd_per_gpu_hour`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.schedule.stretches import Stretch, TimesOfDay
from planner.spec.cost import CostSpec, PriceSpec, SupplyKind

MILLION = 1e6


@dataclass(frozen=True)
class Supply:
    """A number of nodes of one GPU type that can be had at one rate."""

    kind: SupplyKind
    gpu: str
    nodes: int | None  # None: unlimited
    usd_per_gpu_hour: float


@dataclass(frozen=True)
class Bill:
    """The cost of one stretch of the day, in US dollars."""

    by_gpu: Mapping[str, float]  # GPU type -> cost of its nodes that are on
    idle: float  # cost of own nodes that are off
    spot_nodes: int  # that are on

    @property
    def usd(self) -> float:
        """Return the total cost in US dollars."""
        return sum(self.by_gpu.values()) + self.idle


@dataclass(frozen=True)
class TokenPrices:
    """Prices in US dollars per token, and the factor on them at each time of day."""

    input_hit: float
    input_miss: float
    output: float
    factor: TimesOfDay[float]  # on all prices; below 1 for a discount

    def income_usd(self, stretch: Stretch, hits: float, misses: float, output: float) -> float:
        """Return the income in US dollars from `hits`, `misses` and `output` tokens that are sold in `stretch`."""
        usd = hits * self.input_hit + misses * self.input_miss + output * self.output
        return usd * self.factor.at(stretch.start)


def list_supplies(cost: CostSpec, gpus: Sequence[str], cluster_gpu: str) -> tuple[Supply, ...]:
    """Return the spec's supplies in order, then an unlimited supply at the common rate for each type of `gpus`."""
    listed = [Supply(each.kind, each.gpu or cluster_gpu, each.nodes, each.usd_per_gpu_hour) for each in cost.supplies]
    return (*listed, *(Supply("rented", gpu, None, cost.usd_per_gpu_hour) for gpu in gpus))


def bill(stretch: Stretch, nodes: Mapping[str, int], supplies: Sequence[Supply], gpus_per_node: int) -> Bill:
    """Return the bill for one `stretch` of the day. `nodes` has the number of nodes that are on, by GPU type."""
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


def prices_per_token(prices: PriceSpec) -> TokenPrices:
    """Return the spec's prices as prices per token, with the factor on them at each time of day."""
    factor = TimesOfDay.from_pairs(((each.at, each.factor) for each in prices.hours), 1.0)
    return TokenPrices(prices.input_hit / MILLION, prices.input_miss / MILLION, prices.output / MILLION, factor)
