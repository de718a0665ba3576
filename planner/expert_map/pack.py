"""Which GPU of a unit each replica of a layer goes to.

Longest first: replicas in falling order of load, each to the GPU that carries least so far, has a free slot and does
not hold the expert yet. When every GPU with a free slot holds it, one replica makes room: it moves to such a GPU from
a full one, which takes the new replica. That is always possible (the full GPU holds more different experts than the
one with room, so one of them is not there yet): no GPU ever holds an expert twice.

It is a good packing, not the best one, and it does not look at nodes or at the previous map.
"""

import heapq
import math
from collections.abc import Sequence

__all__ = ["pack"]


def pack(loads: Sequence[int], counts: Sequence[int], num_gpus: int) -> list[list[int]]:
    """The experts on each GPU, `[num_gpus][slots_per_gpu]`; counts as `replicate` gave them."""
    slots_per_gpu = sum(counts) // num_gpus
    assert slots_per_gpu * num_gpus == sum(counts)
    weights = _replica_weights(loads, counts)
    held: list[list[int]] = [[] for _ in range(num_gpus)]
    with_room = [(0, gpu) for gpu in range(num_gpus)]  # a heap of (load, GPU)
    for expert in sorted(range(len(counts)), key=lambda expert: (-weights[expert], expert)):
        for _ in range(counts[expert]):
            _place(expert, weights, held, with_room, slots_per_gpu)
    return held


def _replica_weights(loads: Sequence[int], counts: Sequence[int]) -> list[int]:
    """Load of one replica of each expert, all scaled alike so that they are integers: sums compare exactly."""
    scale = math.lcm(*counts)
    return [load * (scale // count) for load, count in zip(loads, counts, strict=True)]


def _place(
    expert: int, weights: list[int], held: list[list[int]], with_room: list[tuple[int, int]], slots_per_gpu: int
) -> None:
    """Put one replica of `expert` onto a GPU, and that GPU back into the heap while it has room."""
    passed_over = []
    while with_room and expert in held[with_room[0][1]]:
        passed_over.append(heapq.heappop(with_room))
    if with_room:
        load, gpu = heapq.heappop(with_room)
        added = expert
    else:
        load, gpu = passed_over.pop(0)
        added = _make_room(expert, gpu, held, slots_per_gpu)
    held[gpu].append(added)
    if len(held[gpu]) < slots_per_gpu:
        heapq.heappush(with_room, (load + weights[added], gpu))
    for entry in passed_over:
        heapq.heappush(with_room, entry)


def _make_room(expert: int, gpu: int, held: list[list[int]], slots_per_gpu: int) -> int:
    """Put `expert` in the place of another on a full GPU; the other, which `gpu` lacks and now gets."""
    full = next(experts for experts in held if len(experts) == slots_per_gpu and expert not in experts)
    slot = max(slot for slot, other in enumerate(full) if other not in held[gpu])
    moved, full[slot] = full[slot], expert
    return moved
