"""The number of units of a phase that the measured load needs, whatever the day's schedule says. Pure.

    asked = the largest of   requests / (a unit's places x used)
                             KV       / (a unit's room   x used)
                             prompts  / (a unit's step   x backlog)     rounded up, at most twice what is ready

Worked example, decode units of 144 ranks with 128 places each and `used: 0.9`: 40,000 requests ask for
40,000 / (18,432 x .9) = 2.4, so for three units. While three are ready they are kept though the day wants two; where
two are, a third one starts once this has lasted.

    more    at once as far as units are on already; beyond these, once it has been asked for during `after_s`
    fewer   the most that was asked for since the last change, once `stay_s` have passed

So a short burst starts nothing, and a short pause stops nothing. What is kept between two looks is a `Floor` for each
phase, in the deployment's status.

Source of the formula and of the most that is asked for at a time: kubernetes.io, HorizontalPodAutoscaler; AIBrix
@4148b7a pkg/controller/podautoscaler/algorithm/apa.go (a rate of 2).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from planner.facts.terms import Phase

__all__ = ["Demand", "Floor", "Limits", "Load", "Room", "demanded_units", "follow_demand", "follow_phase"]

MAX_RATE = 2
ROUNDING = 1e-9


@dataclass(frozen=True)
class Load:
    """The load of a phase's ready units, as gateways measure it."""

    num_ready: int
    num_requests: float
    kv_tokens: float
    prompt_tokens: float


@dataclass(frozen=True)
class Room:
    """The capacity of one unit of a phase; 0 for a quantity that does not limit it."""

    num_requests: int
    kv_tokens: int
    prompt_tokens: int  # prompt tokens that all its ranks compute in one step


@dataclass(frozen=True)
class Limits:
    """How full units may be before another is added, and for how long an added unit stays."""

    used: float  # the highest share in use of a unit's room for requests and for KV
    backlog: float  # the most prompts waiting, in steps of a unit
    after_s: float
    stay_s: float


@dataclass(frozen=True)
class Floor:
    """The fewest units of a phase to keep on. Times are wall-clock time, in seconds since 1970-01-01 00:00 UTC."""

    units: int
    until: float  # when fewer units may be enough
    peak: int  # the most units that demand asked for since the floor changed last
    since: float | None = None  # since when demand exceeds the units on; None if it does not


@dataclass(frozen=True)
class Demand:
    """The number of units of each phase that demand asks for after one look."""

    floors: Mapping[Phase, Floor]
    expected_units: Mapping[Phase, int]  # units that will be on if the demand lasts
    unknown: str | None = None  # why the load is not known; the floors then stay as they were


def follow_demand(
    before: Mapping[Phase, Floor],
    loads: Mapping[Phase, Load],
    rooms: Mapping[Phase, Room],
    planned: Mapping[Phase, int],
    now: float,
    limits: Limits,
) -> Demand:
    """Return each phase's demand for units, given its load and the number that the day has `planned`.

    `before` are the floors of the previous look, and `rooms` says how much load a phase's units take. A phase without
    a measured load keeps its floor.
    """
    floors, soon = dict(before), {}
    for phase, load in loads.items():
        asked = demanded_units(load, rooms[phase], limits)
        floors[phase] = follow_phase(before.get(phase), asked, planned.get(phase, 0), now, limits)
        if floors[phase].since is not None:
            soon[phase] = asked
    return Demand(floors, soon)


def demanded_units(load: Load, room: Room, limits: Limits) -> int:
    """Return how many units keep this load within `limits`, at most twice the ready ones."""
    shares = (
        (load.num_requests, room.num_requests * limits.used),
        (load.kv_tokens, room.kv_tokens * limits.used),
        (load.prompt_tokens, room.prompt_tokens * limits.backlog),
    )
    asked = max((has / most for has, most in shares if most), default=0.0)
    return min(ceil(asked - ROUNDING), MAX_RATE * load.num_ready)


def follow_phase(before: Floor | None, asked: int, planned: int, now: float, limits: Limits) -> Floor:
    """Return a phase's new floor, if its load needs `asked` units and the day has `planned`.

    The floor rises once the load has needed more units than are on for `limits.after_s`. After `limits.stay_s` it
    falls to the most units that the load has needed in that time.
    """
    longest = now + limits.stay_s  # the minimum also holds if the clock was set back
    floor = replace(before, until=min(before.until, longest)) if before else Floor(min(asked, planned), longest, 0)
    on = max(planned, floor.units)
    if asked > on:
        since = now if floor.since is None else min(floor.since, now)
        if now - since < limits.after_s:
            return replace(floor, peak=on, since=since)
        return Floor(asked, longest, asked)
    peak = max(floor.peak, asked)
    if now >= floor.until:
        return Floor(peak, longest, asked)
    return Floor(max(floor.units, asked), floor.until, peak)
