"""Find few moves where one slot of a GPU is enough: which GPUs give a slot up, and which expert takes it.

A GPU that carries more than `enough` gives up a slot at least, and an expert that is too heavy for its replicas needs
one more slot. Every replica that lost its slot, and every new one, then needs one with room: `enough` less what the
other slots of that GPU carry. A replica that fits somewhere fits wherever there is more room, so there is a seat for
all of them if, and only if,

    for every weight t     replicas that weigh t or more  <=  given up slots with room for t or more

A slot given up by a GPU that carries too much adds one to the left for weights from its room to its weight, and one by
a GPU that carries less than enough adds one to the right for weights from its weight to its room. So the GPUs that give
up a slot without need have to cover an interval of weights each, and as few as can be are those that reach farthest,
from the least weight on (the greedy cover of a line by intervals). Which of its slots a too full GPU gives up is
then tried one by one.

No GPU gives up two slots: that would be a search again, and where few slots are on a GPU one of them is enough.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.expert_map.compiled import compiled
from planner.expert_map.layer import Layer, take
from planner.expert_map.order import rising
from planner.expert_map.weigh import Floats, Ints

__all__ = ["seat_cover"]

NONE = -1
# How long is searched: assumed, as what the benchmark's goals of moves and of time leave room for.
PASSES = 8
ATTEMPTS = 16
IMPOSSIBLE = 1 << 30
BARRED = 1 << 30  # a weight that nobody's room reaches


class Seats(NamedTuple):
    """Slots `[G, S]`. Weights and room are ranks among all of both, so that a cover is counted in whole numbers."""

    weights: Ints  # [G, S] of the expert there
    rooms: Ints  # [G, S] for who comes instead
    newcomers: Ints  # [ranks + 1] how many new replicas weigh at least so much: the differences from rank to rank
    given: Ints  # [G] the slot that a GPU has to give up, or NONE
    is_gone: NDArray[np.bool_]  # [G] who gives it up needs no other


@compiled
def seat_cover(layer: Layer, enough: float) -> bool:
    """Change one slot of some GPUs so that none carries more than `enough`.

    Return whether that was found. If not, the layer stays as it was.
    """
    counts = layer.counts.copy()
    if not _recount(layer, counts, enough):
        return False
    weights = np.floor(layer.loads / counts)
    carried = np.zeros(layer.carried.size)
    for gpu in range(carried.size):
        for expert in layer.slots[gpu]:
            carried[gpu] += weights[expert]
    seats = _seats(layer, counts, weights, carried, enough)
    covering = np.full(carried.size, NONE)
    for _ in range(ATTEMPTS):
        if _try_slots(seats, covering) >= IMPOSSIBLE:
            return False
        slots = layer.slots.copy()
        for gpu in range(carried.size):
            covering[gpu] = max(covering[gpu], seats.given[gpu])
        without = _seat(slots, layer.counts, counts, weights, enough - carried, covering, seats.is_gone)
        if without == NONE:
            take(layer, slots)
            return True
        if not _bar(seats, without, covering[without]):
            return False
    return False


@compiled
def _bar(seats: Seats, gpu: int, slot: int) -> bool:
    """Make the GPU keep the expert in that slot, and give up another slot if it must give up one.

    Return whether that is possible.
    """
    seats.weights[gpu, slot] = BARRED
    if seats.given[gpu] == NONE:
        return True
    seats.given[gpu] = seats.weights[gpu].argmin()
    return not seats.is_gone[gpu] and bool(seats.weights[gpu, seats.given[gpu]] != BARRED)


@compiled
def _recount(layer: Layer, counts: Ints, enough: float) -> bool:
    """Give experts too heavy for any GPU more replicas, taken from experts that get least heavy by losing one.

    Return whether that is possible.
    """
    num_gpus, slots_per_gpu = layer.slots.shape
    lightest = layer.loads[rising(layer.loads)[: slots_per_gpu - 1]].sum()
    missing = 0
    for expert in range(counts.size):
        while np.floor(layer.loads[expert] / counts[expert]) > enough - lightest:
            if counts[expert] == num_gpus:
                return False
            counts[expert] += 1
            missing += 1
    for _ in range(missing):
        giver, least = NONE, enough - lightest
        for expert in range(counts.size):
            if 1 < counts[expert] <= layer.counts[expert]:
                weight = layer.loads[expert] / (counts[expert] - 1)
                if weight <= least:
                    giver, least = expert, weight
        if giver == NONE:
            return False
        counts[giver] -= 1
    return True


@compiled
def _seats(layer: Layer, counts: Ints, weights: Floats, carried: Floats, enough: float) -> Seats:
    """Find the slots that must be given up.

    An expert with too many replicas gives up the one on the fullest GPU. A GPU that carries too much gives up its
    lightest.
    """
    num_gpus, slots_per_gpu = layer.slots.shape
    values = np.zeros(2 * layer.slots.size + weights.size)
    for gpu in range(num_gpus):
        for slot in range(slots_per_gpu):
            place = gpu * slots_per_gpu + slot
            values[place] = weights[layer.slots[gpu, slot]]
            values[layer.slots.size + place] = enough - carried[gpu] + values[place]
    for expert in range(weights.size):
        values[2 * layer.slots.size + expert] = weights[expert]
    ranks = _ranks(values)
    newcomers = np.zeros(values.size + 1, np.int64)
    given, is_gone = np.full(num_gpus, NONE), np.zeros(num_gpus, np.bool_)
    for expert in range(weights.size):
        for _ in range(counts[expert] - layer.counts[expert]):
            newcomers[0] += 1
            newcomers[ranks[2 * layer.slots.size + expert] + 1] -= 1
        for _ in range(layer.counts[expert] - counts[expert]):
            fullest, most = NONE, -1.0
            for gpu in layer.homes[expert, : layer.counts[expert]]:
                if carried[gpu] > most and given[gpu] == NONE:
                    fullest, most = gpu, carried[gpu]
            if fullest != NONE:
                is_gone[fullest] = True
                for slot in range(slots_per_gpu):
                    if layer.slots[fullest, slot] == expert:
                        given[fullest] = slot
    for gpu in range(num_gpus):
        if given[gpu] == NONE and carried[gpu] > enough:
            given[gpu] = 0
            for slot in range(1, slots_per_gpu):
                if weights[layer.slots[gpu, slot]] < weights[layer.slots[gpu, given[gpu]]]:
                    given[gpu] = slot
    return Seats(
        ranks[: layer.slots.size].copy().reshape(layer.slots.shape),
        ranks[layer.slots.size : 2 * layer.slots.size].copy().reshape(layer.slots.shape),
        newcomers,
        given,
        is_gone,
    )


@compiled
def _ranks(values: Floats) -> Ints:
    """Return the rank of each value, from 0 for the least; equal values share a rank."""
    ranks, rank, last = np.zeros(values.size, np.int64), NONE, -np.inf
    for place in rising(values):
        rank += values[place] > last
        last = values[place]
        ranks[place] = rank
    return ranks


@compiled
def _try_slots(seats: Seats, covering: Ints) -> int:
    """Let full GPUs give up other slots, while that lets fewer other GPUs give one up.

    Return how many others do. `covering` gets the slot of each.
    """
    fewest = _cover(seats, covering)
    trial = np.full(covering.size, NONE)
    for _ in range(PASSES):
        for gpu in range(covering.size):
            if seats.given[gpu] == NONE or seats.is_gone[gpu]:
                continue
            for slot in range(seats.weights.shape[1]):
                was = seats.given[gpu]
                if slot == was or seats.weights[gpu, slot] == BARRED:
                    continue
                seats.given[gpu] = slot
                num_covering = _cover(seats, trial)
                if num_covering > fewest:
                    seats.given[gpu] = was
                else:  # as many open the way to fewer
                    fewest = num_covering
                    for each in range(covering.size):
                        covering[each] = trial[each]
    return fewest


@compiled
def _cover(seats: Seats, covering: Ints) -> int:
    """Give up slots of GPUs with room left until every replica has a seat; return how many.

    `covering` gets the slot of each of those GPUs.
    """
    weights, rooms, newcomers, given, is_gone = seats
    num_gpus, slots_per_gpu = weights.shape
    needed = newcomers.copy()
    for gpu in range(num_gpus):
        covering[gpu] = NONE
        if given[gpu] != NONE:
            needed[0] -= 1
            needed[rooms[gpu, given[gpu]] + 1] += 1
            if not is_gone[gpu]:
                needed[0] += 1
                needed[weights[gpu, given[gpu]] + 1] -= 1
    missing, num_covering = 0, 0
    for rank in range(needed.size):
        missing += needed[rank]
        while missing > 0:
            best, best_slot, farthest = NONE, NONE, rank - 1
            for gpu in range(num_gpus):
                if given[gpu] == NONE and covering[gpu] == NONE:
                    for slot in range(slots_per_gpu):
                        if weights[gpu, slot] < rank and rooms[gpu, slot] > farthest:
                            best, best_slot, farthest = gpu, slot, rooms[gpu, slot]
            if best == NONE:
                return IMPOSSIBLE
            covering[best] = best_slot
            missing -= 1
            needed[farthest + 1] += 1
            num_covering += 1
    return num_covering


@compiled
def _seat(
    slots: Ints, old_counts: Ints, counts: Ints, weights: Floats, left: Floats, given: Ints, is_gone: NDArray[np.bool_]
) -> int:
    """Put every waiting replica into a slot with room: the slot with least room first, and into it the heaviest that
    fits.

    Return NONE, or the GPU whose slot no waiting replica can take, because it holds their experts already.
    """
    waiting = np.maximum(counts - old_counts, 0)
    rooms = np.full(given.size, np.inf)
    for gpu in range(given.size):
        if given[gpu] != NONE:
            expert = slots[gpu, given[gpu]]
            rooms[gpu] = left[gpu] + weights[expert]
            waiting[expert] += not is_gone[gpu]
    order = rising(rooms)
    for number in range(order.size):
        gpu = order[number]
        if given[gpu] == NONE:
            break
        best = _heaviest_that_fits(slots, waiting, weights, rooms[gpu], gpu, given[gpu])
        if best == NONE:
            best = _give_way(slots, waiting, weights, rooms, order[:number], given, gpu)
        if best == NONE:
            return int(gpu)
        waiting[best] -= 1
        slots[gpu, given[gpu]] = best
    return NONE


@compiled
def _heaviest_that_fits(slots: Ints, waiting: Ints, weights: Floats, room: float, gpu: int, given: int) -> int:
    """Return the heaviest waiting expert that fits the slot and that the GPU does not hold, or NONE."""
    best, most = NONE, -1.0
    for expert in range(waiting.size):
        if waiting[expert] > 0 and most < weights[expert] <= room and not _is_held(slots, gpu, given, expert):
            best, most = expert, weights[expert]
    return best


@compiled
def _is_held(slots: Ints, gpu: int, given: int, expert: int) -> bool:
    """Return whether a slot of the GPU other than `given` holds the expert."""
    found = False
    for slot in range(slots.shape[1]):
        found |= slot != given and slots[gpu, slot] == expert
    return found


@compiled
def _give_way(slots: Ints, waiting: Ints, weights: Floats, rooms: Floats, seated: Ints, given: Ints, gpu: int) -> int:
    """Find an expert seated before that can move to this GPU and be replaced by a waiting one.

    Return the expert, taken from its seat, or NONE. It helps when this GPU holds all experts that wait and would fit.
    """
    for other in seated:
        expert = slots[other, given[other]]
        if _is_held(slots, gpu, given[gpu], expert):
            continue
        instead = _heaviest_that_fits(slots, waiting, weights, rooms[other], other, given[other])
        if instead != NONE:
            waiting[instead] -= 1
            waiting[expert] += 1
            slots[other, given[other]] = instead
            return int(expert)
    return NONE
