"""A map for new loads beside the one in service: as even as EPLB would make it anew, with few slots changed.

Each layer starts from its previous map (`moves`). Where nothing near that is good enough, the layer gets a fresh map,
whose nodes and GPUs are numbered anew so that most stays where it is. A layer that is good enough as it is stays.
"""

import numpy as np
from numpy.typing import NDArray

from planner.expert_map.eplb import eplb_fullest_of_layers
from planner.expert_map.front import homes_of_groups
from planner.expert_map.moves import relocate
from planner.expert_map.outcome import holds_everything
from planner.expert_map.spill import respill
from planner.expert_map.types import Sizes
from planner.expert_map.weigh import Floats, Ints, max_over_mean

__all__ = ["align", "keeps_groups_whole", "match", "part_repeats", "renew"]

ROUNDING = 1e-9  # EPLB's loads are not rounded down to whole numbers, ours are


def renew(
    loads_LE: Floats,
    previous_LGS: Ints,
    fresh_LGS: Ints,
    sizes: Sizes,
    keep_within: float,
    *,
    within_nodes: bool,
    may_spill: bool = False,
) -> Ints:
    """Return slots `[L, G, S]`; what is kept stays in its slot.

    A layer is good enough when its fullest GPU carries at most `1 + keep_within` times what EPLB's would. Where the
    fresh map's carries more, that counts instead; it can only be so where EPLB puts an expert on a GPU twice. Where
    groups stay on nodes, a previous layer that splits a group is no start and gets a fresh map. With `may_spill` it is
    a start, and experts get replicas on a second node where nothing else helps.
    """
    if holds_everything(sizes, loads_LE.shape[1]):  # repeats cannot be parted
        most_L = max_over_mean(loads_LE, fresh_LGS) * (1 + ROUNDING) * (1 + keep_within)
        is_kept_L = max_over_mean(loads_LE, previous_LGS) <= most_L
        return align(np.where(is_kept_L[:, None, None], previous_LGS, fresh_LGS), previous_LGS)
    mean_L = loads_LE.sum(axis=1) / sizes.num_gpus
    eplb_L = eplb_fullest_of_layers(loads_LE, sizes, within_nodes=within_nodes)
    enough_L = np.maximum(eplb_L, max_over_mean(loads_LE, fresh_LGS) * mean_L) * (1 + ROUNDING)
    num_nodes = sizes.num_nodes if within_nodes else 1
    start_LGS = part_repeats(loads_LE, previous_LGS, num_nodes)
    if may_spill:
        homes_LE = homes_of_groups(loads_LE, start_LGS, sizes)
        near_LGS, reached_L = respill(loads_LE, start_LGS, homes_LE, enough_L * (1 + keep_within), num_nodes)
    else:
        near_LGS, reached_L = relocate(loads_LE, start_LGS, enough_L * (1 + keep_within), num_nodes)
    previous_ratio_L = max_over_mean(loads_LE, previous_LGS)
    slots_LGS = np.empty_like(previous_LGS)
    is_kept_L = previous_ratio_L * mean_L <= enough_L * (1 + keep_within)
    if within_nodes and not may_spill:
        is_kept_L &= keeps_groups_whole(previous_LGS, sizes, loads_LE.shape[1])
        reached_L &= keeps_groups_whole(near_LGS, sizes, loads_LE.shape[1])
    for index in range(len(loads_LE)):
        if is_kept_L[index]:
            slots_LGS[index] = previous_LGS[index]
        elif reached_L[index]:
            slots_LGS[index] = near_LGS[index]
        else:
            slots_LGS[index] = match(fresh_LGS[index], previous_LGS[index], num_nodes)
    return align(slots_LGS, previous_LGS)


def keeps_groups_whole(slots_LGS: Ints, sizes: Sizes, num_experts: int) -> NDArray[np.bool_]:
    """Return for each layer whether every node holds only its own number of groups, `[L]`."""
    groups = slots_LGS.reshape(len(slots_LGS), sizes.num_nodes, -1) // (num_experts // sizes.num_groups)
    num_held = (np.diff(np.sort(groups, axis=2), axis=2) > 0).sum(axis=2) + 1
    is_whole_L: NDArray[np.bool_] = (num_held == sizes.num_groups // sizes.num_nodes).all(axis=1)
    return is_whole_L


def part_repeats(loads_LE: Floats, slots_LGS: Ints, num_nodes: int = 1) -> Ints:
    """Return the same map without an expert twice on a GPU: the hottest of its node that the GPU lacks takes the slot.

    Where a GPU holds all experts of its node, it is the hottest of all others.
    """
    parted, gpus_per_node = slots_LGS.copy(), slots_LGS.shape[1] // num_nodes
    for index, gpu in np.argwhere((np.diff(np.sort(parted, axis=2), axis=2) == 0).any(axis=2)):
        slots = parted[index, gpu]
        for slot in range(1, len(slots)):
            if slots[slot] in slots[:slot]:
                counts = np.bincount(parted[index].ravel(), minlength=loads_LE.shape[1])
                loads, first = loads_LE[index] / np.maximum(counts, 1), gpu // gpus_per_node * gpus_per_node
                lacking = np.setdiff1d(parted[index, first : first + gpus_per_node], slots)
                if lacking.size == 0:
                    lacking = np.setdiff1d(np.arange(len(loads)), slots)
                slots[slot] = lacking[loads[lacking].argmax()]
    return parted


def match(fresh_GS: Ints, previous_GS: Ints, num_nodes: int) -> Ints:
    """Return the fresh map with its nodes, and the GPUs of each node, in the order that leaves most where it is."""
    num_experts = int(max(fresh_GS.max(), previous_GS.max())) + 1
    fresh = fresh_GS.reshape(num_nodes, -1, fresh_GS.shape[1])
    previous = previous_GS.reshape(fresh.shape)
    nodes = _most_alike(fresh.reshape(num_nodes, -1), previous.reshape(num_nodes, -1), num_experts)
    gpus = [fresh[node][_most_alike(fresh[node], previous[place], num_experts)] for place, node in enumerate(nodes)]
    return np.concatenate(gpus)


def _most_alike(rows: Ints, places: Ints, num_experts: int) -> Ints:
    """Return the row for each place, `[places]`: the pair with most experts in common is matched first."""
    held = [np.stack([np.bincount(row, minlength=num_experts) for row in each]) > 0 for each in (rows, places)]
    common = held[1].astype(np.int64) @ held[0].T.astype(np.int64)
    chosen = np.zeros(len(places), dtype=np.int64)
    for _ in range(len(places)):
        place, row = np.unravel_index(common.argmax(), common.shape)
        chosen[place] = row
        common[place, :] = common[:, row] = -1
    return chosen


def align(slots_LGS: Ints, previous_LGS: Ints) -> Ints:
    """Return the same experts on each GPU, in the slots where it held them before if it did."""
    aligned = slots_LGS.copy()
    for index, gpu in np.argwhere((slots_LGS != previous_LGS).any(axis=2)):
        coming = slots_LGS[index, gpu].tolist()
        freed = []
        for slot, expert in enumerate(previous_LGS[index, gpu].tolist()):
            if expert in coming:
                coming.remove(expert)
                aligned[index, gpu, slot] = expert
            else:
                freed.append(slot)
        aligned[index, gpu, freed] = coming
    return aligned
