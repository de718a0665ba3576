"""Loads in, expert map out: what a map is, and the pass that makes one.

A map is named by the sha256 of its content, so that equal maps are one map, and a diff can say what moved.

`search` does the work. It is imported when it is called, for it needs numpy: who only validates specs should not wait.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from planner.canonical import digest_of
from planner.expert_map.loads import Loads

__all__ = ["BoundKind", "Effort", "ExpertMap", "balance"]

Effort = Literal["fast", "refined"]
BoundKind = Literal["mean", "replicas", "companions"]  # see `bound`


@dataclass(frozen=True)
class ExpertMap:
    """Which logical expert each slot of a unit holds, and how even that makes the GPUs.

    `physical_to_logical` is `[num_moe_layers][num_physical_experts]`; slot s is on rank s // slots_per_gpu.
    `max_over_mean` is `[num_moe_layers]`, expected when tokens split equally among an expert's replicas; no map for
    these loads and sizes is below `bound`, and `binding` says what keeps it there.
    """

    num_logical_experts: int
    physical_to_logical: tuple[tuple[int, ...], ...]
    max_over_mean: tuple[float, ...]
    bound: tuple[float, ...]
    binding: tuple[BoundKind, ...]

    @cached_property
    def sha256(self) -> str:
        """Of the canonical JSON of `physical_to_logical`."""
        return digest_of(self.physical_to_logical)


def balance(loads: Loads, num_slots: int, num_gpus: int, effort: Effort = "refined") -> ExpertMap:
    """A map of `num_slots` slots a layer on `num_gpus` GPUs that spreads `loads` evenly."""
    from planner.expert_map.search import search

    return search(loads, num_slots, num_gpus, effort)
