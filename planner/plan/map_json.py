"""An expert map, and what is said of it, as JSON: alike in a plan and in the answer of `tidemill experts`."""

from dataclasses import asdict
from statistics import fmean
from typing import Any

from planner.expert_map import ExpertMap

__all__ = ["map_json", "one_more_slot_json", "policy_json"]

DIGITS = 6  # of a ratio


def map_json(expert_map: ExpertMap) -> dict[str, Any]:
    """The map itself, and layer by layer how good it is and what keeps it there."""
    return {
        "physical_to_logical": [list(layer) for layer in expert_map.physical_to_logical],
        "max_over_mean": list(expert_map.max_over_mean),
        "bound": list(expert_map.bound),
        "binding": list(expert_map.binding),
        "split": expert_map.split,
    }


def policy_json(expert_map: ExpertMap) -> dict[str, Any]:
    """Return what the map minds, why, and what the others that were weighed would give."""
    return {
        "policy": expert_map.policy,
        "policy_reason": expert_map.policy_reason,
        "front": [asdict(point) for point in expert_map.front],
        "dispatch": asdict(expert_map.dispatch) if expert_map.dispatch else None,
    }


def one_more_slot_json(
    with_one_more: ExpertMap | None, slots_per_gpu: int, bytes_per_gpu: int | None
) -> dict[str, Any] | None:
    """What the map has that has a slot more than `slots_per_gpu` on each GPU; None where there is none.

    `bytes_per_gpu`: what that slot takes over all layers, None where nobody knows.
    """
    if with_one_more is None:
        return None
    return {
        "slots_per_gpu": slots_per_gpu + 1,
        "bytes_per_gpu": bytes_per_gpu,
        "mean_max_over_mean": round(fmean(with_one_more.max_over_mean), DIGITS),
        "mean_bound": round(fmean(with_one_more.bound), DIGITS),
    }
