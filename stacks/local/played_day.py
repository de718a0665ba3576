"""A plan's day played in minutes: when each unit has to start and stop on this machine, and what is done by now.

    plan_play   timetable -> acts with their seconds since the play began; refuses a day that is too short
    advance     acts, seconds since the play began, states of the units -> units to start and to drain now

The day begins at midnight of the plan's clocks, when the units that serve then are ready, and lasts for 24 hours of
these clocks. Its hours shrink; processes still need seconds to start, and answers to end. So a unit starts ahead of its
time by the plan's warm-up or by what this machine needs, whichever is longer, and the same goes for the drain. A day so
short that a unit would start before it has ended is refused with the shortest that can be played. A unit whose start
would come before the day begins starts with the first ones.

It starts and ends nothing itself (`supervisor.py` does), and reads no clock.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from operator import itemgetter

from planner.facts.day import DAY_S, MINUTE_S, hh_mm, hh_mm_ss
from planner.facts.quantities import read_seconds
from planner.problems.errors import CallError, InfeasibleError
from planner.problems.finding import Finding
from planner.schedule.schedule import Timetable
from stacks.day.runs import Act, Kind, Run, list_acts, runs_between

__all__ = ["DayRecord", "DueAct", "MachineTimes", "advance", "machine_times", "plan_play", "read_length"]

START_S = 15.0  # assumed, like the next: on two cores busy answering streams, two demo ranks took 34 s to start
START_S_PER_RANK_ON_CORE = 30.0  # assumed: added for each rank per core that starts at the same time
DRAIN_S = 30.0  # assumed; the demo's answers of 160 tokens took up to 19 s on these cores
PATIENCE_S = 60.0  # assumed: acts not done so long after the day are not waited for
SHORTEST_S = 1.0
TOLERANCE_S = 0.5  # the supervisor looks every 0.2 s
PLAN_CLOCK = "UTC"  # a zone without offset or changes: the play shows the plan's own clocks


@dataclass(frozen=True)
class MachineTimes:
    """The seconds that this machine needs to start and to drain a unit."""

    start_s: float
    drain_s: float


@dataclass(frozen=True)
class DueAct:
    """One act of a unit's day: start, serve, drain or stop. Its seconds count from the beginning of the play.

    `done_s` is None until the act is done.
    """

    unit: str
    kind: Kind
    clock: str  # HH:MM:SS of the plan's clocks
    due_s: float
    done_s: float | None = None
    is_missed: bool = False  # whether it was not done before the unit's next act, or before the end
    reason: str | None = None  # why it failed

    @property
    def is_late(self) -> bool:
        """Whether a `serve` or `stop` came after its due time, or an act of any kind was missed."""
        if self.kind not in ("serve", "stop"):
            return self.is_missed
        return self.is_missed or (self.done_s is not None and self.done_s > self.due_s + TOLERANCE_S)


@dataclass(frozen=True)
class DayRecord:
    """The play of one day, which takes `length_s`.

    `began` is the time.monotonic() at which every first unit was ready.

    Other processes of this machine compare their own time.monotonic() with it; the wall clock may be set meanwhile.
    """

    length_s: float
    first_units: tuple[str, ...]
    acts: tuple[DueAct, ...]
    began: float | None = None
    is_over: bool = False

    @property
    def num_late(self) -> int:
        """The number of acts that were late, missed or failed."""
        return sum(act.is_late or act.reason is not None for act in self.acts)

    def clock(self, seconds: float) -> str:
        """Return the time of the played day, as HH:MM, `seconds` after its beginning."""
        return hh_mm(int(seconds * DAY_S / self.length_s) // 60)

    def next_act(self) -> DueAct | None:
        """Return the first act that is not done; None if there is none."""
        return next((act for act in self.acts if act.done_s is None and not act.is_missed), None)

    def wanted(self, seconds: float) -> tuple[str, ...]:
        """Return the names of the units that should serve `seconds` after the beginning of the play."""
        on = dict.fromkeys(unit for unit in self.first_units if self._serves_from_the_begin(unit))
        for act in self.acts:
            if act.due_s <= seconds and act.kind == "serve":
                on[act.unit] = None
            elif act.due_s <= seconds and act.kind == "drain":
                on.pop(act.unit, None)
        return tuple(on)

    def _serves_from_the_begin(self, unit: str) -> bool:
        return next((act.kind != "serve" for act in self.acts if act.unit == unit), True)


def read_length(written: str) -> float:
    """Return the seconds that `--day` gives, such as 300 for `5min`.

    Raises CallError if it is no length or out of range.
    """
    length_s = read_seconds(written)
    if length_s is None or not SHORTEST_S <= length_s <= DAY_S:
        rule = f"R118 --day ({written}) must be a number and s, min or h, from {SHORTEST_S:g}s to 24h"
        reason = "a day is never played slower than real time, and units take seconds to start"
        raise CallError([Finding("", None, rule, reason, "for example --day 5min").at("tidemill up")])
    return length_s


def machine_times(num_cores: int, largest_start: int) -> MachineTimes:
    """Return how many seconds a unit takes to start and how many to drain, on a machine with `num_cores`.

    `largest_start` is the largest number of ranks that start at once.
    """
    return MachineTimes(START_S + START_S_PER_RANK_ON_CORE * largest_start / num_cores, DRAIN_S)


def plan_play(timetable: Timetable | None, length_s: float, ranks: Mapping[str, int], num_cores: int) -> DayRecord:
    """Return the acts of a usual day of `timetable`, played in `length_s` seconds.

    `ranks` is unit -> its number of ranks.

    Raises CallError when no unit ever goes off, and InfeasibleError when the day is too short for this machine.
    """
    day = None if timetable is None else replace(timetable, timezone=PLAN_CLOCK, other_days=())
    if day is None or not day.switches:
        rule, reason = "R116 --day needs a plan that turns units on and off", "the units of this plan are always on"
        fix = "give the spec a schedule, or leave out --day"
        raise CallError([Finding("", None, rule, reason, fix).at("tidemill up")])
    runs = [run for run in runs_between(day, 0, DAY_S) if _is_played(run)]
    times = machine_times(num_cores, _largest_start(runs, ranks))
    _require_length(runs, day, length_s, times)
    pace = DAY_S / length_s
    played = [_extend_run(run, times, pace) for run in runs]
    acts = [act for act in list_acts(played) if act.instant > 0]
    first = {run.unit for run in played if run.starts is None or run.starts <= 0}
    return DayRecord(
        length_s,
        first_units=tuple(unit for unit in ranks if unit in first),
        acts=tuple(_due_act(act, pace) for act in acts),
    )


def advance(
    day: DayRecord, seconds: float, states: Mapping[str, str], reasons: Mapping[str, str | None]
) -> tuple[DayRecord, tuple[str, ...], tuple[str, ...]]:
    """Return (day, starts, drains): the day with the acts done by now marked, and the units to start and to drain now.

    `states` and `reasons` map each unit to the state and the reason in its record. A unit that is off has a reason only
    if it ended badly.
    """
    acts = list(day.acts)
    starts, drains = [], []
    for index, act in enumerate(acts):
        if act.done_s is not None or act.is_missed or not _is_next(acts, index):
            continue
        if act.kind == "start" and act.due_s <= seconds:
            acts[index] = replace(act, done_s=seconds)
            starts.append(act.unit)
        elif act.kind == "serve" and states[act.unit] == "ready":
            acts[index] = replace(act, done_s=seconds)
        elif act.kind == "drain" and act.due_s <= seconds:
            acts[index] = replace(act, done_s=seconds)
            drains.append(act.unit)
        elif act.kind == "stop" and states[act.unit] == "off":
            acts[index] = replace(act, done_s=seconds, reason=reasons.get(act.unit))
    last = max([day.length_s, *(act.due_s for act in acts)])
    acts = list(_mark_missed(acts, is_given_up=seconds > last + PATIENCE_S))
    is_over = seconds >= day.length_s and all(act.done_s is not None or act.is_missed for act in acts)
    return replace(day, acts=tuple(acts), is_over=is_over), tuple(starts), tuple(drains)


def _is_played(run: Run) -> bool:
    """Return whether a run serves at some time of the day.

    Runs that only drain or only warm up on that day are left out.
    """
    return (run.drains is None or run.drains > 0) and (run.serves is None or run.serves <= DAY_S)


def _largest_start(runs: Sequence[Run], ranks: Mapping[str, int]) -> int:
    """Return the largest number of ranks that begin to serve at the same time, not counting the day's first units."""
    at: dict[float, int] = {}
    for run in runs:
        if run.serves is not None:
            at[run.serves] = at.get(run.serves, 0) + ranks[run.unit]
    return max(at.values(), default=0)


