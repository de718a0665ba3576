"""Experts numbered by their load for the search, so that a map depends on loads and not on how experts are called.

The search breaks ties and draws its kicks by number: without this, a model whose experts were stored in another order
would get another map, and a worse one at times. Of equal loads the one in the earlier slot of the previous map comes
first; without a previous map they keep their order, and then either could be the other.

Where groups stay on nodes, a group's experts stay side by side: groups are in the order of their hottest experts.
"""

from collections.abc import Sequence

import numpy as np

from planner.expert_map.types import Sizes
from planner.expert_map.weigh import Floats, Ints, as_rows, as_slots

__all__ = ["as_experts", "as_numbers", "order_by_load"]

Rows = Sequence[Sequence[int]]  # [L][N]


def order_by_load(loads_WLE: Floats, num_groups: int, previous: Rows | None) -> Ints:
    """Return the expert with each number, `[L, E]`: hottest first by the mean of all windows, then window by window."""
    _, num_layers, num_experts = loads_WLE.shape
    keys = [-loads_WLE.mean(axis=0), *-loads_WLE]
    if previous is not None:
        keys.append(_first_slots(previous, num_experts))
    keys_KLGE = np.stack(keys).reshape(len(keys), num_layers, num_groups, -1)
    inside_LGE = np.lexsort(keys_KLGE[::-1], axis=-1)
    keys_KLGE = np.take_along_axis(keys_KLGE, inside_LGE[None], axis=-1)
    by_place = np.moveaxis(keys_KLGE, -1, 1).reshape(-1, num_layers, num_groups)  # a key of all places, then the next
    groups_LG = np.lexsort(by_place[::-1], axis=-1)
    experts_LGE = inside_LGE + np.arange(0, num_experts, num_experts // num_groups)[:, None]
    order_LE: Ints = np.take_along_axis(experts_LGE, groups_LG[..., None], axis=1).reshape(num_layers, num_experts)
    return order_LE


def as_numbers(rows: Rows, order_LE: Ints, sizes: Sizes) -> Ints:
    """Return the numbers of a map's experts, in slots `[L, G, S]`."""
    return _replaced(as_slots(rows, sizes), np.argsort(order_LE, axis=1))


def as_experts(rows: Rows, order_LE: Ints, sizes: Sizes, *, is_fresh: bool) -> tuple[tuple[int, ...], ...]:
    """Turn a map of numbers back into experts; a fresh map gets the experts of each GPU in rising order."""
    slots_LGS = _replaced(as_slots(rows, sizes), order_LE)
    return as_rows(np.sort(slots_LGS, axis=2) if is_fresh else slots_LGS)


def _replaced(slots_LGS: Ints, names_LE: Ints) -> Ints:
    layers = np.arange(len(slots_LGS))[:, None, None]
    return names_LE[layers, slots_LGS]


def _first_slots(previous: Rows, num_experts: int) -> Floats:
    """Return the first slot of each expert, `[L, E]`."""
    slots_LN = np.array(previous, dtype=np.int64)
    first_LE = np.full((len(slots_LN), num_experts), float(slots_LN.shape[1]))
    np.minimum.at(first_LE, (np.arange(len(slots_LN))[:, None], slots_LN), np.arange(slots_LN.shape[1]))
    return first_LE
