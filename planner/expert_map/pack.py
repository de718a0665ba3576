"""Which GPU each replica goes to, in all layers at once.

Longest first: replicas in falling order of load, each to the GPU that carries least so far, has a free slot and does
not hold the expert yet. Where every GPU with a free slot holds it, it goes there nevertheless, and in the end slots
are swapped until no GPU holds an expert twice.

It is a good packing, not the best one: `exchange` goes on from here.

Source: longest processing time first, R. L. Graham 1969; with equal counts, as in github.com/deepseek-ai/EPLB.
"""

import numpy as np

from planner.expert_map.weigh import Floats, Ints

__all__ = ["pack"]


def pack(weights_LE: Floats, counts_LE: Ints, num_gpus: int) -> Ints:
    """The experts on each GPU, `[L, G, S]`; counts as `replicate` gave them."""
    replicas_LN = _longest_first(weights_LE, counts_LE)
    num_layers, num_slots = replicas_LN.shape
    slots_per_gpu = num_slots // num_gpus
    assert slots_per_gpu * num_gpus == num_slots
    slots_LGS = np.full((num_layers, num_gpus, slots_per_gpu), -1)
    loads_LG = np.zeros((num_layers, num_gpus))  # infinite where a GPU is full
    filled_LG = np.zeros((num_layers, num_gpus), dtype=np.int64)
    layers = np.arange(num_layers)
    holders_LG = np.full((num_layers, num_gpus), -1)  # the last expert: replicas of one expert come in a row
    for experts in replicas_LN.T:
        free = np.where(holders_LG == experts[:, None], np.inf, loads_LG)
        gpus = free.argmin(axis=1)
        nowhere_else = np.isinf(free[layers, gpus])
        if nowhere_else.any():
            gpus = np.where(nowhere_else, loads_LG.argmin(axis=1), gpus)
        slot = filled_LG[layers, gpus]
        slots_LGS[layers, gpus, slot] = experts
        holders_LG[layers, gpus] = experts
        filled_LG[layers, gpus] = slot + 1
        loads = loads_LG[layers, gpus] + weights_LE[layers, experts]
        loads_LG[layers, gpus] = np.where(slot + 1 < slots_per_gpu, loads, np.inf)
    _separate_replicas(weights_LE, slots_LGS)
    return slots_LGS


def _longest_first(weights_LE: Floats, counts_LE: Ints) -> Ints:
    """The expert of each replica, heaviest first, the lower expert first among equals: `[L, N]`."""
    order = np.argsort(-weights_LE, axis=1, kind="stable")
    counts = np.take_along_axis(counts_LE, order, axis=1)
    return np.repeat(order.ravel(), counts.ravel()).reshape(len(order), -1)


def _separate_replicas(weights_LE: Floats, slots_LGS: Ints) -> None:
    """Swap slots until no GPU holds an expert twice. Each swap leaves fewer repetitions than before.

    A GPU that lacks the expert exists, for no expert has more replicas than there are GPUs. Some slot of it holds an
    expert that is new to the GPU with the repetition, or one that is itself there twice: either may go.
    """
    repeats = _repeats(slots_LGS)
    while repeats.any():
        layer, gpu, slot = np.argwhere(repeats)[0]
        slots, weights = slots_LGS[layer], weights_LE[layer]
        lacking = ~(slots == slots[gpu, slot]).any(axis=1)
        new_here = ~np.isin(slots, slots[gpu])
        may_go = lacking[:, None] & (new_here if (lacking[:, None] & new_here).any() else repeats[layer])
        change = np.where(may_go, np.abs(weights[slots] - weights[slots[gpu, slot]]), np.inf)
        other = np.unravel_index(change.argmin(), change.shape)
        slots[gpu, slot], slots[other] = slots[other], slots[gpu, slot]
        repeats = _repeats(slots_LGS)


def _repeats(slots_LGS: Ints) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Whether an earlier slot of the same GPU holds the same expert, `[L, G, S]`."""
    repeats = np.zeros(slots_LGS.shape, dtype=np.bool_)
    for slot in range(1, slots_LGS.shape[2]):
        repeats[..., slot] = (slots_LGS[..., :slot] == slots_LGS[..., slot, None]).any(axis=2)
    return repeats