def _require_length(runs: Sequence[Run], timetable: Timetable, length_s: float, times: MachineTimes) -> None:
    """Raise InfeasibleError if, in a day of `length_s`, a unit would have to start again before it has ended."""
    paces = {}
    for before, after in _consecutive_runs(runs):
        assert before.drains is not None
        assert after.serves is not None  # both are set, since there is a time between the runs
        off = after.serves - before.drains  # at least warm-up and drain: closer runs are merged into one
        paces[before.unit, off] = min(
            (off - timetable.drain_s) / times.start_s,
            (off - timetable.warm_up_s) / times.drain_s,
            off / (times.start_s + times.drain_s),
        )
    if not paces:
        return
    (unit, off), most = min(paces.items(), key=itemgetter(1))
    shortest = ceil(DAY_S / most)
    if length_s < shortest:
        rule = f"R117 --day ({length_s:g}s) must be {shortest}s or more for this plan on this machine"
        reason = (
            f"{unit} is off for {off / MINUTE_S:.0f} minutes of the day, which are {off * length_s / DAY_S:.0f} s at"
            f" this speed, but this machine may need {times.drain_s:.0f} s to drain it and {times.start_s:.0f} s to"
            " start it again"
        )
        raise InfeasibleError([Finding("", None, rule, reason, f"nearest: --day {shortest}s").at("tidemill up")])


