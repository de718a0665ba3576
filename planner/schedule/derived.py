"""Derive the windows of a day from its traffic: the fewest node-hours that serve the demand.

    units on >= demand in units x (1 + headroom), rounded up, and >= the floor

Demand in units is that of a profile's entry over the capacity of one unit: 2.4 means that two are too few. There are
two sources of a unit's capacity. If the spec gives the number of units, these just serve the busiest entry of all days,
because the user chose the number for it. If speed decided the number, a unit serves its predicted rate under the SLO.

A number of units lasts for at least `min_stay`. Units change at quarters of an hour, or every five minutes if profile
entries do not begin at quarters. A slot needs the units of the largest entry that overlaps it. Each phase has its own
best day (`optimum.py`), and a window begins whenever one of them changes. Different kinds of day have windows of their
own, and all begin at midnight with the same units.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, fsum
from typing import Any

from planner.facts.day import DAY_MINUTES, DAY_S, hh_mm
from planner.facts.terms import Phase
from planner.schedule.optimum import Switching, count_unit_slots, solve_day, solve_days
from planner.spec.schedule import ScheduleSpec

__all__ = ["Demand", "DerivedDay", "demand_from_rate", "demand_from_units", "derive_days", "round_up_units"]

STEP_MINUTES = 15  # the shortest between two steps of DeepSeek's chart: open-infra-index, day 6
ROUNDING = 1e-9
FINE_STEP_MINUTES = 5  # assumed: shorter than any warm-up, so that finer steps would gain little

Demand = Mapping[Phase, Sequence[float]]  # each phase's demand in every entry of a day, in units


@dataclass(frozen=True)
class DerivedDay:
    """The windows of a day, as in a spec, and the mean number of nodes."""

    windows: tuple[dict[str, Any], ...]
    mean_nodes: float  # with those of units that warm up or drain
    bounds: Mapping[Phase, float]  # lower bound on the mean number of serving nodes

    @property
    def bound(self) -> float:
        """Return a lower bound on the mean number of nodes."""
        return sum(self.bounds.values())

    @property
    def binding(self) -> Phase:
        """Return the phase with most nodes of the bound."""
        return max(self.bounds, key=lambda phase: self.bounds[phase])


def derive_days(
    schedule: ScheduleSpec, demands: Sequence[Demand], nodes_per_unit: Mapping[Phase, int]
) -> tuple[DerivedDay, ...]:
    """Return the best day of each kind; `demands` has the demand of each kind."""
    entries = {DAY_MINUTES // len(each) for day in demands for each in day.values()}
    slot_minutes = FINE_STEP_MINUTES if any(each % STEP_MINUTES for each in entries) else STEP_MINUTES
    num_slots = DAY_MINUTES // slot_minutes
    switching = _switching(schedule, slot_minutes)
    needed = [{phase: _needed(schedule, phase, each, num_slots) for phase, each in day.items()} for day in demands]
    best = {phase: _best([day[phase] for day in needed], switching) for phase in demands[0]}
    return tuple(
        DerivedDay(
            windows=tuple(_windows({phase: on[kind] for phase, on in best.items()}, slot_minutes)),
            mean_nodes=sum(nodes_per_unit[phase] * count_unit_slots(on[kind], switching) for phase, on in best.items())
            / num_slots,
            bounds={phase: nodes_per_unit[phase] * sum(each) / num_slots for phase, each in day.items()},
        )
        for kind, day in enumerate(needed)
    )


def demand_from_units(profile: Sequence[float], units: float, carried: float | None = None) -> tuple[float, ...]:
    """Return the demand of each entry in units, if `units` just serve a demand of `carried`, by default the highest.

    Some entry must be above 0.
    """
    most = carried or max(profile)
    return tuple(units * demand / most for demand in profile)


def demand_from_rate(profile: Sequence[float], tokens_per_day: float, tokens_per_s: float) -> tuple[float, ...]:
    """Return the demand of each entry in units, if one unit makes `tokens_per_s`."""
    total, entry_s = fsum(profile) or 1.0, DAY_S / len(profile)
    return tuple(tokens_per_day * demand / total / entry_s / tokens_per_s for demand in profile)


def round_up_units(asked: float, floor: int) -> int:
    """Return the whole number of units for a demand of `asked` units, at least `floor`."""
    return max(floor, ceil(asked - ROUNDING))


def _best(needed: Sequence[Sequence[int]], switching: Switching) -> Sequence[Sequence[int]]:
    """Return the units of a phase in each slot of each kind of day."""
    return [solve_day(needed[0], switching)] if len(needed) == 1 else solve_days(needed, switching)


def _switching(schedule: ScheduleSpec, slot_minutes: int) -> Switching:
    slot_s = 60 * slot_minutes
    return Switching(
        warm_up=schedule.warm_up / slot_s,
        drain=schedule.drain / slot_s,
        stay=ceil(schedule.min_stay / slot_s),
    )


def _needed(schedule: ScheduleSpec, phase: Phase, demands: Sequence[float], num_slots: int) -> list[int]:
    """Return the number of units that each slot needs."""
    floor, capacity = schedule.min_units.of(phase), 1 + schedule.headroom
    entries = [round_up_units(units * capacity, floor) for units in demands]
    return [max(entries[_entries_in(slot, num_slots, len(entries))]) for slot in range(num_slots)]


def _entries_in(slot: int, num_slots: int, num_entries: int) -> slice:
    """Return the entries that overlap a slot. Slots and entries divide the day equally."""
    return slice(slot * num_entries // num_slots, ceil((slot + 1) * num_entries / num_slots))


def _windows(days: Mapping[Phase, Sequence[int]], slot_minutes: int) -> list[dict[str, Any]]:
    """Return a window for each change of any phase, in order; one at midnight if nothing changes."""
    num_slots = DAY_MINUTES // slot_minutes
    changes = [slot for slot in range(num_slots) if any(on[slot] != on[slot - 1] for on in days.values())]
    return [
        {"at": hh_mm(slot * slot_minutes)} | {f"{phase}_units": on[slot] for phase, on in days.items()}
        for slot in changes or [0]
    ]
