"""Units on this machine get better expert maps by themselves, within the limits of `expert_load.live`.

    ready -> counts of rows at the beginning, middle and end of `every` -> a better map -> its switch -> anew

A thread does this for one unit after the other, since ranks may answer late and a switch takes its time. So only one
unit switches at a time, and no epoch of ours is handed over before the last one is decided. The supervisor looks and
never waits.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from planner.problems.errors import TidemillError
from stacks.local.hand_over import epoch_file, hand_over, map_in_service
from stacks.local.layout import LiveSettings
from stacks.local.record import Record, UnitRecord
from stacks.measured.halves import Halves, MeasuredLoads

__all__ = ["LiveMaps"]

RETRY_S = 5.0  # assumed: ranks that do not answer have a reason that lasts for seconds


@dataclass(frozen=True)
class _Turn:
    """What came of one turn of a unit: a sentence for `status`, and the epoch if the unit has switched."""

    unit: str
    said: str = ""
    epoch: int | None = None
    has_failed: bool = False


class LiveMaps:
    """The measured loads of all units, and the turn that is under way."""

    def __init__(self, folder: Path, settings: LiveSettings) -> None:
        self._folder, self._settings = folder, settings  # the folder of launch files
        self._measured: dict[str, MeasuredLoads] = {}
        self._again_at: dict[str, float] = {}
        self._thread = ThreadPoolExecutor(1, "maps")
        self._turn: Future[_Turn] | None = None

    def look(self, record: Record) -> Record:
        """Return the record with what the last turn brought, and begin the next one that is due."""
        if self._turn is not None and self._turn.done():
            record = self._note(record, self._turn.result())
            self._turn = None
        if self._turn is None:
            unit = next((unit for unit in record.units if self._is_due(unit)), None)
            self._turn = None if unit is None else self._thread.submit(self._take_turn, unit, self._life(unit))
        return record

    def _note(self, record: Record, turn: _Turn) -> Record:
        if turn.has_failed:
            self._again_at[turn.unit] = time.monotonic() + RETRY_S
        (unit,) = (unit for unit in record.units if unit.name == turn.unit)
        if turn.epoch is not None:
            return record.with_unit(replace(unit, own_epoch=turn.epoch, own_reason=turn.said, decision=None))
        return record.with_unit(replace(unit, decision=turn.said or unit.decision))

    def _is_due(self, unit: UnitRecord) -> bool:
        """Return whether a unit's ranks have to be asked for their counts now."""
        if unit.state != "ready" or unit.phase not in self._settings.rules:
            return False
        measured = self._measured.setdefault(unit.name, MeasuredLoads(self._settings.limits.every))
        now = time.monotonic()
        return now >= self._again_at.get(unit.name, now) and measured.is_due(now, self._life(unit))

    def _life(self, unit: UnitRecord) -> tuple[int, int]:
        """Return what differs once a unit has started again, or follows another map."""
        try:
            return unit.restarts, (self._folder / epoch_file(unit.name)).stat().st_mtime_ns
        except OSError:
            return unit.restarts, 0

    # on the thread

    def _take_turn(self, unit: UnitRecord, life: tuple[int, int]) -> _Turn:
        """Read a unit's counts. Once there are the loads of a whole time, decide about its map and carry that out."""
        from stacks.measured.recorded import read_recorded  # loads an HTTP client

        try:
            counted = read_recorded([f"http://{address}/metrics" for address in unit.metrics]).loads
            halves = self._measured[unit.name].add(time.monotonic(), life, counted)
            return _Turn(unit.name) if halves is None else self._decide(unit, life, halves)
        except (OSError, TidemillError, ValueError) as error:
            return _Turn(unit.name, f"its loads or its map cannot be read: {error}", has_failed=True)

    def _decide(self, unit: UnitRecord, life: tuple[int, int], halves: Halves) -> _Turn:
        """Let a unit follow the better map, if there is one within the limits.

        Raises OSError or ValueError if its first rank does not answer.
        """
        from stacks.measured.better_map import find_better_map  # loads numpy

        rows, rules = map_in_service(self._folder, unit.name), self._settings.rules[unit.phase]
        better = find_better_map(*halves, rows, unit.ranks, rules, self._settings.limits)
        if better.why_not is not None:
            return _Turn(unit.name, f"{better}, but {better.why_not}" if better.moves else better.why_not)
        if life != self._life(unit):
            return _Turn(unit.name)  # somebody else has changed the map
        ending = hand_over(self._folder, unit.name, better.physical_to_logical)
        if "reason" in ending:
            return _Turn(unit.name, f"it went back from a better map: {ending['reason']}", has_failed=True)
        return _Turn(unit.name, f"{better}, in {ending['seconds']:.1f} s", epoch=ending["number"])
