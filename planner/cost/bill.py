"""Bill the nodes that are on: from the spec's supplies in their order, then at the common rate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.schedule.stretches import Stretch
from planner.spec.cost import CostSpec, SupplyKind

__all__ = ["Bill", "Supply", "bill", "list_supplies"]


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
