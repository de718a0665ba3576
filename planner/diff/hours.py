"""Cut the days of a change into hours in which neither units nor demand change, and say what each of them asks.

    asked    tokens/s of a phase: the larger of what the old and the new spec ask for. Today's traffic is still there
             while a change rolls out, and a change must not lower what it is measured by
    rate     maximum tokens/s of a unit
    missed   1 - units on x rate / asked

What a unit makes after the change must be known if it was known before. Else the hour counts as worse. Where the new
plan keeps less KV of prompts, it has fewer cache hits: then more tokens of prompts are counted, on both sides.

An hour here lasts from one change of units or demand to the next. All kinds of day are cut: ordinary days, and the
weekdays and dates to which either spec gives windows or a profile of their own. Days that are alike in all of this are
judged once. If the plans' time zones differ, the old plan's times are shifted to the new clock, an evening maybe into
the next day. Where one zone changes
its clocks and the other does not, there are several shifts in a year. Then the largest demand counts, and each unit
that is on by one of them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import fsum, gcd
from statistics import fmean
from typing import TypeVar

from planner.diff.pods import is_same_deployment
from planner.facts.calendar import WEEKDAYS, entry_of, offset_at, week_around
from planner.facts.day import DAY_MINUTES, DAY_S, MINUTE_S, minute_of, periods
from planner.facts.quantities import first_of
from planner.facts.terms import PHASES, Phase
from planner.plan.plan import Plan
from planner.schedule.stretches import Stretch, TimesOfDay, entry_starts, stretches_between
from planner.spec.traffic import HOURS, OtherDemandSpec, TrafficSpec

Value = TypeVar("Value")
Units = frozenset[str]  # names

UTC = "UTC"  # the zone of times whose spec has no schedule
LEAST_SHARE = 0.0005  # a smaller difference does not show in tenths of a per cent
MAX_NAMES = 6  # of days that are alike, to name in a line
DAYS_OF_A_YEAR = range(1_767_225_600, 1_798_761_600, DAY_S)  # 2026, UTC; assumed: other years have the same offsets


@dataclass(frozen=True)
class Day:
    """A kind of day: the weekdays and dates that are alike. Without names, all days that no spec names."""

    names: tuple[str, ...] = ()

    @property
    def name(self) -> str | None:
        """Return one of the days by its name; None for ordinary days."""
        return self.names[0] if self.names else None


@dataclass(frozen=True)
class Load:
    """The demand on a phase in an hour, and the units that are on before and after the change."""

    before: int
    after: int
    asked: float | None  # tokens/s; None if neither spec says
    rate_before: float | None  # tokens/s of a unit; None if unknown
    rate_after: float | None
    former_rate: float | None  # of the old plan, if it is more by the former yardsticks
    is_predicted: bool = True  # whether the new plan has figures at all; a rendered folder has none

    @property
    def wanted(self) -> float:
        """The number of units that must serve during the change, at most those on before.

        It is the number that the demand takes or, if that is unknown, the number on afterwards.
        """
        needed = self.after if self.asked is None or self._lower_rate is None else self.asked / self._lower_rate
        return min(needed, self.before)

    @property
    def missed(self) -> float | None:
        """The share of the demand that the new plan's units cannot serve; None if unknown."""
        return self._missed_by(self.after, self.rate_after)

    @property
    def is_worse(self) -> bool:
        """Whether the new plan's units miss more of the demand than the old plan's.

        A new plan without units is worse if the old one has some, unless the demand is known to be 0.
        """
        if not self.after:
            return self.before > 0 and self.asked != 0.0
        return (
            self.is_rate_lost
            or (self.missed or 0.0) > (self._missed_by(self.before, self.former_rate) or 0.0) + LEAST_SHARE
        )

    @property
    def is_rate_lost(self) -> bool:
        """Whether the old plan's rate of a unit can be compared with the demand, but the new plan's is unknown."""
        is_known = self.rate_after is not None or not self.is_predicted
        return bool(self.asked and self.before and self.rate_before) and not is_known

    @property
    def misses_any(self) -> bool:
        """Whether the new plan's units are known to miss some of the demand."""
        return (self.missed or 0.0) > LEAST_SHARE

    def missed_during(self, serving: int) -> float | None:
        """Return the share of the demand that is missed while `serving` units serve; None if unknown."""
        shares = self._missed_by(serving, self._lower_rate), self.missed
        return None if None in shares else max(each for each in shares if each is not None)

    @property
    def _lower_rate(self) -> float | None:
        return min((each for each in (self.rate_before, self.rate_after) if each), default=None)

    def _missed_by(self, units: int, rate: float | None) -> float | None:
        if self.asked is None or (units and rate is None):
            return None
        return max(0.0, 1 - units * (rate or 0.0) / self.asked) if self.asked else 0.0


