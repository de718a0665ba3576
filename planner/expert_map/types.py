"""The nouns of this package: what one gives to ask for a map, and the map itself.

A map is named by the sha256 of its content, so that equal maps are one map, and a diff can say what moved.
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
    "slots_bind",
]

Effort = Literal["fast", "refined"]
Policy = Literal["auto", "global", "hierarchical"]
BoundKind = Literal["mean", "replicas", "packing", "pairs", "groups", "coverage"]  # see `bound`, `covered`
Domains = Sequence[Sequence[int]]  # [partitions][GPUs]: in which failure domain each stands (`domains`)


@dataclass(frozen=True)
class Sizes:
    """The sizes a map is for: slots, GPUs, nodes, groups of consecutive experts; and the gate that picks groups."""

    num_slots: int
    num_gpus: int
    num_nodes: int = 1
    num_groups: int = 1
    gate: Gate = AS_DEEPSEEK_V3

    @property
    def slots_per_gpu(self) -> int:
        """Equal on all GPUs."""
        return self.num_slots // self.num_gpus

    @property
    def groups_spread_over_nodes(self) -> bool:
        """True if each node can hold equally many whole groups."""
        return self.num_groups % self.num_nodes == 0


@dataclass(frozen=True)
class FrontPoint:
    """One map of a front of balance against bytes (`front`): means of all layers."""

    policy: Policy
    max_over_mean: float
    extra_bytes_per_token: float  # cross-node dispatch bytes of a layer, more than with whole groups on nodes
    bytes_per_token: float  # with whole groups on nodes

    @property
    def bytes_ratio(self) -> float:
        """Cross-node dispatch bytes / those with whole groups on nodes."""
        return 1 + self.extra_bytes_per_token / self.bytes_per_token


@dataclass(frozen=True)
class WindowsOutcome:
    """The result of a map in each of several windows of load (`windows`), `[windows][layers]`."""

    quantile: float | None  # over windows, that the map makes small; None: it is for their mean
    max_over_mean: tuple[tuple[float, ...], ...]
    bound: tuple[tuple[float, ...], ...]  # of any map, in that window
    of_mean_map: tuple[float, ...] | None = None  # [layers], that quantile, of the map for the mean


@dataclass(frozen=True)
class ExpertMap:
    """A map: the logical expert in each slot of a unit, and how even that makes the GPUs.

    `physical_to_logical` is `[num_moe_layers][num_physical_experts]`; slot s is on rank s // slots_per_gpu.
    `max_over_mean` is `[num_moe_layers]`, expected when tokens choose among replicas by the rule `split`. No map for
    these loads, sizes and policy is below `bound`, and `binding` says what keeps it there. `policy` is what was asked
    for or what `auto` chose, and `policy_reason` says why. `is_covered`: every expert has replicas in two of the
    failure domains that were given; it is False if none were.
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
    moved_slots: int | None = None  # of the previous map, order inside a GPU ignored; None without one
    front: tuple[FrontPoint, ...] = ()  # where groups can stay on nodes: what `auto` could choose among (`front`)
    dispatch: FrontPoint | None = None  # and this map
    windows: WindowsOutcome | None = None  # where there are several

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


def slots_bind(expert_map: ExpertMap) -> bool:
    """Return whether slots limit the map in most layers, so that more of them would help."""
    return (
        sum(kind in ("replicas", "packing", "pairs", "coverage") for kind in expert_map.binding)
        > len(expert_map.binding) / 2
    )
