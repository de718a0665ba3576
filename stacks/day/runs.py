"""List the runs of units that a timetable asks for, and the acts that carry these runs out, in order of time.

    start -> warm-up -> serve -> drain -> stop      one run of a unit

    start   give the unit its nodes, so that it is ready in time
    serve   the unit must be ready from now on
    drain   send the unit no new requests; it finishes those that it has
    stop    the unit's nodes are free from now on

If a unit's next start would come before the end of its run, the run goes on without a break, because the unit's nodes
would not become free (`planner/schedule/transitions.py`).

This module reads no clock and changes nothing, so a cluster's controller and a day played on one machine make the same
decisions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from planner.schedule.schedule import Timetable
from stacks.day.clock import changes_between, units_at

Kind = Literal["start", "serve", "drain", "stop"]
KINDS: tuple[Kind, ...] = ("start", "serve", "drain", "stop")  # of one run, in order


@dataclass(frozen=True)
class Run:
    """One run of a unit; times are in seconds since 1970-01-01 00:00 UTC.

    `serves` is None if the unit served already when the requested period began, `drains` if it still serves when
    the period ends.
    """

    unit: str
    serves: float | None
    drains: float | None
    warm_up_s: float
    drain_s: float

    @property
    def starts(self) -> float | None:
        """The instant at which the unit takes its nodes; None if `serves` is None."""
        return None if self.serves is None else self.serves - self.warm_up_s

    @property
    def stops(self) -> float | None:
        """The instant at which the unit's nodes are free again; None if `drains` is None."""
        return None if self.drains is None else self.drains + self.drain_s


@dataclass(frozen=True)
class Act:
    """One step of a unit's run (start, serve, drain or stop), due at an instant."""

    instant: float
    kind: Kind
    unit: str


def runs_between(timetable: Timetable, begin: int, end: int) -> tuple[Run, ...]:
    """Return the runs that overlap the time from `begin` to `end`, with their warm-up and drain."""
    warm_up_s, drain_s = timetable.warm_up_s, timetable.drain_s
    reach = round(warm_up_s + drain_s)
    found: list[Run] = []
    last: dict[str, int] = {}  # unit -> index of its last run in `found`
    for unit, serves, drains in _iterate_services(timetable, begin - reach, end + reach):
        stops = found[last[unit]].stops if unit in last else None
        if stops is not None and serves is not None and serves - warm_up_s < stops:
            found[last[unit]] = replace(found[last[unit]], drains=drains)
        else:
            last[unit] = len(found)
            found.append(Run(unit, serves, drains, warm_up_s, drain_s))
    return tuple(
        run for run in found if (run.starts is None or run.starts < end) and (run.stops is None or run.stops > begin)
    )


def list_acts(runs: Sequence[Run]) -> tuple[Act, ...]:
    """Return the acts of all `runs` in order of time.

    Acts at the same instant are in the order serve, drain, stop, start.
    """
    order: tuple[Kind, ...] = ("serve", "drain", "stop", "start")
    return tuple(sorted(_iterate_acts(runs), key=lambda act: (act.instant, order.index(act.kind))))


def _iterate_acts(runs: Sequence[Run]) -> Iterator[Act]:
    for run in runs:
        for kind, instant in zip(KINDS, (run.starts, run.serves, run.drains, run.stops), strict=True):
            if instant is not None:
                yield Act(instant, kind, run.unit)


def _iterate_services(timetable: Timetable, begin: int, end: int) -> Iterator[tuple[str, int | None, int | None]]:
    """Yield (unit, begin, end) for each period in which a unit is on. Periods of the same unit are in order.

    `begin` is None if the unit was on already when the requested time began, `end` if it is still on when that time
    ends.
    """
    since: dict[str, int | None] = dict.fromkeys(units_at(timetable, begin))
    for change in changes_between(timetable, begin, end):
        for unit in change.stops:
            yield unit, since.pop(unit), change.instant
        since |= dict.fromkeys(change.starts, change.instant)
    for unit, serves in since.items():
        yield unit, serves, None
