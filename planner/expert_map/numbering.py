"""Number experts by load for the search, so that a map depends on loads and not on the order of the experts.

The search breaks ties and draws random changes by number. Without this, a model whose experts were stored in another
order would get another map, at times a worse one. Of experts with equal loads the one in the earlier slot of the
previous map comes first. Without a previous map they keep their order, because they are interchangeable.

If groups stay on nodes, a group's experts stay side by side, and groups are ordered by their hottest experts.
"""

from collections.abc import Sequence

import numpy as np

from planner.expert_map.types import Sizes
from planner.expert_map.weigh import Floats, Ints, as_rows, as_slots

Rows = Sequence[Sequence[int]]  # [L][N]


def order_by_load(loads_LE: Floats, num_groups: int, previous: Rows | None) -> Ints:
    """Return each layer's experts in the order of their new numbers, `[L, E]`.

    The experts of a group stay side by side. The group with the hottest expert comes first, and within each group the
    hottest expert. Equal loads keep the order of their slots in the `previous` map, if given.
    """
    num_layers, num_experts = loads_LE.shape
    keys = [-loads_LE]
    if previous is not None:
        keys.append(_first_slots(previous, num_experts))
    keys_KLGE = np.stack(keys).reshape(len(keys), num_layers, num_groups, -1)
    inside_LGE = np.lexsort(keys_KLGE[::-1], axis=-1)
    keys_KLGE = np.take_along_axis(keys_KLGE, inside_LGE[None], axis=-1)
    by_place = np.moveaxis(keys_KLGE, -1, 1).reshape(
        -1, num_layers, num_groups
    )  # all positions of one key, then all of the next key
    groups_LG = np.lexsort(by_place[::-1], axis=-1)
    experts_LGE = inside_LGE + np.arange(0, num_experts, num_experts // num_groups)[:, None]
    order_LE: Ints = np.take_along_axis(experts_LGE, groups_LG[..., None], axis=1).reshape(num_layers, num_experts)
    return order_LE


def number_experts(rows: Rows, order_LE: Ints, sizes: Sizes) -> Ints:
    """Replace a map's experts by their numbers, and return slots `[L, G, S]`."""
    return _look_up(as_slots(rows, sizes), np.argsort(order_LE, axis=1))


def restore_experts(rows: Rows, order_LE: Ints, sizes: Sizes, *, is_fresh: bool) -> tuple[tuple[int, ...], ...]:
    """Return a map with numbers replaced by their experts, `[L][N]`. In a fresh map, each GPU's experts are sorted."""
    slots_LGS = _look_up(as_slots(rows, sizes), order_LE)
    return as_rows(np.sort(slots_LGS, axis=2) if is_fresh else slots_LGS)


def _look_up(slots_LGS: Ints, names_LE: Ints) -> Ints:
    layers = np.arange(len(slots_LGS))[:, None, None]
    return names_LE[layers, slots_LGS]


def _first_slots(previous: Rows, num_experts: int) -> Floats:
    """Return the first slot of each expert in the previous map, `[L, E]`."""
    slots_LN = np.array(previous, dtype=np.int64)
    first_LE = np.full((len(slots_LN), num_experts), float(slots_LN.shape[1]))
    np.minimum.at(first_LE, (np.arange(len(slots_LN))[:, None], slots_LN), np.arange(slots_LN.shape[1]))
    return first_LE
