"""The windows of a day out of its traffic: the fewest node-hours that carry the demand.

    units on >= units asked for (`demand.py`) x (1 + headroom), rounded up, and >= the floor

A number of units lasts for `min_stay`. Demand is even within an entry of the profile. Units change at quarters of an
hour, or every five minutes where entries are no quarters; a slot needs what the largest entry that reaches into it asks
for. Each phase has its own best day (`optimum.py`); a window begins wherever one of them changes. Days that are unlike
have windows of their own, and meet at midnight in one state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from planner.facts.day import DAY_MINUTES, hh_mm
from planner.facts.terms import Phase
from planner.schedule.demand import whole_units
from planner.schedule.optimum import Switching, fewest_of_each_day, fewest_unit_slots, unit_slots
from planner.spec.schedule import ScheduleSpec

__all__ = ["Asked", "DerivedDay", "derived_days"]

STEP_MINUTES = 15  # the shortest between two steps of DeepSeek's chart: open-infra-index, day 6
FINE_STEP_MINUTES = 5  # assumed: shorter than any warm-up, so that finer steps would gain little

Asked = Mapping[Phase, Sequence[float]]  # the units of each phase that every entry of a day asks for


@dataclass(frozen=True)
class DerivedDay:
    """The windows as a spec writes them, and nodes on average over the day."""

    windows: tuple[dict[str, Any], ...]
    mean_nodes: float  # with those of units that warm up or drain
    bounds: Mapping[Phase, float]  # nodes that serve at least: no day has fewer

    @property
    def bound(self) -> float:
        """Return the nodes that no day of these units has fewer of."""
        return sum(self.bounds.values())

    @property
    def binding(self) -> Phase:
        """Return the phase that has most of these nodes."""
        return max(self.bounds, key=lambda phase: self.bounds[phase])


def derived_days(
    schedule: ScheduleSpec, asked: Sequence[Asked], nodes_per_unit: Mapping[Phase, int]
) -> tuple[DerivedDay, ...]:
    """Return the best day of each kind, of which `asked` has what it asks for."""
    entries = {DAY_MINUTES // len(each) for day in asked for each in day.values()}
    slot_minutes = FINE_STEP_MINUTES if any(each % STEP_MINUTES for each in entries) else STEP_MINUTES
    num_slots = DAY_MINUTES // slot_minutes
    switching = _switching(schedule, slot_minutes)
    needed = [{phase: _needed(schedule, phase, each, num_slots) for phase, each in day.items()} for day in asked]
    best = {phase: _best([day[phase] for day in needed], switching) for phase in asked[0]}
    return tuple(
        DerivedDay(
            windows=tuple(_windows({phase: on[kind] for phase, on in best.items()}, slot_minutes)),
            mean_nodes=sum(nodes_per_unit[phase] * unit_slots(on[kind], switching) for phase, on in best.items())
            / num_slots,
            bounds={phase: nodes_per_unit[phase] * sum(each) / num_slots for phase, each in day.items()},
        )
        for kind, day in enumerate(needed)
    )


def _best(needed: Sequence[Sequence[int]], switching: Switching) -> Sequence[Sequence[int]]:
    """Return the units of a phase in each slot of each kind of day."""
    return [fewest_unit_slots(needed[0], switching)] if len(needed) == 1 else fewest_of_each_day(needed, switching)


def _switching(schedule: ScheduleSpec, slot_minutes: int) -> Switching:
    slot_s = 60 * slot_minutes
    return Switching(
        warm_up=schedule.warm_up / slot_s,
        drain=schedule.drain / slot_s,
        stay=ceil(schedule.min_stay / slot_s),
    )


def _needed(schedule: ScheduleSpec, phase: Phase, asked: Sequence[float], num_slots: int) -> list[int]:
    """Return how many units each slot needs."""
    floor, capacity = schedule.min_units.of(phase), 1 + schedule.headroom
    entries = [whole_units(units * capacity, floor) for units in asked]
    return [max(entries[_entries_in(slot, num_slots, len(entries))]) for slot in range(num_slots)]


def _entries_in(slot: int, num_slots: int, num_entries: int) -> slice:
    """Return the entries that reach into a slot: equal parts of the day both."""
    return slice(slot * num_entries // num_slots, ceil((slot + 1) * num_entries / num_slots))


def _windows(days: Mapping[Phase, Sequence[int]], slot_minutes: int) -> list[dict[str, Any]]:
    """Return a window for each change of any phase, in the order of the day; one at midnight where nothing changes."""
    num_slots = DAY_MINUTES // slot_minutes
    changes = [slot for slot in range(num_slots) if any(on[slot] != on[slot - 1] for on in days.values())]
    return [
        {"at": hh_mm(slot * slot_minutes)} | {f"{phase}_units": on[slot] for phase, on in days.items()}
        for slot in changes or [0]
    ]
