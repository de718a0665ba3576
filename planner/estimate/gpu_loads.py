"""Compare the loads of a unit's GPUs with and without an expert map.

Without a map, experts stay in order: slot i holds expert i, and the redundant slots hold the first experts again.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.expert_map import ExpertMap, Sizes
from planner.facts.part import Part

if TYPE_CHECKING:
    from planner.expert_map.weigh import Floats

DIGITS = 4


class GpuLoads(Part):
    """Loads of GPUs, each divided by the mean GPU's load in the same layer."""

    max_in_order: tuple[float, ...]  # the fullest GPU's in each MoE layer, with experts in order
    moe_layer: int  # the layer with the fullest GPU, once the map applies
    in_order: tuple[float, ...]  # of each GPU in `moe_layer`, with experts in order
    mapped: tuple[float, ...]  # of each GPU in `moe_layer`, with the map


def measure_gpu_loads(expert_map: ExpertMap, loads: Sequence[Sequence[float]], sizes: Sizes) -> GpuLoads:
    """Return the GPUs' loads with and without the map, under the map's split rule.

    GPUs count as equally loaded in a layer without load.
    """
    from planner.expert_map.native import gpu_loads  # `validate` must not wait for numpy
    from planner.expert_map.weigh import as_slots, scale

    loads_LE = scale(loads)
    in_order = [slot % loads_LE.shape[1] for slot in range(sizes.num_slots)]
    in_order_LG, mapped_LG = (
        _divide_by_mean(gpu_loads(loads_LE, as_slots(rows, sizes), expert_map.split, sizes.num_nodes))
        for rows in ([in_order] * len(loads_LE), expert_map.physical_to_logical)
    )
    layer = int(mapped_LG.max(axis=1).argmax())
    return GpuLoads(
        max_in_order=tuple(in_order_LG.max(axis=1).round(DIGITS).tolist()),
        moe_layer=layer,
        in_order=tuple(in_order_LG[layer].round(DIGITS).tolist()),
        mapped=tuple(mapped_LG[layer].round(DIGITS).tolist()),
    )


def _divide_by_mean(loads_LG: "Floats") -> "Floats":
    import numpy as np  # as above

    mean_L1 = loads_LG.mean(axis=1, keepdims=True)
    found: Floats = np.divide(loads_LG, mean_L1, out=np.ones_like(loads_LG), where=mean_L1 > 0)
    return found