@dataclass(frozen=True)
class Hour:
    """A part of a day in which units and demand are constant."""

    day: Day
    stretch: Stretch
    now: Units  # on before the change
    later: Units  # on after it
    loads: Mapping[Phase, Load]  # the phases of both plans


def cut_hours(before: Plan, after: Plan, by_former: tuple[Plan, Plan] | None = None) -> tuple[Hour, ...]:
    """Return the hours of all kinds of day.

    `by_former` has both plans with their figures under the yardsticks of `before`, where these differ. A unit then has
    two rates in each plan. To tell what got worse, the higher rate of the old plan and the lower of the new one count.
    """
    phases = tuple(dict.fromkeys([*before.phases, *after.phases]))
    old_former, new_former = by_former or (before, after)
    old_rates, former_rates = _unit_rates(phases, [before]), _unit_rates(phases, [before, old_former], max)
    new_rates = _unit_rates(phases, [after, new_former])
    hits, share = hit_rate(before), share_of_hits(before, after)
    for rates in (old_rates, former_rates):
        if "prefill" in rates:
            rates["prefill"] *= (1 - hits * share) / (1 - hits)  # its own cache has the rest
    shifts, traffics, found = _clock_shifts(before, after), (traffic_by_clock(before, after), after.spec.traffic), []
    for day in _list_days(before, after, are_shifted=shifts != (0,)):
        was_on = [_shift_times(partial(_running_units, before), day.name, each) for each in shifts]
        on = _running_units(after, day.name, left_off=units_left_off(before, after))
        asked = [_demand(each, share, day.name) for each in traffics if each is not None]
        starts = [start for each in (*was_on, on) for start in each.starts]
        starts += [start for each in asked for start in each.starts]
        for stretch in stretches_between(starts):
            now = frozenset[str]().union(*(each.at(stretch.start) for each in was_on))
            later = on.at(stretch.start)
            demands = [each.at(stretch.start) for each in asked]
            loads = {
                phase: Load(
                    before=_count_units(before, phase, now),
                    after=_count_units(after, phase, later),
                    asked=max((each[phase] for each in demands), default=None),
                    rate_before=old_rates.get(phase),
                    rate_after=new_rates.get(phase),
                    former_rate=former_rates.get(phase),
                    is_predicted=after.report is not None,
                )
                for phase in phases
            }
            found.append(Hour(day, stretch, now, later, loads))
    return tuple(found)


def describe_times(hours: Sequence[Hour], among: Sequence[Hour]) -> str:
    """Write the times of `hours` as text, with their days if not all days of `among` have the same times."""
    found: dict[Day, list[tuple[int, int]]] = {each.day: [] for each in among}
    for each in hours:
        found[each.day].append((each.stretch.start, each.stretch.minutes))
    times = {day: periods(stretches) for day, stretches in found.items()}
    if len(set(times.values())) == 1:
        return next(iter(times.values()))
    days: dict[str, list[str]] = {}
    for day, text in times.items():
        days.setdefault(text, []).extend(day.names or ["ordinary days"])
    return " and ".join(f"{text} on {name_days(names)}" for text, names in days.items() if text)


def name_days(names: Sequence[str]) -> str:
    """Name days. Three or more weekdays in a row become `monday to friday`; of others at most MAX_NAMES are named."""
    first = WEEKDAYS.index(names[0]) if names[0] in WEEKDAYS else 0
    is_run = len(names) > 2 and tuple(names) == WEEKDAYS[first : first + len(names)]
    return f"{names[0]} to {names[-1]}" if is_run else first_of(names, MAX_NAMES)


def units_left_off(before: Plan, after: Plan) -> Units:
    """Return the units that may be off when the change takes their controller away, and then stay off.

    No manifest has `replicas`, so whoever applies the new plan turns no unit on that exists.
    """
    is_taken = is_same_deployment(before, after) and has_controller(before) and not has_controller(after)
    steps = before.timetable.all_steps if is_taken and before.timetable else ()
    return frozenset(unit for step in steps for unit in _all_units(before) - {*step.units})


def has_controller(plan: Plan) -> bool:
    """Return whether the plan has a controller, which switches units by the day and changes them one after another."""
    return plan.kubernetes.controller is not None


