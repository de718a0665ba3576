"""The nouns of this package: the inputs of a map, and the map itself.

A map's name is the sha256 of its content, so equal maps have one name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from planner.facts.digest import digest_of
from planner.facts.gate import AS_DEEPSEEK_V3, Gate
from planner.facts.terms import SplitRule

__all__ = [
    "BoundKind",
    "Domains",
    "Effort",
    "ExpertMap",
    "FrontPoint",
    "Policy",
    "Sizes",
    "SplitRule",
    "WindowsOutcome",
    "is_limited_by_slots",
]

Effort = Literal["fast", "refined"]
Policy = Literal["auto", "global", "hierarchical"]
BoundKind = Literal["mean", "replicas", "packing", "pairs", "groups", "coverage"]  # see `bound`
Domains = Sequence[Sequence[int]]  # [partitions][GPUs]: the failure domain of each GPU (`domains`)


@dataclass(frozen=True)
class Sizes:
    """The sizes of a map: slots, GPUs, nodes, groups of consecutive experts; and the gate that picks groups."""

    num_slots: int
    num_gpus: int
    num_nodes: int = 1
    num_groups: int = 1
    gate: Gate = AS_DEEPSEEK_V3

    @property
    def slots_per_gpu(self) -> int:
        """The number of slots of each GPU."""
        return self.num_slots // self.num_gpus

    @property
    def groups_spread_over_nodes(self) -> bool:
        """Whether each node can hold equally many whole groups."""
        return self.num_groups % self.num_nodes == 0


@dataclass(frozen=True)
class FrontPoint:
    """Balance and bytes of one map of a front (`front`), as means over layers."""

    policy: Policy
    max_over_mean: float
    extra_bytes_per_token: float  # cross-node dispatch bytes of a layer, beyond those with whole groups on nodes
    bytes_per_token: float  # with whole groups on nodes

    @property
    def bytes_ratio(self) -> float:
        """Cross-node dispatch bytes / those with whole groups on nodes."""
        return 1 + self.extra_bytes_per_token / self.bytes_per_token


@dataclass(frozen=True)
class WindowsOutcome:
    """The balance of a map in each of several windows of load, `[windows][layers]`."""

    quantile: float | None  # of max over mean over windows, that the map lowers; None: the map is for their mean
    max_over_mean: tuple[tuple[float, ...], ...]
    bound: tuple[tuple[float, ...], ...]
    of_mean_map: tuple[float, ...] | None = None  # [layers]: the same quantile with the map for the mean


@dataclass(frozen=True)
class ExpertMap:
    """The logical expert in each slot of a unit, and the balance of its GPUs.

    `physical_to_logical` is `[num_moe_layers][num_physical_experts]`; slot s is on rank s // slots_per_gpu.
    `max_over_mean` is `[num_moe_layers]`, expected if tokens choose replicas by the rule `split`. No map for these
    loads, sizes and policy is below `bound`, and `binding` names the reason. `policy` is as requested, or as `auto`
    chose for `policy_reason`. `is_covered` is True if every expert has replicas in two of the given failure domains.
    """

    num_logical_experts: int
    physical_to_logical: tuple[tuple[int, ...], ...]
    max_over_mean: tuple[float, ...]
    bound: tuple[float, ...]
    binding: tuple[BoundKind, ...]
    policy: Policy
    policy_reason: str
    is_covered: bool = False
    split: SplitRule = "equal"
    moved_slots: int | None = None  # slots that differ from the previous map; None without one
    kept_despite: float | None = None  # mean max over mean of a better map, if the previous one was kept all the same
    front: tuple[FrontPoint, ...] = ()  # the maps that `auto` could choose from, if groups can stay on nodes (`front`)
    dispatch: FrontPoint | None = None  # the point of this map
    windows: WindowsOutcome | None = None  # if there are several

    @property
    def logical_to_physical(self) -> list[list[list[int]]]:
        """The slots of each expert, rising: `[num_moe_layers][num_logical_experts][replicas]`."""
        slots: list[list[list[int]]] = [[[] for _ in range(self.num_logical_experts)] for _ in self.physical_to_logical]
        for layer, experts in enumerate(self.physical_to_logical):
            for slot, expert in enumerate(experts):
                slots[layer][expert].append(slot)
        return slots

    @cached_property
    def sha256(self) -> str:
        """The digest of the canonical JSON of `physical_to_logical`."""
        return digest_of(self.physical_to_logical)


def is_limited_by_slots(expert_map: ExpertMap) -> bool:
    """Return whether slots limit the map in most layers, so more of them would help."""
    return (
        sum(kind in ("replicas", "packing", "pairs", "coverage") for kind in expert_map.binding)
        > len(expert_map.binding) / 2
    )
