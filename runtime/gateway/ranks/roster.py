"""The known ranks by unit and number: those that are connected, and the latest of the lost ones.

Anybody who reaches the registry can send a made-up Hello and leave. So the number of lost ranks is bounded; they are
kept only for the status. Connected ranks are bounded by the gateway's open files.
It does not decide which rank is admitted.
"""

from collections.abc import Collection, Iterator

from runtime.gateway.ranks.rank_connection import Rank

__all__ = ["MAX_LOST", "Roster"]

MAX_LOST = 1024  # assumed: three of DeepSeek-V3's decode units, which have 320 ranks


class Roster:
    """All known ranks, by unit and number."""

    def __init__(self) -> None:
        self._units: dict[str, dict[int, Rank]] = {}
        self._lost: dict[Rank, None] = {}  # in the order in which they were lost

    def __iter__(self) -> Iterator[Rank]:
        return (rank for ranks in self._units.values() for rank in ranks.values())

    def __getitem__(self, key: tuple[str, int]) -> Rank:
        unit, number = key
        return self._units[unit][number]

    def get(self, unit: str, number: int) -> Rank | None:
        """Return the rank of this number, or None."""
        return self._units.get(unit, {}).get(number)

    def unit_ranks(self, unit: str) -> Collection[Rank]:
        """Return the unit's ranks, in no particular order."""
        return self._units.get(unit, {}).values()

    def group_by_unit(self) -> Iterator[tuple[str, list[Rank]]]:
        """Yield each unit with its ranks, both sorted."""
        for unit, ranks in sorted(self._units.items()):
            yield unit, [ranks[number] for number in sorted(ranks)]

    def add(self, rank: Rank) -> None:
        """Add a rank, which replaces an earlier one with the same unit and number."""
        unit, number = rank.hello.unit, rank.hello.rank
        self._forget(self.get(unit, number))
        self._units.setdefault(unit, {})[number] = rank

    def mark_lost(self, rank: Rank) -> None:
        """Record that a known rank is lost. If too many ranks are lost, forget the rank that was lost first."""
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
