"""The way to a good map: `replicate`, `pack`, `even_out`, all layers at once, until it is near the bound.

With effort `fast` once, as EPLB would count the replicas. With `refined` again, from other numbers of replicas, for the
layers that are not good enough yet: the best of each layer is kept and evened out for longer.
"""

import numpy as np

from planner.expert_map.balance import Effort, ExpertMap
from planner.expert_map.bound import bind
from planner.expert_map.exchange import even_out
from planner.expert_map.loads import Loads
from planner.expert_map.pack import pack
from planner.expert_map.replicate import replicate
from planner.expert_map.weigh import Floats, Ints, gpu_loads, replica_weights, scale

__all__ = ["search"]

GOOD_ENOUGH = 1.0008  # times the bound: what is left is less than the loads change between two steps
SHIFTS = (0.0, -0.5, -0.25, 0.25)  # of `replicate`; EPLB's first. Tried at EP72 and EP144, alpha 0.6 to 1.2
FIRST_ROUNDS = 4
MORE_ROUNDS = 64


def search(loads: Loads, num_slots: int, num_gpus: int, effort: Effort) -> ExpertMap:
    """See `balance`."""
    loads_LE = scale(loads)
    mean_L = loads_LE.sum(axis=1) / num_gpus
    bound_L, binding = bind(loads_LE, num_slots, num_gpus)
    good_enough_L = mean_L * bound_L * GOOD_ENOUGH
    if effort == "fast":
        weights_LE, slots_LGS = _pack_evenly(loads_LE, num_slots, good_enough_L, 0.0, num_gpus)
    else:
        weights_LE, slots_LGS = _refine(loads_LE, num_slots, good_enough_L, num_gpus)
    fullest_L = gpu_loads(weights_LE, slots_LGS).max(axis=1)
    max_over_mean_L = np.divide(fullest_L, mean_L, out=np.ones_like(mean_L), where=mean_L > 0)
    return ExpertMap(
        num_logical_experts=loads_LE.shape[1],
        physical_to_logical=tuple(map(tuple, slots_LGS.reshape(len(loads), -1).tolist())),
        max_over_mean=tuple(max_over_mean_L.round(6).tolist()),
        bound=tuple((np.floor(bound_L * 1e6) / 1e6).tolist()),
        binding=binding,
    )


def _refine(loads_LE: Floats, num_slots: int, good_enough_L: Floats, num_gpus: int) -> tuple[Floats, Ints]:
    """The best of several numbers of replicas in each layer, evened out: weights `[L, E]`, slots `[L, G, S]`."""
    weights_LE, slots_LGS = _pack_evenly(loads_LE, num_slots, good_enough_L, SHIFTS[0], num_gpus)
    fullest_L = gpu_loads(weights_LE, slots_LGS).max(axis=1)
    for shift in SHIFTS[1:]:
        layers = np.flatnonzero(fullest_L > good_enough_L)
        if not layers.size:
            break
        weights, slots = _pack_evenly(loads_LE[layers], num_slots, good_enough_L[layers], shift, num_gpus)
        fullest = gpu_loads(weights, slots).max(axis=1)
        better = fullest < fullest_L[layers]
        chosen = layers[better]
        weights_LE[chosen], slots_LGS[chosen], fullest_L[chosen] = weights[better], slots[better], fullest[better]
    even_out(weights_LE, slots_LGS, good_enough_L, MORE_ROUNDS)
    return weights_LE, slots_LGS


def _pack_evenly(
    loads_LE: Floats, num_slots: int, good_enough_L: Floats, shift: float, num_gpus: int
) -> tuple[Floats, Ints]:
    counts_LE = replicate(loads_LE, num_slots, num_gpus, shift)
    weights_LE = replica_weights(loads_LE, counts_LE)
    slots_LGS = pack(weights_LE, counts_LE, num_gpus)
    even_out(weights_LE, slots_LGS, good_enough_L, FIRST_ROUNDS)
    return weights_LE, slots_LGS
