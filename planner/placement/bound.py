"""Lower bounds on the leaves of a placement and the racks of a state, if whole units do not fill leaves.

A leaf of 32 nodes holds one unit of 18 and three of 4, and 2 nodes are left over. A sum of nodes misses this waste. So
the tables here go through the leaves one by one, for all numbers of whole units of two sizes:

    room[a, b, k]   most nodes that are left over under k leaves, with a and b whole units under any leaves
    racks[a, b]     fewest racks that hold a and b whole units, each under one leaf

A split unit is under two leaves or more. U split units that use E leaves beyond one each have E + U pieces, under at
most E + U leaves, and all their nodes must have room there. The least E for which they have is the bound. It ignores
which pieces make up a unit and which racks they are in, so no placement is below it.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Kinds", "min_extra_leaves", "min_racks", "racks_by_whole_units"]

Kinds = tuple[tuple[int, int], tuple[int, int]]  # nodes of a unit, and how many such units, of two sizes

MAX_STEPS = 10**8  # of computing a table, about 0.1 s; beyond that, only the plain bound is used
NEVER = -(10**9)


@lru_cache(maxsize=32)
def min_extra_leaves(leaves: tuple[int, ...], kinds: Kinds, large: tuple[int, int]) -> int:
    """Return the fewest leaves that units need beyond one each.

    `leaves`: the nodes under each. `kinds`: units that fit under the largest leaf. `large`: the nodes of all larger
    units, and the fewest leaves for them, which do not count as extra.
    """
    room = _room(leaves, kinds)
    if room is None:
        return 0
    nodes, pieces = large

    def is_enough(extra: int) -> bool:
        return any(
            _left_over(room, kinds, split, extra + sum(split) + pieces)
            >= nodes + sum(number * size for number, (size, _) in zip(split, kinds, strict=True))
            for split in _splits(kinds, extra)
        )

    num_units = sum(number for _, number in kinds)
    return bisect_left(range(num_units), True, key=is_enough)


def _splits(kinds: Kinds, most: int) -> Iterator[tuple[int, int]]:
    """Yield the possible numbers of split units of each size, at most `most` in total."""
    (_, num_small), (_, num_big) = kinds
    for of_small in range(min(num_small, most) + 1):
        for of_big in range(min(num_big, most - of_small) + 1):
            yield of_small, of_big


def _left_over(room: "npt.NDArray[np.int64]", kinds: Kinds, split: tuple[int, int], num_leaves: int) -> int:
    """Return how many nodes under `num_leaves` leaves are left over by whole units."""
    (_, num_small), (_, num_big) = kinds
    return int(room[num_small - split[0], num_big - split[1], min(num_leaves, room.shape[2] - 1)])


@lru_cache(maxsize=32)
def racks_by_whole_units(racks: tuple[tuple[int, ...], ...], kinds: Kinds) -> "npt.NDArray[np.int64] | None":
    """Return the fewest racks for a and b whole units of each size, `[a, b]`; None if that takes too long.

    `racks` has the sizes of each leaf's racks, largest first.
    """
    import numpy as np

    (small, num_small), (big, num_big) = kinds
    if _num_steps([sum(own) for own in racks], kinds) > MAX_STEPS:
        return None
    table = np.full((num_small + 1, num_big + 1), -NEVER, np.int64)
    table[0, 0] = 0
    for own in racks:
        fewest = [0, *(number for number, size in enumerate(own, 1) for _ in range(size))]
        before, table = table, np.full_like(table, -NEVER)
        for a, b in _patterns(sum(own), kinds):
            to = table[a:, b:]
            np.minimum(to, before[: to.shape[0], : to.shape[1]] + fewest[a * small + b * big], out=to)
    return table


def min_racks(table: "npt.NDArray[np.int64] | None", num_small: int, num_big: int, num_split: int) -> int:
    """Return the fewest racks for these units of each size if up to `num_split` of them may be split."""
    if table is None:
        return 0
    whole = [(num_small - a, num_big - b) for a, b in _splits(((1, num_small), (1, num_big)), num_split)]
    return min(int(table[a, b]) for a, b in whole)


def _room(leaves: Sequence[int], kinds: Kinds) -> "npt.NDArray[np.int64] | None":
    """Return the most nodes left over under up to k leaves, `[a, b, k]`.

    If that takes too long, k has one entry, for any number of leaves; if even that does, return None.
    """
    import numpy as np

    (small, num_small), (big, num_big) = kinds
    steps = 2 * _num_steps(leaves, kinds)
    if steps > MAX_STEPS:
        return None
    counted = steps * (len(leaves) + 1) <= MAX_STEPS
    room = np.full((num_small + 1, num_big + 1, len(leaves) + 1 if counted else 1), NEVER, np.int64)
    room[0, 0, 0] = 0
    for size in leaves:
        before, room = room, np.full_like(room, NEVER)
        for a, b in _patterns(size, kinds):
            to = room[a:, b:]
            own = before[: to.shape[0], : to.shape[1]]
            left_over = size - a * small - b * big
            if counted:
                np.maximum(to, own, out=to)
                np.maximum(to[:, :, 1:], own[:, :, :-1] + left_over, out=to[:, :, 1:])
            else:
                np.maximum(to, own + left_over, out=to)
    return np.maximum.accumulate(room, axis=2)


def _num_steps(leaves: Sequence[int], kinds: Kinds) -> int:
    """Return the most steps that a table without k takes."""
    (small, num_small), (big, num_big) = kinds
    patterns = sum((min(num_small, size // small) + 1) * (min(num_big, size // big) + 1) for size in leaves)
    return patterns * (num_small + 1) * (num_big + 1)


def _patterns(size: int, kinds: Kinds) -> Iterator[tuple[int, int]]:
    """Yield the numbers of whole units of each size that fit under one leaf."""
    (small, num_small), (big, num_big) = kinds
    for b in range(min(num_big, size // big) + 1):
        for a in range(min(num_small, (size - b * big) // small) + 1):
            yield a, b
