"""A heap of GPUs by their load: the lightest first, and the lower number first among equals.

A heap is an array of GPUs, of which the first `size` count: no parent carries more than its children.
"""

from typing import Any

from planner.expert_map.compiled import compiled
from planner.expert_map.weigh import Ints

__all__ = ["put", "sink"]


@compiled
def sink(heap: Ints, size: int, carried: Any) -> None:
    """Move the first GPU, whose load has risen, down to its place."""
    if size == 0:
        return
    gpu, place = heap[0], 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _is_before(heap[child + 1], heap[child], carried):
            child += 1
        if not _is_before(heap[child], gpu, carried):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = gpu


@compiled
def put(heap: Ints, size: int, gpu: int, carried: Any) -> None:
    """Add the GPU to the first `size`."""
    place = size
    while place > 0 and _is_before(gpu, heap[(place - 1) // 2], carried):
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = gpu


@compiled
def _is_before(gpu: int, other: int, carried: Any) -> bool:
    return bool(carried[gpu] < carried[other] or (carried[gpu] == carried[other] and gpu < other))
