"""Units that serve get better expert maps by themselves, within limits: on this machine and in a cluster.

    ready -> counts of rows at the beginning, middle and end of `every` -> a better map -> its switch -> anew

A thread does this for one unit after the other, since ranks may answer late and a switch takes its time. So only one
unit switches at a time, and no epoch of ours is handed over before the last one is decided. Whoever looks never waits.
"""

import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from planner.facts.digest import digest_of
from planner.plan.sections import LiveMap
from planner.problems.errors import TidemillError
from stacks.measured.better_map import Rows, find_better_map
from stacks.measured.halves import Halves, MeasuredLoads
from stacks.measured.limits import Limits
from stacks.measured.recorded import read_recorded

__all__ = ["Ending", "LiveMaps", "ServingUnit", "Turn"]

RETRY_S = 5.0  # assumed: ranks that do not answer have a reason that lasts for seconds


@dataclass(frozen=True)
class Ending:
    """The epoch that a unit is in after a switch, and why that is not the next one."""

    number: int
    reason: str | None = None


class ServingUnit(Protocol):
    """A unit that is ready, and how to reach it. The thread calls what may have to wait."""

    @property
    def name(self) -> str:
        """The unit's name."""

    @property
    def num_ranks(self) -> int:
        """The number of its ranks."""

    @property
    def rules(self) -> LiveMap:
        """What its maps have to keep."""

    @property
    def life(self) -> Hashable:
        """Something that differs once the unit has started again, or somebody else has changed its map."""

    @property
    def metrics(self) -> Sequence[str]:
        """The URLs of its ranks' metrics."""

    def map_in_service(self) -> Rows:
        """Return the map that the unit follows. Raises OSError or ValueError if it cannot be read."""

    def hand_over(self, rows: Rows) -> Ending:
        """Let the unit follow another map, and wait for the end. Raises OSError or ValueError if nobody answers."""


@dataclass(frozen=True)
class Turn:
    """What came of a turn: a sentence for `status`, empty without news, and the epoch if the unit has switched."""

    unit: str
    said: str = ""
    epoch: int | None = None
    map_digest: str | None = None  # of the map in service, if that was read
    has_failed: bool = False


class LiveMaps:
    """The measured loads of all units, and the turn that is under way."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._measured: dict[str, MeasuredLoads] = {}
        self._again_at: dict[str, float] = {}
        self._thread = ThreadPoolExecutor(1, "maps")
        self._turn: Future[Turn] | None = None

    def look(self, units: Sequence[ServingUnit]) -> Turn | None:
        """Return what the last turn brought, if it has ended, and begin the next one that is due."""
        ended = None
        if self._turn is not None and self._turn.done():
            ended, self._turn = self._turn.result(), None
            if ended.has_failed:
                self._again_at[ended.unit] = time.monotonic() + RETRY_S
        if self._turn is None and (unit := next(filter(self._is_due, units), None)) is not None:
            self._turn = self._thread.submit(self._take_turn, unit)
        return ended

    def _is_due(self, unit: ServingUnit) -> bool:
        """Return whether a unit's ranks have to be asked for their counts now."""
        measured = self._measured.setdefault(unit.name, MeasuredLoads(self._limits.every_s))
        now = time.monotonic()
        return now >= self._again_at.get(unit.name, now) and measured.is_due(now, unit.life)

    # on the thread

    def _take_turn(self, unit: ServingUnit) -> Turn:
        """Read a unit's counts. Once there are the loads of a whole time, decide about its map and carry that out."""
        try:
            halves = self._measured[unit.name].add(time.monotonic(), unit.life, read_recorded(unit.metrics).loads)
            return Turn(unit.name) if halves is None else self._decide(unit, halves)
        except (OSError, TidemillError, ValueError) as error:
            return Turn(unit.name, f"its loads or its map cannot be read: {error}", has_failed=True)

    def _decide(self, unit: ServingUnit, halves: Halves) -> Turn:
        """Let a unit follow the better map, if there is one within the limits.

        Raises OSError or ValueError if its first rank does not answer.
        """
        rows = unit.map_in_service()
        better = find_better_map(*halves, rows, unit.num_ranks, unit.rules, self._limits)
        if better.why_not is not None:
            said = f"{better}, but {better.why_not}" if better.moves else better.why_not
            return Turn(unit.name, said, map_digest=digest_of(rows))
        ending = unit.hand_over(better.physical_to_logical)
        if ending.reason is not None:
            said = f"it stays in epoch {ending.number}: {ending.reason}"
            return Turn(unit.name, said, map_digest=digest_of(rows), has_failed=True)
        del self._measured[unit.name]  # loads of the former map decide nothing
        return Turn(unit.name, str(better), ending.number, digest_of(better.physical_to_logical))