def share_of_hits(before: Plan, after: Plan) -> float:
    """Return the share of the cache hits on the plan `before` that the `kv_cache` of the plan `after` still has.

    Hits fall with the cache's size as in the trace of reused prompts. If the trace cannot tell, all hits remain with an
    equal cache, and none with another.
    """
    old, new = before.spec.kv_cache, after.spec.kv_cache
    if old.memory is None or not hit_rate(before, after):
        return 1.0
    if new.memory is None or (old.sharing, new.sharing) == ("all", "tenant"):
        return 0.0
    traced = [_interpolated_hits(plan, before if before.kv_cache else after) for plan in (before, after)]
    if not all(traced):
        return float((old.memory, old.disk) == (new.memory, new.disk))
    return min(traced[1] / traced[0], 1.0)


def hit_rate(*plans: Plan) -> float:
    """Return the largest share of prompt tokens that any plan's traffic takes from a cache; 0 without traffic."""
    return max((plan.spec.traffic.cache_hit_rate for plan in plans if plan.spec.traffic), default=0.0)


def _interpolated_hits(plan: Plan, measured: Plan) -> float:
    """Return the hit rate for a cache as large as that of `plan` on the nodes of `measured`.

    It is interpolated in the hit rates by size that `measured` has from its trace; 0 if `measured` has none or either
    cache has no memory.
    """
    section, spec, memory = measured.kv_cache, plan.spec.kv_cache, measured.spec.kv_cache.memory
    if section is None or section.kept is None or spec.memory is None or memory is None:
        return 0.0
    size = section.kept.memory_bytes * spec.memory / memory
    if spec.disk is not None:
        size += spec.disk.size * (1 if plan.kubernetes.kv_cache_claim else section.nodes)
    points = [(0.0, 0.0), *((each.bytes, each.hit_rate) for each in section.sizes)]
    ends = next((ends for ends in pairwise(points) if size <= ends[1][0]), (points[-1], points[-1]))
    (less, low), (more, high) = ends
    return low + (high - low) * (size - less) / (more - less) if more > less else high


def full_unit_rate(plan: Plan, phase: Phase) -> float | None:
    """Return the maximum tokens/s of one unit, from the plan's demand in any hour with units; None if unknown."""
    demand, on = (plan.demand or {}).get(phase), _running_units(plan, None)
    if demand is None:
        return None
    rates = [(demand.at, demand.most_tokens_per_s), *((each.at, each.most_tokens_per_s) for each in demand.stretches)]
    found = (rate / _count_units(plan, phase, on.at(minute_of(at))) for at, rate in rates if rate)
    return next(found, None)


def _unit_rates(
    phases: Iterable[Phase], plans: Sequence[Plan], choose: Callable[[Iterable[float]], float] = min
) -> dict[Phase, float]:
    """Return phase -> one unit's tokens/s, which `choose` picks from the plans' rates; unknown rates are left out."""
    known = {phase: [rate for plan in plans if (rate := full_unit_rate(plan, phase))] for phase in phases}
    return {phase: choose(rates) for phase, rates in known.items() if rates}


def _list_days(before: Plan, after: Plan, *, are_shifted: bool) -> list[Day]:
    """Return the kinds of day. The ordinary one comes first, and is left out if each weekday has its own.

    If clocks are shifted, an evening may be part of the next day. Days then are of one kind only if the days before
    and after them are alike too.
    """
    tables, traffics = [plan.timetable for plan in (before, after)], [plan.spec.traffic for plan in (before, after)]
    lists = [[other.days for other in each.other_days] for each in (*tables, *traffics) if each is not None]
    beside = (-1, 0, 1) if are_shifted else (0,)
    names = [name for each in lists for days in each for name in days]
    kinds: dict[tuple[int | None, ...], list[str]] = {(None,) * len(lists) * len(beside): []}
    for name in dict.fromkeys(_day_beside(name, ahead) for name in names for ahead in sorted(beside, key=abs)):
        key = tuple(entry_of(_day_beside(name, ahead), each) for ahead in beside for each in lists)
        kinds.setdefault(key, []).append(name)
    found = [Day(tuple(names)) for names in kinds.values()]
    is_whole_week = set(WEEKDAYS) <= {name for names in kinds.values() for name in names}
    return found[1:] if is_whole_week else found


def _day_beside(day: str, ahead: int) -> str:
    """Return the day before (-1) or after (1) a weekday or date, or the day itself."""
    return week_around(day)[1 + ahead]


