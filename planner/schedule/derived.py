"""Derive the windows of a day from its traffic, so that they serve the demand with the fewest node-hours.

    units on >= demand in units x (1 + headroom), rounded up, and >= `schedule.min_units`

Demand in units is the demand of a profile's entry over the capacity of one unit: 2.4 means that two units are too few.
A unit's capacity has two sources. If the spec gives the number of units, these just serve the busiest entry of all
days, because the user chose the number for that entry. If speed decided the number, a unit serves its predicted rate
under the SLO.

The day is cut into slots of a quarter of an hour, or of five minutes if profile entries do not begin at quarters; units
change between slots only. A slot needs the units of the largest entry that overlaps it. Each phase has its own best day
(`optimum.py`), and a window begins whenever a phase's units change. Each kind of day (ordinary days, and those in
`other_days`) has its own windows, and all kinds begin at midnight with the same units.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, fsum
from typing import Any

from planner.facts.day import DAY_MINUTES, DAY_S, hh_mm
from planner.facts.terms import Phase
from planner.schedule.optimum import Switching, count_unit_slots, solve_day, solve_days
from planner.spec.schedule import ScheduleSpec

STEP_MINUTES = 15  # the shortest time between two steps of DeepSeek's chart: open-infra-index, day 6
ROUNDING = 1e-9
FINE_STEP_MINUTES = 5  # assumed: shorter than any warm-up, so that finer steps would gain little

Demand = Mapping[Phase, Sequence[float]]  # each phase's demand in every entry of a day, in units: 2.4 takes three units


@dataclass(frozen=True)
class DerivedDay:
    """The best windows for one kind of day, and the mean number of nodes that they take."""

    windows: tuple[dict[str, Any], ...]  # as a spec writes them
    mean_nodes: float  # nodes of units that warm up or drain included
    bounds: Mapping[Phase, float]  # lower bound on the mean number of serving nodes

    @property
    def bound(self) -> float:
        """A lower bound on the mean number of serving nodes of all phases together."""
        return sum(self.bounds.values())

    @property
    def binding(self) -> Phase:
        """The phase that takes most of the lower bound on serving nodes."""
        return max(self.bounds, key=lambda phase: self.bounds[phase])


def derive_days(
    schedule: ScheduleSpec, demands: Sequence[Demand], nodes_per_unit: Mapping[Phase, int]
) -> tuple[DerivedDay, ...]:
    """Return the windows with the fewest node-hours for each kind of day. `demands` has an entry for each kind."""
    entries = {DAY_MINUTES // len(each) for day in demands for each in day.values()}
    slot_minutes = FINE_STEP_MINUTES if any(each % STEP_MINUTES for each in entries) else STEP_MINUTES
    num_slots = DAY_MINUTES // slot_minutes
    switching = _switching(schedule, slot_minutes)
    needed = [
        {phase: _units_needed(schedule, phase, each, num_slots) for phase, each in day.items()} for day in demands
    ]
    best = {phase: _best_units([day[phase] for day in needed], switching) for phase in demands[0]}
    return tuple(
        DerivedDay(
            windows=tuple(_windows({phase: on[kind] for phase, on in best.items()}, slot_minutes)),
            mean_nodes=sum(nodes_per_unit[phase] * count_unit_slots(on[kind], switching) for phase, on in best.items())
            / num_slots,
            bounds={phase: nodes_per_unit[phase] * sum(each) / num_slots for phase, each in day.items()},
        )
        for kind, day in enumerate(needed)
    )


def demand_from_units(profile: Sequence[float], units: float, most: float) -> tuple[float, ...]:
    """Return each profile entry's demand, as a number of units, `[entries]`.

    An entry as high as `most` takes `units` units, and other entries take units in proportion.
    """
    return tuple(units * demand / most for demand in profile)


def demand_from_rate(profile: Sequence[float], tokens_per_day: float, tokens_per_s: float) -> tuple[float, ...]:
    """Return each profile entry's demand, as a number of units, `[entries]`. One unit serves `tokens_per_s`.

    The `tokens_per_day` are spread over the entries in proportion to `profile`.
    """
    total, entry_s = fsum(profile) or 1.0, DAY_S / len(profile)
    return tuple(tokens_per_day * demand / total / entry_s / tokens_per_s for demand in profile)


def round_up_units(asked: float, floor: int) -> int:
    """Return how many whole units serve a demand of `asked` units, at least `floor`."""
    return max(floor, ceil(asked - ROUNDING))


def _best_units(needed: Sequence[Sequence[int]], switching: Switching) -> Sequence[Sequence[int]]:
    """Return how many units of a phase are on, `[kind of day][slot]`: at least `needed`, in the fewest unit-slots."""
    return [solve_day(needed[0], switching)] if len(needed) == 1 else solve_days(needed, switching)


def _switching(schedule: ScheduleSpec, slot_minutes: int) -> Switching:
    slot_s = 60 * slot_minutes
    return Switching(
        warm_up=schedule.warm_up / slot_s,
        drain=schedule.drain / slot_s,
    )


def _units_needed(schedule: ScheduleSpec, phase: Phase, demands: Sequence[float], num_slots: int) -> list[int]:
    """Return how many units of `phase` each slot needs, `[num_slots]`.

    `demands` is each profile entry's demand, as a number of units that need not be whole.
    """
    floor, capacity = schedule.min_units.of(phase), 1 + schedule.headroom
    entries = [round_up_units(units * capacity, floor) for units in demands]
    return [max(entries[_entries_in(slot, num_slots, len(entries))]) for slot in range(num_slots)]


def _entries_in(slot: int, num_slots: int, num_entries: int) -> slice:
    """Return the slice of profile entries that overlap a slot. Slots and entries both divide the day equally."""
    return slice(slot * num_entries // num_slots, ceil((slot + 1) * num_entries / num_slots))


def _windows(days: Mapping[Phase, Sequence[int]], slot_minutes: int) -> list[dict[str, Any]]:
    """Return a window for each slot at which some phase's number of units changes; if none does, one at midnight.

    `days` is phase -> its number of units in each slot.
    """
    num_slots = DAY_MINUTES // slot_minutes
    changes = [slot for slot in range(num_slots) if any(on[slot] != on[slot - 1] for on in days.values())]
    return [
        {"at": hh_mm(slot * slot_minutes)} | {f"{phase}_units": on[slot] for phase, on in days.items()}
        for slot in changes or [0]
    ]
