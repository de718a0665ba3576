"""Choose the ranks for a request, for its prompt and for its tokens: those with the fewest requests, in turn among
equals.

Why in turn: ranks that are equally loaded would otherwise be chosen by name, and under light load the last ones never.
It counts requests, not their tokens or KV.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Chosen", "RankLoad", "choose_ranks", "least_loaded", "room"]


@dataclass(frozen=True, order=True)
class RankLoad:
    """A rank that can take requests, and how many it has."""

    unit: str
    rank: int
    num_requests: int

    @property
    def key(self) -> tuple[str, int]:
        """The rank's identity."""
        return self.unit, self.rank


@dataclass(frozen=True)
class Chosen:
    """The ranks that one request's first token, and its other tokens, come from."""

    first: RankLoad
    rest: RankLoad


def choose_ranks(first: Sequence[RankLoad], rest: Sequence[RankLoad], turn: int) -> Chosen | None:
    """Return one rank of each kind, or None when there is none. `turn` is how often this was asked before.

    Mixed ranks come as both, and one of them is chosen as both.
    """
    if not first or not rest:
        return None
    return Chosen(least_loaded(first, turn), least_loaded(rest, turn))


def room(ranks: Sequence[RankLoad], most: int) -> int:
    """Return how many more requests the ranks may have together, at most `most` each."""
    return sum(max(most - load.num_requests, 0) for load in ranks)


def least_loaded(ranks: Sequence[RankLoad], turn: int) -> RankLoad:
    """Return one of the ranks with the fewest requests. `ranks` is not empty; its order does not matter."""
    fewest = min(load.num_requests for load in ranks)
    equals = sorted(load for load in ranks if load.num_requests == fewest)
    return equals[turn % len(equals)]
