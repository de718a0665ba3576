"""Which prefill rank and which decode rank take a request: the ones with the fewest requests, in turn among equals.

Why in turn: ranks that are equally loaded would otherwise be chosen by name, and under light load the last ones never.
It counts requests, not their tokens or KV.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Pair", "RankLoad", "choose_pair", "least_loaded"]


@dataclass(frozen=True, order=True)
class RankLoad:
    """A rank that can take requests, and how many it has."""

    unit: str
    rank: int
    num_requests: int


@dataclass(frozen=True)
class Pair:
    """Where one request runs."""

    prefill: RankLoad
    decode: RankLoad


def choose_pair(prefill: Sequence[RankLoad], decode: Sequence[RankLoad], turn: int) -> Pair | None:
    """A rank of each phase, `turn` being how many were chosen before; None when a phase has no rank."""
    if not prefill or not decode:
        return None
    return Pair(least_loaded(prefill, turn), least_loaded(decode, turn))


def least_loaded(ranks: Sequence[RankLoad], turn: int) -> RankLoad:
    """One of the ranks with the fewest requests. `ranks` is not empty; its order does not matter."""
    fewest = min(load.num_requests for load in ranks)
    equals = sorted(load for load in ranks if load.num_requests == fewest)
    return equals[turn % len(equals)]
