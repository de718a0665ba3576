"""The windows of a day out of its traffic: the fewest node-hours that carry each hour's demand.

    units needed in an hour = units of the phase x demand of the hour / demand of the busiest, rounded up, 1 at least

So the phase's units are what the busiest hour takes, with whatever headroom its user gives it. Demand is even within an
hour, and units change at quarters of an hour. Each phase has its own best day (`optimum.py`); a window begins wherever
one of them changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from planner.facts.terms import Phase
from planner.schedule.optimum import Switching, fewest_unit_slots, unit_slots
from planner.spec.hours import DAY_MINUTES
from planner.spec.schedule import ScheduleSpec

__all__ = ["DerivedDay", "derived_day"]

SLOT_MINUTES = 15
SLOTS = DAY_MINUTES // SLOT_MINUTES
ROUNDING = 1e-9


@dataclass(frozen=True)
class DerivedDay:
    """The windows as a spec writes them, and nodes on average over the day."""

    windows: tuple[dict[str, Any], ...]
    mean_nodes: float  # with those of units that warm up or drain
    bound: float  # that serve at least: no day of these units has fewer


def derived_day(
    schedule: ScheduleSpec, profile: Sequence[float], units: Mapping[Phase, int], nodes_per_unit: Mapping[Phase, int]
) -> DerivedDay:
    """Return the best day; `units` carry the busiest of the 24 hours of `profile`, which are not all 0."""
    switching = Switching(
        schedule.warm_up / 60 / SLOT_MINUTES,
        schedule.drain / 60 / SLOT_MINUTES,
        ceil(schedule.min_stay / 60 / SLOT_MINUTES),
    )
    needed = {phase: _needed(profile, number) for phase, number in units.items()}
    days = {phase: fewest_unit_slots(each, switching) for phase, each in needed.items()}
    return DerivedDay(
        windows=tuple(_windows(days)),
        mean_nodes=sum(nodes_per_unit[phase] * unit_slots(on, switching) for phase, on in days.items()) / SLOTS,
        bound=sum(nodes_per_unit[phase] * sum(each) for phase, each in needed.items()) / SLOTS,
    )


def _needed(profile: Sequence[float], units: int) -> list[int]:
    """Return how many of `units` each slot needs."""
    busiest, slots_per_hour = max(profile), SLOTS // len(profile)
    hourly = [max(1, ceil(units * demand / busiest - ROUNDING)) for demand in profile]
    return [number for number in hourly for _ in range(slots_per_hour)]


def _windows(days: Mapping[Phase, Sequence[int]]) -> list[dict[str, Any]]:
    """Return a window for each change of any phase, in the order of the day; one at midnight where nothing changes."""
    changes = [slot for slot in range(SLOTS) if any(on[slot] != on[slot - 1] for on in days.values())]
    return [
        {"at": _time_of(slot)} | {f"{phase}_units": on[slot] for phase, on in days.items()} for slot in changes or [0]
    ]


def _time_of(slot: int) -> str:
    return f"{slot * SLOT_MINUTES // 60:02}:{slot * SLOT_MINUTES % 60:02}"
