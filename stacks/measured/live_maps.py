"""Units that serve get better expert maps by themselves, within limits: on this machine and in a cluster.

    ready -> counts of rows at the beginning, middle and end of `every` -> a better map -> its switch -> anew

A thread does this for one unit after the other, since ranks may answer late and a switch takes its time. So only one
unit switches at a time, and no epoch of ours is handed over before the last one is decided. Whoever looks never waits.
"""

import time
from collections import deque
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from planner.facts.quantities import counted
from planner.plan.sections import LiveMap
from planner.problems.errors import TidemillError
from stacks.measured.better_map import bytes_to_restore, find_better_map
from stacks.measured.epochs import Ending, InService, Rows
from stacks.measured.halves import Halves, MeasuredLoads
from stacks.measured.limits import Limits
from stacks.measured.moved import Moved, promise, promise_of_plan, read_totals
from stacks.measured.recorded import read_recorded

__all__ = ["LiveMaps", "ServingUnit", "Visit"]

NUM_FORMER = 10  # assumed: older switches tell little of the present load
RETRY_S = 5.0  # assumed: ranks that do not answer have a reason that lasts for seconds


class ServingUnit(Protocol):
    """A unit that is ready, and how to reach it. The methods may wait, so `LiveMaps` calls them in a thread."""

    @property
    def name(self) -> str:
        """The unit's name."""

    @property
    def num_ranks(self) -> int:
        """The number of the unit's ranks."""

    @property
    def rules(self) -> LiveMap:
        """The rules that the unit's maps must keep."""

    @property
    def life(self) -> Hashable:
        """A value that differs once the unit has started again."""

    @property
    def metrics(self) -> Sequence[str]:
        """The URLs of the metrics of the unit's ranks."""

    def map_in_service(self) -> InService:
        """Return the map that the unit's ranks follow. Raises OSError or ValueError if they do not answer."""

    def hand_over(self, rows: Rows, found: InService) -> Ending:
        """Let the unit switch from `found` to the map `rows`, and wait for the outcome.

        The unit keeps its map if it is no longer in the epoch `found`. Raises OSError or ValueError if no rank answers.
        """


@dataclass(frozen=True)
class Visit:
    """The outcome of a visit to one unit, which reads its counts and may change its map.

    `said` is a sentence for `status`, empty without news; `in_service` is the unit's map, None if it was not read.
    """

    unit: str
    said: str = ""
    in_service: InService | None = None
    has_switched: bool = False
    has_failed: bool = False


class LiveMaps:
    """Gives units better expert maps, visiting one unit at a time. Keeps the measured loads of all units."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._measured: dict[str, MeasuredLoads] = {}
        self._again_at: dict[str, float] = {}
        self._adopted: dict[str, InService] = {}  # by unit, what it has switched to last
        self._found: dict[str, str] = {}  # by unit, the digest of its epoch at the last visit
        self._moved: dict[str, deque[Moved]] = {}  # by unit, what its last switches have moved
        self._thread = ThreadPoolExecutor(1, "maps")
        self._visit: Future[Visit] | None = None

    def look(self, units: Sequence[ServingUnit]) -> Visit | None:
        """Start the next visit to a unit that is due.

        Return the outcome of the last visit if it has ended since, else None.
        """
        ended = None
        if self._visit is not None and self._visit.done():
            ended, self._visit = self._visit.result(), None
            if ended.has_failed:
                self._again_at[ended.unit] = time.monotonic() + RETRY_S
        if self._visit is None and (unit := next(filter(self._is_due, units), None)) is not None:
            self._visit = self._thread.submit(self._visit_unit, unit)
        return ended

    def _is_due(self, unit: ServingUnit) -> bool:
        """Return whether a unit's ranks have to be asked for their row counts now."""
        measured = self._measured.setdefault(unit.name, MeasuredLoads(self._limits.every_s))
        now = time.monotonic()
        return now >= self._again_at.get(unit.name, now) and measured.is_due(now, unit.life)

    # on the thread

    def _visit_unit(self, unit: ServingUnit) -> Visit:
        """Visit a unit: read its row counts and, once they cover a whole period, decide about its map and switch."""
        try:
            found, rows = unit.map_in_service(), read_recorded(unit.metrics).loads
            self._note_epoch(unit, found)
            halves = self._measured[unit.name].add(time.monotonic(), unit.life, rows)
            if found.epoch == 0 and (former := self._adopted.pop(unit.name, None)) is not None:
                return self._restore(unit, found, former)
            return Visit(unit.name, in_service=found) if halves is None else self._decide(unit, found, halves)
        except (OSError, TidemillError, ValueError, LookupError) as error:
            return Visit(unit.name, f"its loads or its map cannot be read: {error}", has_failed=True)

    def _note_epoch(self, unit: ServingUnit, found: InService) -> None:
        """Measure a unit's loads anew if it has another map than before: loads of its former map decide nothing."""
        if self._found.get(unit.name) != found.digest:
            self._measured[unit.name], self._found[unit.name] = MeasuredLoads(self._limits.every_s), found.digest

    def _decide(self, unit: ServingUnit, found: InService, halves: Halves) -> Visit:
        """Switch a unit to a better map, if there is one within the limits.

        Raises OSError or ValueError if the unit's first rank does not answer.
        """
        better = find_better_map(*halves, found.rows, unit.num_ranks, unit.rules, self._limits)
        if better.why_not is not None:
            return Visit(unit.name, f"{better}, but {better.why_not}" if better.moves else better.why_not, found)
        return self._switch(unit, found, better.physical_to_logical, better.num_bytes, str(better))

    def _restore(self, unit: ServingUnit, found: InService, former: InService) -> Visit:
        """Switch a unit that has started again to its map of before.

        Keep its present map if its plan has changed, or if the limits forbid the move.
        """
        num_bytes = bytes_to_restore(former, found, unit.rules, self._limits)
        if num_bytes is None:
            return Visit(unit.name, in_service=found)
        moves = num_bytes // unit.rules.expert_bytes
        said = f"the map of before it started again, for {counted(moves, 'expert')}"
        return self._switch(unit, found, former.rows, num_bytes, said)

    def _switch(self, unit: ServingUnit, found: InService, rows: Rows, num_bytes: int, said: str) -> Visit:
        """Let a unit follow `rows`, which move `num_bytes`, in place of the map `found`.

        Return the visit, which says `said` and what the move took, beside what was promised.
        """
        former = self._moved.setdefault(unit.name, deque(maxlen=NUM_FORMER))
        planned = promise_of_plan(unit.rules, rows, unit.num_ranks, num_bytes)
        promised, before = promise(former, planned), read_totals(unit.metrics)
        ending = unit.hand_over(rows, found)
        if ending.reason is not None:
            return Visit(unit.name, f"it is in epoch {ending.number}: {ending.reason}", found, has_failed=True)
        self._adopted[unit.name] = adopted = InService(ending.number, rows, found.unit_digest, ending.digest)
        self._note_epoch(unit, adopted)
        with suppress(OSError, ValueError):  # it has switched, whoever can be asked how
            moved = read_totals(unit.metrics).since(before)
            former.append(moved)
            said = f"{said}; {moved.beside(promised)}"
        return Visit(unit.name, said, adopted, has_switched=True)
