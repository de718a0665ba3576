"""The moves from one expert map of a layer to another, in rounds after each of which the layer holds every expert.

    map       what each rank holds. Slots of a rank are interchangeable, so an expert that stays at its rank keeps its
              slot, and a rank gets only the experts that it lacks: no way to the map has fewer moves
    move      a slot's next expert, and a slot to copy it from
    round     moves that take effect together, between two steps. A rank has at most `staging` of them, because it
              receives their experts into memory of its own before they take effect
    chain     the fewest moves that can take effect alone. Where the last copy of an expert makes room, the rank that
              lacks this expert gets it in the same chain

One expert of staging is enough for any two maps. A chain visits a rank once: it ends where the expert that makes room
has another copy, or comes back to a rank that it has visited. Then the visits from there on are a ring, in which each
rank gets what its predecessor gives up.

Worked example, two slots a rank: 0 1 | 2 3 | 0 2 becomes 0 3 | 2 1 | 1 2. Of experts 1 and 3 there is one copy each, so
slots 1 and 3 are a chain: they change together, each from the other. Slot 4 is a chain of its own, because expert 0 has
another copy. No rank has two moves, so all three are one round, and expert 1 comes from slot 1 to both of its places.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Move", "Round", "plan_rounds"]


@dataclass(frozen=True)
class Move:
    """A copy of `expert` from slot `source` to `slot`. Slots are numbered rank by rank."""

    slot: int
    expert: int
    source: int


@dataclass(frozen=True)
class Round:
    """Moves of one layer that take effect together, and the layer's map afterwards."""

    moves: tuple[Move, ...]
    physical_to_logical: list[int]


def plan_rounds(current: Sequence[int], wanted: Sequence[int], nodes: Sequence[int], staging: int) -> Iterator[Round]:
    """Yield the rounds from the map `current` to a map in which each rank holds what it holds in `wanted`.

    `nodes` is each rank's node. No rank has more than `staging` moves in a round.
    """
    layer = _Layer(current, wanted, len(nodes))
    before, moved, load = list(current), dict[int, int](), Counter[int]()
    while chain := layer.next_chain():
        ranks = [slot // layer.slots_per_rank for slot in chain]
        if any(load[rank] == staging for rank in ranks):
            yield _make_round(before, moved, nodes)
            before = _apply(before, moved)
            moved, load = {}, Counter()
        moved |= chain
        load.update(ranks)
        layer.apply(chain)
    if moved:
        yield _make_round(before, moved, nodes)


class _Layer:
    """A layer between two maps: what its slots hold now, and what each rank still lacks and can give up."""

    def __init__(self, current: Sequence[int], wanted: Sequence[int], num_ranks: int) -> None:
        self.slots = list(current)
        self.slots_per_rank = len(current) // num_ranks
        self._copies = Counter(current)
        self._lacking: list[list[int]] = []
        self._spare_slots: list[list[int]] = []
        for first in range(0, len(current), self.slots_per_rank):
            here = range(first, first + self.slots_per_rank)
            missing = Counter(wanted[slot] for slot in here)
            self._spare_slots.append([slot for slot in here if not _take_one(missing, current[slot])])
            self._lacking.append(sorted(missing.elements()))

    def next_chain(self) -> dict[int, int]:
        """Return slot -> expert of the next chain of moves; empty when every rank holds what it holds in `wanted`.

        In a chain, each move overwrites an expert that the next move copies elsewhere, unless other slots hold that
        expert too.
        """
        rank = next((rank for rank, experts in enumerate(self._lacking) if experts), None)
        if rank is None:
            return {}
        expert = self._lacking[rank][0]
        visits: dict[int, tuple[int, int]] = {}  # rank -> slot, expert
        while rank not in visits:
            slot = min(self._spare_slots[rank], key=lambda slot: (self._copies[self.slots[slot]] == 1, slot))
            visits[rank] = slot, expert
            expert = self.slots[slot]
            if self._copies[expert] > 1:
                return dict(visits.values())
            rank = next(rank for rank, experts in enumerate(self._lacking) if expert in experts)
        ring = list(visits)[list(visits).index(rank) :]
        return dict(visits[each] for each in ring) | {visits[rank][0]: expert}

    def apply(self, chain: dict[int, int]) -> None:
        """Give each slot in `chain` the expert it maps to, and update what ranks lack and can spare."""
        for slot, expert in chain.items():
            rank = slot // self.slots_per_rank
            self._copies[self.slots[slot]] -= 1
            self._copies[expert] += 1
            self.slots[slot] = expert
            self._lacking[rank].remove(expert)
            self._spare_slots[rank].remove(slot)


def _take_one(counts: Counter[int], expert: int) -> bool:
    """Lower the count of `expert` by one, unless it is 0. Return whether it was lowered."""
    is_there = counts[expert] > 0
    counts[expert] -= is_there
    return is_there


def _apply(layer: list[int], moved: dict[int, int]) -> list[int]:
    return [moved.get(slot, expert) for slot, expert in enumerate(layer)]


def _make_round(before: list[int], moved: dict[int, int], nodes: Sequence[int]) -> Round:
    """Return the round in which each slot in `moved` (slot -> expert) receives its expert from the nearest holder.

    If several slots that hold the expert are equally near, the slot that has sent least so far sends it.
    """
    slots_per_rank = len(before) // len(nodes)
    uses = Counter[int]()
    moves = []
    for slot, expert in sorted(moved.items()):
        holders = [other for other, held in enumerate(before) if held == expert]
        rank = slot // slots_per_rank
        source = min(
            holders,
            key=lambda other: (_distance(rank, other // slots_per_rank, nodes), uses[other // slots_per_rank], other),
        )
        uses[source // slots_per_rank] += 1
        moves.append(Move(slot, expert, source))
    return Round(tuple(moves), _apply(before, moved))


def _distance(rank: int, other: int, nodes: Sequence[int]) -> int:
    """Return 0 for the rank itself, 1 on its node, 2 on its rail (the same position in another node), else 3."""
    if rank == other:
        return 0
    if nodes[rank] == nodes[other]:
        return 1
    return 2 if nodes[:rank].count(nodes[rank]) == nodes[:other].count(nodes[other]) else 3
