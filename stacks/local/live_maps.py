"""How a unit on this machine is reached to change its map: its ranks' metrics, and the socket of its first rank."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from planner.plan.sections import LiveMap
from stacks.local.hand_over import epoch_file, hand_over, map_in_service
from stacks.local.layout import LiveSettings
from stacks.local.record import Record, UnitRecord
from stacks.measured.epochs import Ending, InService, Rows
from stacks.measured.live_maps import LiveMaps

__all__ = ["LiveMaps", "note_live_maps"]


@dataclass(frozen=True)
class _Unit:
    """A `ServingUnit` whose launch file is in `folder`."""

    name: str
    num_ranks: int
    rules: LiveMap
    life: tuple[int, int]
    metrics: tuple[str, ...]
    folder: Path

    def map_in_service(self) -> InService:
        """Return the map of the unit's epoch."""
        return map_in_service(self.folder, self.name)

    def hand_over(self, rows: Rows) -> Ending:
        """Let the unit follow another map.

        Raises ValueError if somebody has changed its map since the loads were measured.
        """
        if _last_change(self.folder, self.name) != self.life[1]:
            raise ValueError("somebody else has changed its map meanwhile")
        answer = hand_over(self.folder, self.name, rows)
        return Ending(answer["number"], answer.get("reason"))


def note_live_maps(record: Record, live: LiveMaps, settings: LiveSettings, folder: Path) -> Record:
    """Let `live` look at the units that serve. Return the record with the outcome of the visit to a unit that ended."""
    visit = live.look(list(_serving_units(record, settings, folder)))
    if visit is None:
        return record
    (unit,) = (unit for unit in record.units if unit.name == visit.unit)
    if visit.has_switched and visit.in_service is not None:
        return record.with_unit(replace(unit, own_epoch=visit.in_service.epoch, own_reason=visit.said, decision=None))
    return record.with_unit(replace(unit, decision=visit.said or unit.decision))


def _serving_units(record: Record, settings: LiveSettings, folder: Path) -> Iterator[_Unit]:
    for unit in record.units:
        if unit.state == "ready" and unit.phase in settings.rules:
            yield _serving_unit(unit, settings.rules[unit.phase], folder)


def _serving_unit(unit: UnitRecord, rules: LiveMap, folder: Path) -> _Unit:
    life = unit.restarts, _last_change(folder, unit.name)
    return _Unit(unit.name, unit.ranks, rules, life, tuple(f"http://{each}/metrics" for each in unit.metrics), folder)


def _last_change(folder: Path, unit: str) -> int:
    """Return when the unit's map last changed, in nanoseconds: the time of its epoch's document; 0 without one."""
    try:
        return (folder / epoch_file(unit)).stat().st_mtime_ns
    except OSError:
        return 0
