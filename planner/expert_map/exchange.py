"""From a good packing to a better one: pairs of GPUs exchange slots until they carry alike, in all layers at once.

One round pairs every GPU with another, the fuller half with the emptier half, and each pair makes the one exchange
that leaves its two loads closest. With up to four slots a GPU all divisions of the pair's slots are tried, with more
those that swap one slot for one. The next round sorts and pairs anew. No exchange makes a GPU fuller than the fuller of
its pair was, so the fullest GPU of a layer only ever gets emptier.

Two replicas of one expert on a pair's two GPUs must stay apart: the exchange moves both or neither. Both are marked
with a number larger than any load, which cancels out when both move, and outweighs everything when one does.
"""

from functools import cache
from itertools import combinations

import numpy as np

from planner.expert_map.weigh import TOTAL_BITS, Floats, Ints, gpu_loads

__all__ = ["even_out"]

ALL_DIVISIONS_UP_TO = 4  # slots a GPU: 70 divisions of 8 slots; of 10 there would be 252


def even_out(weights_LE: Floats, slots_LGS: Ints, good_enough_L: Floats, num_rounds: int) -> None:
    """Exchange slots in place, at most `num_rounds` times; a layer stops when its fullest GPU is `good_enough_L`."""
    num_gpus = slots_LGS.shape[1]
    half = num_gpus // 2
    loads_LG = gpu_loads(weights_LE, slots_LGS)
    for turn in range(num_rounds if half else 0):
        active = np.flatnonzero(loads_LG.max(axis=1) > good_enough_L)
        if not active.size:
            return
        ranked = np.argsort(-loads_LG[active], axis=1, kind="stable")
        fuller, emptier = ranked[:, :half], np.roll(ranked[:, ::-1][:, :half], turn, axis=1)
        pairs_LP2 = np.stack((fuller, emptier), axis=2)
        _exchange(weights_LE, slots_LGS, loads_LG, active[:, None, None], pairs_LP2)


def _exchange(weights_LE: Floats, slots_LGS: Ints, loads_LG: Floats, layers_L11: Ints, pairs_LP2: Ints) -> None:
    """Every pair makes its best exchange; P pairs of the active layers."""
    slots_per_gpu = slots_LGS.shape[2]
    experts_LP2S = slots_LGS[layers_L11, pairs_LP2]
    weights_LP2S = weights_LE[layers_L11[..., None], experts_LP2S]
    marked_LPI = (weights_LP2S + _marks(experts_LP2S)).reshape(*pairs_LP2.shape[:2], 2 * slots_per_gpu)
    exchanges_KI, orders_KI = _exchanges(slots_per_gpu)
    loads_LP2 = loads_LG[layers_L11, pairs_LP2]
    apart_LP = loads_LP2[..., 0] - loads_LP2[..., 1]
    moved_LPK = marked_LPI @ exchanges_KI.T  # from the first GPU to the second
    best_LP = np.abs(apart_LP[..., None] - 2 * moved_LPK).argmin(axis=2)  # the first, nothing, among equals
    orders_LPI = orders_KI[best_LP]
    exchanged = np.take_along_axis(experts_LP2S.reshape(marked_LPI.shape), orders_LPI, axis=2)
    slots_LGS[layers_L11, pairs_LP2] = exchanged.reshape(experts_LP2S.shape)
    moved_LP = np.take_along_axis(moved_LPK, best_LP[..., None], axis=2)
    loads_LG[layers_L11, pairs_LP2] = loads_LP2 + moved_LP * np.array([-1.0, 1.0])


def _marks(experts_LP2S: Ints) -> Floats:
    """A power of two, larger than all loads, on both replicas of each expert that both GPUs of a pair hold.

    Another power for each such expert of a pair, so that no marks cancel out but the two of one expert.
    """
    slots_per_gpu = experts_LP2S.shape[3]
    shared_LPSS = experts_LP2S[..., 0, :, None] == experts_LP2S[..., 1, None, :]
    marks_S = 2.0 ** (TOTAL_BITS + 2 + np.arange(slots_per_gpu))
    first = shared_LPSS.any(axis=3) * marks_S
    second = (shared_LPSS * marks_S[:, None]).sum(axis=2)
    return np.stack((first, second), axis=2)


@cache
def _exchanges(slots_per_gpu: int) -> tuple[Floats, Ints]:
    """The exchanges that a pair considers, `[K, 2S]` twice; the first is none.

    The slots of the first GPU stand before those of the second. As numbers: 1 for a slot that leaves the first, -1 for
    one that comes to it. As orders: which slot's expert each slot then holds.
    """
    # swapping more than half leaves the same two loads as swapping the rest
    most_swapped = max(1, slots_per_gpu // 2) if slots_per_gpu <= ALL_DIVISIONS_UP_TO else 1
    first, second = range(slots_per_gpu), range(slots_per_gpu, 2 * slots_per_gpu)
    swaps = [
        (leaving, coming)
        for size in range(most_swapped + 1)
        for leaving in combinations(first, size)
        for coming in combinations(second, size)
    ]
    moves = np.zeros((len(swaps), 2 * slots_per_gpu))
    orders = np.tile(np.arange(2 * slots_per_gpu), (len(swaps), 1))
    for row, (leaving, coming) in enumerate(swaps):
        moves[row, list(leaving)], moves[row, list(coming)] = 1, -1
        orders[row, [*leaving, *coming]] = [*coming, *leaving]
    return moves, orders
