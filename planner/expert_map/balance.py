"""Loads in, expert map out: `replicate` and `pack`, layer by layer.

A map is named by the sha256 of its content, so that equal maps are one map, and a diff can say what moved.
"""

from dataclasses import dataclass
from functools import cached_property

from planner.canonical import digest_of
from planner.expert_map.loads import Loads
from planner.expert_map.pack import pack
from planner.expert_map.replicate import replicate

__all__ = ["ExpertMap", "balance"]


@dataclass(frozen=True)
class ExpertMap:
    """Which logical expert each slot of a unit holds, and how even that makes the GPUs.

    `physical_to_logical` is `[num_moe_layers][num_physical_experts]`; slot s is on rank s // slots_per_gpu.
    `max_over_mean` is `[num_moe_layers]`, expected when tokens split equally among an expert's replicas.
    """

    num_logical_experts: int
    physical_to_logical: tuple[tuple[int, ...], ...]
    max_over_mean: tuple[float, ...]

    @cached_property
    def sha256(self) -> str:
        """Of the canonical JSON of `physical_to_logical`."""
        return digest_of(self.physical_to_logical)


def balance(loads: Loads, num_slots: int, num_gpus: int) -> ExpertMap:
    """A map of `num_slots` slots a layer on `num_gpus` GPUs that spreads `loads` evenly."""
    layers = [_balance_layer(layer_loads, num_slots, num_gpus) for layer_loads in loads]
    return ExpertMap(
        num_logical_experts=len(loads[0]),
        physical_to_logical=tuple(tuple(expert for gpu in gpus for expert in gpu) for gpus, _ in layers),
        max_over_mean=tuple(imbalance for _, imbalance in layers),
    )


def _balance_layer(loads: tuple[int, ...], num_slots: int, num_gpus: int) -> tuple[list[list[int]], float]:
    counts = replicate(loads, num_slots, num_gpus)
    gpus = pack(loads, counts, num_gpus)
    return gpus, _max_over_mean(loads, counts, gpus)


def _max_over_mean(loads: tuple[int, ...], counts: list[int], gpus: list[list[int]]) -> float:
    """max / mean of the GPUs' loads; 1.0 for a layer without load."""
    total = sum(loads)
    if total == 0:
        return 1.0
    fullest = max(sum(loads[expert] / counts[expert] for expert in gpu) for gpu in gpus)
    return round(fullest * len(gpus) / total, 6)