def _demand(traffic: TrafficSpec, share: float, day: str | None) -> TimesOfDay[Mapping[Phase, float]]:
    """Return the tokens/s that traffic asks of each phase at the times of `day`.

    `share` is the share of cache hits that remain. The tokens of all other hits are computed.
    """
    traffic = traffic.model_copy(update={"cache_hit_rate": traffic.cache_hit_rate * share})
    profile, usual = traffic.profile_on(day), traffic.profile or [1.0]
    per_s = {phase: traffic.tokens_of(phase) / DAY_S * len(usual) / fsum(usual) for phase in PHASES}
    pairs = zip(entry_starts(profile), profile or [1.0], strict=True)
    return TimesOfDay(tuple((start, {phase: each * part for phase, each in per_s.items()}) for start, part in pairs))


def moved_zones(before: Plan, after: Plan) -> tuple[str, str] | None:
    """Return the time zones of both plans' windows and traffic; None if they are equal, or a plan has no times."""
    old, new = _clock_zone(before), _clock_zone(after)
    return None if old is None or new is None or old == new else (old, new)


def _clock_zone(plan: Plan) -> str | None:
    """Return the time zone of the plan's windows and traffic; None if nothing in it has a time."""
    traffic, schedule = plan.spec.traffic, plan.spec.schedule
    has_times = plan.timetable or (traffic and (traffic.profile or traffic.other_days))
    return (schedule.timezone if schedule else UTC) if has_times else None


def traffic_by_clock(before: Plan, after: Plan) -> TrafficSpec | None:
    """Return the traffic of `before` in the hours of the new plan's clock; None without traffic.

    Where there are several shifts in a year, each part of a day has the largest demand of all of them.
    """
    traffic, shifts = before.spec.traffic, _clock_shifts(before, after)
    if traffic is None or shifts == (0,):
        return traffic
    profiles = [traffic.profile or [1.0] * HOURS, *(other.profile for other in traffic.other_days)]
    step = gcd(*(DAY_MINUTES // len(each) for each in profiles), *shifts)

    def demand_on(day: str | None) -> TimesOfDay[float]:
        profile = traffic.profile_on(day) or [1.0]
        return TimesOfDay(tuple(zip(entry_starts(profile), profile, strict=True)))

    def shifted(day: str | None) -> list[float]:
        times = [_shift_times(demand_on, day, each) for each in shifts]
        return [max(each.at(minute) for each in times) for minute in range(0, DAY_MINUTES, step)]

    usual, days = shifted(None), [day.names for day in _list_days(before, after, are_shifted=True) if day.names]
    others = [OtherDemandSpec.model_construct(days=[*names], profile=shifted(names[0])) for names in days]
    more = fmean(usual) / fmean(profiles[0])
    amounts = {name: getattr(traffic, name) for name in ("input_tokens", "output_tokens", "requests")}
    scaled = {name: amount and amount * more for name, amount in amounts.items()}
    return traffic.model_copy(update=scaled | {"profile": usual, "other_days": others})


def _clock_shifts(before: Plan, after: Plan) -> tuple[int, ...]:
    """Return all minutes by which the new plan's clock is ahead of the old one's on some day of the year."""
    zones = moved_zones(before, after)
    if zones is None:
        return (0,)
    old, new = ([offset_at(day, zone) for day in DAYS_OF_A_YEAR] for zone in zones)
    return tuple(sorted({(after - before) // MINUTE_S for before, after in zip(old, new, strict=True)}))


def _shift_times(
    times_on: Callable[[str | None], TimesOfDay[Value]], day: str | None, minutes: int
) -> TimesOfDay[Value]:
    """Return the step function of `day` with all times `minutes` later.

    Part of it comes from the day before, or from the day after if `minutes` is negative.
    """
    if not minutes:
        return times_on(day)
    own, other = times_on(day), times_on(day and _day_beside(day, -1 if minutes > 0 else 1))
    starts = {0, minutes % DAY_MINUTES}
    starts |= {(start + minutes) % DAY_MINUTES for each in (own, other) for start in each.starts}
    former = [(start, start - minutes) for start in sorted(starts)]
    entries = ((start, (own if at in range(DAY_MINUTES) else other).at(at % DAY_MINUTES)) for start, at in former)
    return TimesOfDay(tuple(entries))


def _running_units(plan: Plan, day: str | None, left_off: Units = frozenset()) -> TimesOfDay[Units]:
    """Return the units that run at each time of `day`: the scheduled ones; without a controller all but `left_off`."""
    steps = plan.running_schedule.steps_on(day) if plan.running_schedule else ()
    return TimesOfDay.from_pairs(((step.at, frozenset(step.units)) for step in steps), _all_units(plan) - left_off)


def _all_units(plan: Plan) -> Units:
    return frozenset(unit.name for unit in plan.units)


def _count_units(plan: Plan, phase: Phase, on: Collection[str]) -> int:
    return sum(unit.phase == phase and unit.name in on for unit in plan.units)
