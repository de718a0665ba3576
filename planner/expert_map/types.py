"""The types of this package: the sizes that a map is made for, the map itself, and what is known about it.

A map is named by the sha256 of its content, so equal maps have the same name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from planner.facts.digest import digest_of
from planner.facts.gate import AS_DEEPSEEK_V3, Gate
from planner.facts.terms import SplitRule

Effort = Literal["fast", "refined"]
Policy = Literal["auto", "global", "hierarchical"]
BoundKind = Literal["mean", "replicas", "packing", "pairs", "groups", "coverage"]  # see `bound`
Domains = Sequence[Sequence[int]]  # [partitions][GPUs]: the failure domain of each GPU (`domains`)


@dataclass(frozen=True)
class Sizes:
    """The sizes of a map: slots per layer, GPUs, nodes, and groups of consecutive experts.

    `gate` says how experts are picked.
    """

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
    extra_bytes_per_token: float  # cross-node dispatch bytes in a layer, above those with whole groups on nodes
    bytes_per_token: float  # cross-node dispatch bytes in a layer with whole groups on nodes

    @property
    def bytes_ratio(self) -> float:
        """Cross-node dispatch bytes of this map / those of a map with whole groups on nodes."""
        return 1 + self.extra_bytes_per_token / self.bytes_per_token


@dataclass(frozen=True)
class ExpertMap:
    """The logical expert in each slot of a unit, and how evenly the map loads the unit's GPUs.

    `physical_to_logical` is `[num_moe_layers][num_physical_experts]`; slot s is on rank s // slots_per_gpu.
    `max_over_mean` is `[num_moe_layers]`, as expected if tokens choose replicas by the rule `split`. No map for these
    loads, sizes and policy has less than `bound`, and `binding` names the kind of each layer's bound. `policy` is as
    requested, or as `auto` chose for `policy_reason`. `is_covered` is True if every expert has replicas in two of the
    given failure domains.
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
    moved_slots: int | None = None  # slots that differ from the previous map; None if there is none
    front: tuple[FrontPoint, ...] = ()  # the maps that `auto` could choose from, if groups can stay on nodes (`front`)
    dispatch: FrontPoint | None = None  # this map's point of the front; None if there is no front

    @property
    def logical_to_physical(self) -> list[list[list[int]]]:
        """The slots of each expert, in rising order: `[num_moe_layers][num_logical_experts][replicas]`."""
        slots: list[list[list[int]]] = [[[] for _ in range(self.num_logical_experts)] for _ in self.physical_to_logical]
        for layer, experts in enumerate(self.physical_to_logical):
            for slot, expert in enumerate(experts):
                slots[layer][expert].append(slot)
        return slots

    @cached_property
    def sha256(self) -> str:
        """The digest of the canonical JSON of `physical_to_logical`."""
        return digest_of(self.physical_to_logical)
