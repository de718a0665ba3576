"""Units that one slow rank holds up: they are used last in their phase, so they stop first. Pure.

    slow        the gateway names it while it serves
    last        it was slow at every look for `LASTS_S`, and stays last until it has not been slow for as long

A unit that is off is not measured, so its state stays. The day wants numbers of units, and takes the first ones of each
phase in this order: those that are not last, by number, then those that are. So where another unit is off, it is
started, and the slow one goes once it is ready.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.facts.terms import Phase
from planner.schedule.schedule import Step
from stacks.controller.situation import Situation

__all__ = ["Suspect", "follow_stragglers", "move_last"]

LASTS_S = 120.0  # assumed: requests are spread unevenly for moments only


@dataclass(frozen=True)
class Suspect:
    """A unit that one slow rank may slow down. It is used last in its phase, now or soon."""

    is_last: bool
    since: float | None = None  # since when the gateway reports the opposite of `is_last`; None if it agrees


def follow_stragglers(
    before: Mapping[str, Suspect], slow: Collection[str], serving: Collection[str], now: float, lasts_s: float = LASTS_S
) -> dict[str, Suspect]:
    """Return the suspects after a look, from those `before` it.

    `slow` are those of the `serving` units that the gateway reports as slow. A change must last `lasts_s` to count.
    """
    after = {}
    for unit in sorted({*before, *slow}):
        known = before.get(unit, Suspect(False))
        is_slow = unit in slow if unit in serving else known.is_last
        found = _update_suspect(known, now, lasts_s) if is_slow != known.is_last else Suspect(known.is_last)
        if found != Suspect(False):
            after[unit] = found
    return after


def move_last(situation: Situation, last: Collection[str]) -> Situation:
    """Return the situation with the units in `last` behind the other units of their phase, in the schedule too."""
    units = sorted(situation.units, key=lambda unit: unit.name in last)  # keeps the order of all others
    queues: dict[Phase, Iterator[str]] = {
        phase: iter([unit.name for unit in units if unit.phase == phase]) for phase in situation.phases().values()
    }
    becomes = {unit.name: next(queues[unit.phase]) for unit in situation.units}
    by_name = {unit.name: unit for unit in units}
    day = situation.timetable
    others = tuple(replace(other, steps=_rename_units(other.steps, becomes)) for other in day.other_days)
    return replace(
        situation,
        timetable=replace(day, steps=_rename_units(day.steps, becomes), other_days=others),
        units=tuple(by_name[becomes[unit.name]] for unit in situation.units),
    )


def _rename_units(steps: Sequence[Step], becomes: Mapping[str, str]) -> tuple[Step, ...]:
    return tuple(replace(step, units=tuple(becomes[name] for name in step.units)) for step in steps)


def _update_suspect(known: Suspect, now: float, lasts_s: float) -> Suspect:
    since = now if known.since is None else min(known.since, now)  # the clock may have been set back
    return Suspect(not known.is_last) if now - since >= lasts_s else Suspect(known.is_last, since)
