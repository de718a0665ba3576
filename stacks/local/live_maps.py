"""How a unit on this machine is reached to change its map: its ranks' metrics, and the socket of its first rank."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from planner.plan.sections import LiveMap
from stacks.local.hand_over import hand_over
from stacks.local.layout import LiveSettings
from stacks.local.record import Record, UnitRecord
from stacks.measured.epochs import Ending, InService, Rows, fetch_epoch, read_in_service
from stacks.measured.live_maps import LiveMaps, Visit

__all__ = ["LiveMaps", "note_live_maps"]

ASK_S = 10.0  # assumed: a page with a map has some hundred kB


@dataclass(frozen=True)
class _Unit:
    """A `ServingUnit` whose launch file is in `folder`."""

    name: str
    num_ranks: int
    rules: LiveMap
    life: int
    metrics: tuple[str, ...]
    folder: Path

    def map_in_service(self) -> InService:
        """Return the map that the unit's first rank shows. Raises OSError or ValueError if the rank does not answer."""
        return read_in_service(fetch_epoch(self.metrics[0], self.name, ASK_S))

    def hand_over(self, rows: Rows, found: InService) -> Ending:
        """Let the unit follow another map, if it is still in the epoch `found`."""
        answer = hand_over(self.folder, self.name, rows, after=found.digest)
        return Ending(answer["number"], answer["digest"], answer.get("reason"))


def note_live_maps(record: Record, live: LiveMaps, settings: LiveSettings, folder: Path) -> Record:
    """Let `live` look at the units that serve. Return the record with the outcome of the visit to a unit that ended."""
    visit = live.look(list(_serving_units(record, settings, folder)))
    if visit is None:
        return record
    (unit,) = (unit for unit in record.units if unit.name == visit.unit)
    return record.with_unit(_note_visit(unit, visit))


def _note_visit(unit: UnitRecord, visit: Visit) -> UnitRecord:
    """Return a unit's record after a visit. What the visit cannot read says nothing about the unit's map."""
    found = visit.in_service
    if found is None:
        return replace(unit, unread=visit.said)
    if visit.has_switched:
        return replace(unit, own_digest=found.digest, own_reason=visit.said, decision=None, unread=None)
    unit = replace(unit, decision=visit.said or unit.decision, unread=None)
    return unit if found.digest == unit.own_digest else replace(unit, own_digest=None, own_reason="")


def _serving_units(record: Record, settings: LiveSettings, folder: Path) -> Iterator[_Unit]:
    for unit in record.units:
        if unit.state == "ready" and unit.phase in settings.rules:
            yield _serving_unit(unit, settings.rules[unit.phase], folder)


def _serving_unit(unit: UnitRecord, rules: LiveMap, folder: Path) -> _Unit:
    metrics = tuple(f"http://{each}/metrics" for each in unit.metrics)
    return _Unit(unit.name, unit.ranks, rules, unit.restarts, metrics, folder)
