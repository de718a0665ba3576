"""Units that come and go by a timetable, and what whoever follows it has to do about them, in order.

    start -> warm-up -> serve -> drain -> stop      one run of a unit

    start   give it its nodes, so that it is ready when it is needed
    serve   it must be ready from now on
    drain   send it nothing new; it finishes what it has
    stop    its nodes are free from now on

A unit whose next start would come before the end of this run goes on as if it were wanted all the while: its nodes
would not become free (`transitions.py`).

Nothing here asks what time it is or does anything, so that a cluster's controller and a day that is played on one
machine decide alike.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from planner.schedule.clock import changes_between, units_at
from planner.schedule.timetable import Timetable

__all__ = ["KINDS", "Act", "Kind", "Run", "acts_of", "runs_between"]

Kind = Literal["start", "serve", "drain", "stop"]
KINDS: tuple[Kind, ...] = ("start", "serve", "drain", "stop")  # of one run, in order


@dataclass(frozen=True)
class Run:
    """A unit from its start to its end, in seconds since 1970-01-01 00:00 UTC.

    `serves` is None for a unit that is on from before the time that was asked for, and `drains` for one that is on
    after it.
    """

    unit: str
    serves: float | None
    drains: float | None
    warm_up_s: float
    drain_s: float

    @property
    def starts(self) -> float | None:
        """When it takes its nodes."""
        return None if self.serves is None else self.serves - self.warm_up_s

    @property
    def stops(self) -> float | None:
        """When its nodes are free again."""
        return None if self.drains is None else self.drains + self.drain_s


@dataclass(frozen=True)
class Act:
    """Something to be done about a unit at an instant."""

    instant: float
    kind: Kind
    unit: str


def runs_between(timetable: Timetable, begin: int, end: int) -> tuple[Run, ...]:
    """Return the runs of which some part, warm-up and drain included, lies after `begin` and before `end`."""
    warm_up_s, drain_s = timetable.warm_up_s, timetable.drain_s
    reach = round(warm_up_s + drain_s)
    found: list[Run] = []
    last: dict[str, int] = {}  # unit -> the place of its last run
    for unit, serves, drains in _services(timetable, begin - reach, end + reach):
        stops = found[last[unit]].stops if unit in last else None
        if stops is not None and serves is not None and serves - warm_up_s < stops:
            found[last[unit]] = replace(found[last[unit]], drains=drains)
        else:
            last[unit] = len(found)
            found.append(Run(unit, serves, drains, warm_up_s, drain_s))
    return tuple(
        run for run in found if (run.starts is None or run.starts < end) and (run.stops is None or run.stops > begin)
    )


def acts_of(runs: Sequence[Run]) -> tuple[Act, ...]:
    """Return what the runs ask for, in order of time.

    At one instant units serve before others drain, and start after others have stopped.
    """
    order: tuple[Kind, ...] = ("serve", "drain", "stop", "start")
    return tuple(sorted(_all_acts(runs), key=lambda act: (act.instant, order.index(act.kind))))


def _all_acts(runs: Sequence[Run]) -> Iterator[Act]:
    for run in runs:
        for kind, instant in zip(KINDS, (run.starts, run.serves, run.drains, run.stops), strict=True):
            if instant is not None:
                yield Act(instant, kind, run.unit)


def _services(timetable: Timetable, begin: int, end: int) -> Iterator[tuple[str, int | None, int | None]]:
    """Yield each unit, since when it is on, and until when; those of one unit are in order of time."""
    since: dict[str, int | None] = dict.fromkeys(units_at(timetable, begin))
    for change in changes_between(timetable, begin, end):
        for unit in change.stops:
            yield unit, since.pop(unit), change.instant
        since |= dict.fromkeys(change.starts, change.instant)
    for unit, serves in since.items():
        yield unit, serves, None
