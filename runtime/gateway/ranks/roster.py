"""The ranks that the registry knows, by unit and number: all that are connected, and of lost ones the latest.

Whoever reaches the registry may say the Hello of a rank that nobody is, and leave. So lost ranks, which are kept only
to be shown, have a bound. Those that are connected have the one of the gateway's open files.
It does not decide which rank may come.
"""

from collections.abc import Collection, Iterator

from runtime.gateway.ranks.rank_connection import Rank

__all__ = ["MAX_LOST", "Roster"]

MAX_LOST = 1024  # assumed: three of DeepSeek-V3's decode units, which have 320 ranks


class Roster:
    """Every rank that is known."""

    def __init__(self) -> None:
        self._units: dict[str, dict[int, Rank]] = {}
        self._lost: dict[Rank, None] = {}  # the one that was lost first comes first

    def __iter__(self) -> Iterator[Rank]:
        return (rank for ranks in self._units.values() for rank in ranks.values())

    def __getitem__(self, key: tuple[str, int]) -> Rank:
        unit, number = key
        return self._units[unit][number]

    def get(self, unit: str, number: int) -> Rank | None:
        """Return the rank of this number, or None."""
        return self._units.get(unit, {}).get(number)

    def unit_ranks(self, unit: str) -> Collection[Rank]:
        """Return the unit's ranks, in no order."""
        return self._units.get(unit, {}).values()

    def group_by_unit(self) -> Iterator[tuple[str, list[Rank]]]:
        """Yield each unit with its ranks, all in order."""
        for unit, ranks in sorted(self._units.items()):
            yield unit, [ranks[number] for number in sorted(ranks)]

    def add(self, rank: Rank) -> None:
        """Know a rank, in place of the one that had its number before."""
        unit, number = rank.hello.unit, rank.hello.rank
        self._forget(self.get(unit, number))
        self._units.setdefault(unit, {})[number] = rank

    def lose(self, rank: Rank) -> None:
        """Note that a rank is lost, if it is known. Forget the one that was lost first if there are too many."""
        if self.get(rank.hello.unit, rank.hello.rank) is rank:
            self._lost[rank] = None
            if len(self._lost) > MAX_LOST:
                self._forget(next(iter(self._lost)))

    def drop_unit(self, unit: str) -> None:
        """Forget the unit's ranks."""
        for rank in list(self.unit_ranks(unit)):
            self._forget(rank)

    def _forget(self, rank: Rank | None) -> None:
        if rank is None:
            return
        self._lost.pop(rank, None)
        ranks = self._units[rank.hello.unit]
        del ranks[rank.hello.rank]
        if not ranks:
            del self._units[rank.hello.unit]