def _consecutive_runs(runs: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """Yield each run together with the same unit's next run."""
    for unit in dict.fromkeys(run.unit for run in runs):
        yield from pairwise(run for run in runs if run.unit == unit)


def _extend_run(run: Run, times: MachineTimes, pace: float) -> Run:
    """Return the run with a warm-up and a drain at least as long as this machine needs for them.

    `pace` is seconds of the day's clock per real second.
    """
    return replace(
        run, warm_up_s=max(run.warm_up_s, times.start_s * pace), drain_s=max(run.drain_s, times.drain_s * pace)
    )


def _due_act(act: Act, pace: float) -> DueAct:
    return DueAct(act.unit, act.kind, hh_mm_ss(act.instant), round(act.instant / pace, 2))


def _is_next(acts: Sequence[DueAct], index: int) -> bool:
    """Return whether an act may be done now.

    A drain always may; any other act may once the unit's earlier acts are all done or missed.
    """
    act = acts[index]
    before = [each for each in acts[:index] if each.unit == act.unit]
    return all(each.done_s is not None or each.is_missed or act.kind == "drain" for each in before)


def _mark_missed(acts: Sequence[DueAct], *, is_given_up: bool) -> Iterator[DueAct]:
    """Yield the acts, with `is_missed` set on each undone act that a later act of the same unit has overtaken.

    If `is_given_up`, all undone acts are missed.
    """
    for index, act in enumerate(acts):
        is_overtaken = any(each.unit == act.unit and each.done_s is not None for each in acts[index + 1 :])
        if act.done_s is None and (is_overtaken or is_given_up):
            yield replace(act, is_missed=True)
        else:
            yield act
