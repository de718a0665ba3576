"""Units that serve get better expert maps by themselves, within limits: on this machine and in a cluster.

    ready -> counts of rows at the beginning, middle and end of `every` -> a better map -> its switch -> anew

A thread does this for one unit after the other, since ranks may answer late and a switch takes its time. So only one
unit switches at a time, and no epoch of ours is handed over before the last one is decided. Whoever looks never waits.
"""

import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from operator import ne
from typing import Protocol

from planner.facts.quantities import counted
from planner.plan.sections import LiveMap
from planner.problems.errors import TidemillError
from stacks.measured.better_map import find_better_map
from stacks.measured.epochs import Ending, InService, Rows
from stacks.measured.halves import Halves, MeasuredLoads
from stacks.measured.limits import Limits
from stacks.measured.recorded import read_recorded

__all__ = ["LiveMaps", "ServingUnit", "Turn"]

RETRY_S = 5.0  # assumed: ranks that do not answer have a reason that lasts for seconds


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

    def map_in_service(self) -> InService:
        """Return the map that the unit follows. Raises OSError or ValueError if it cannot be read."""

    def hand_over(self, rows: Rows) -> Ending:
        """Let the unit follow another map, and wait for the end. Raises OSError or ValueError if nobody answers."""


@dataclass(frozen=True)
class Turn:
    """What came of a turn: a sentence for `status`, empty without news, and the map in service, if that was read."""

    unit: str
    said: str = ""
    in_service: InService | None = None
    has_switched: bool = False
    has_failed: bool = False


class LiveMaps:
    """The measured loads of all units, and the turn that is under way."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._measured: dict[str, MeasuredLoads] = {}
        self._again_at: dict[str, float] = {}
        self._adopted: dict[str, InService] = {}  # by unit, what it has switched to last
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
            found, rows = unit.map_in_service(), read_recorded(unit.metrics).loads
            halves = self._measured[unit.name].add(time.monotonic(), unit.life, rows)
            if found.epoch == 0 and (former := self._adopted.pop(unit.name, None)) is not None:
                return self._restore(unit, found, former)
            return Turn(unit.name, in_service=found) if halves is None else self._decide(unit, found, halves)
        except (OSError, TidemillError, ValueError, LookupError) as error:
            return Turn(unit.name, f"its loads or its map cannot be read: {error}", has_failed=True)

    def _decide(self, unit: ServingUnit, found: InService, halves: Halves) -> Turn:
        """Let a unit follow the better map, if there is one within the limits.

        Raises OSError or ValueError if its first rank does not answer.
        """
        better = find_better_map(*halves, found.rows, unit.num_ranks, unit.rules, self._limits)
        if better.why_not is not None:
            return Turn(unit.name, f"{better}, but {better.why_not}" if better.moves else better.why_not, found)
        return self._switch(unit, found, better.physical_to_logical, str(better))

    def _restore(self, unit: ServingUnit, found: InService, former: InService) -> Turn:
        """Let a unit that has started again follow its map of before, unless its plan or the limits forbid that."""
        moves = sum(map(ne, chain(*former.rows), chain(*found.rows)))
        if former.unit_digest != found.unit_digest or moves * unit.rules.expert_bytes > self._limits.max_bytes:
            return Turn(unit.name, in_service=found)
        return self._switch(
            unit, found, former.rows, f"the map of before it started again, for {counted(moves, 'expert')}"
        )

    def _switch(self, unit: ServingUnit, found: InService, rows: Rows, said: str) -> Turn:
        ending = unit.hand_over(rows)
        if ending.reason is not None:
            return Turn(unit.name, f"it stays in epoch {ending.number}: {ending.reason}", found, has_failed=True)
        del self._measured[unit.name]  # loads of the former map decide nothing
        self._adopted[unit.name] = adopted = InService(ending.number, rows, found.unit_digest)
        return Turn(unit.name, said, adopted, has_switched=True)
