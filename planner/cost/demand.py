"""Compare a day's traffic with the units that are on: the load of each phase, stretch by stretch.

    prefill          counts prompt tokens that no cache has
    decode, mixed    count output tokens

Demand is constant within an entry of the profile. A phase's load is demand over the rate of its units at their
operating point. Above a load of 1, units must serve more requests at a time, or use more of their saturated rate, than
at the operating point. Demand beyond their maximum rate is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from planner.estimate.performance import PhaseOutlook
from planner.estimate.utilisation import relative_utilisation
from planner.facts.day import MINUTE_S, hh_mm, periods
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.schedule.schedule import Timetable
from planner.schedule.stretches import TimesOfDay, demand_shares, entry_starts, stretches_between
from planner.spec.schema import Spec
from planner.spec.traffic import TrafficSpec

ROUNDED = 0.005  # loads are shown in whole per cent


@dataclass(frozen=True)
class PhaseLoad:
    """A phase's load in a stretch of the day in which neither demand nor units change, such as the fullest one.

    Rates are tokens/s of all units that are on then.
    """

    phase: Phase
    at: str
    asked_per_s: float  # demand
    served_per_s: float  # rate of the units at their operating point
    most_per_s: float  # maximum rate of the units
    lowest: float  # lowest load of the day
    hours_over: float = 0.0  # hours with demand above the rate at the operating point
    hours_beyond: float = 0.0  # hours with demand above the maximum rate
    times_beyond: str | None = None  # the times with demand above the maximum rate; None if there are none
    all_on_beyond: str | None = None  # such times at which all units of the phase are on
    are_all_on: bool = False  # whether all units are on at the fullest time
    day: str | None = None  # a date or a weekday; None for ordinary days
    minutes: int = 0  # how long neither demand nor units change
    stretches: tuple["PhaseLoad", ...] = ()  # all such times of that day, from midnight

    @property
    def load(self) -> float:
        """Return demand over the units' rate at their operating point; 0 without demand, infinite without units."""
        if not self.asked_per_s:
            return 0.0
        return self.asked_per_s / self.served_per_s if self.served_per_s else float("inf")

    @property
    def known_load(self) -> float | None:
        """Return the load as a finite number, or None while no unit is on."""
        return self.load if self.served_per_s else None

    @property
    def share_of_most(self) -> float:
        """Return demand over the units' maximum rate; infinite while no unit is on."""
        return self.asked_per_s / self.most_per_s if self.most_per_s else float("inf")

    @property
    def is_over(self) -> bool:
        """Return whether the load, rounded to whole per cent, is above 100 %."""
        return self.load >= 1 + ROUNDED


def busy_stretches(
    spec: Spec,
    schedule: Timetable | None,
    layouts: Sequence[PhaseLayout],
    outlooks: Sequence[PhaseOutlook],
    full_rates: Mapping[Phase, float],
) -> tuple[PhaseLoad, ...]:
    """Return each phase's stretches with a load above 100 %, for all kinds of day.

    If `slo` has a TTFT, prefill has a load of 100 % when its prompts wait as long as the TTFT allows.
    """
    days = [None, *named_days(spec, schedule)]
    found = (predict_loads(spec, schedule, layouts, outlooks, full_rates, day, spec.slo.ttft_ms) for day in days)
    return tuple(each for loads in found for load in loads for each in load.stretches if each.is_over)


def named_days(spec: Spec, schedule: Timetable | None) -> list[str]:
    """Return the weekdays and dates to which the traffic or the schedule gives a day of their own."""
    entries = (*(spec.traffic.other_days if spec.traffic else ()), *(schedule.other_days if schedule else ()))
    return list(dict.fromkeys(name for each in entries for name in each.days))


def predict_loads(
    spec: Spec,
    schedule: Timetable | None,
    layouts: Sequence[PhaseLayout],
    outlooks: Sequence[PhaseOutlook],
    full_rates: Mapping[Phase, float],
    day: str | None,
    ttft_ms: float | None = None,
) -> tuple[PhaseLoad, ...]:
    """Return each phase's load at its fullest time of `day`: a date, a weekday, or None for ordinary days.

    Phases of unknown speed are left out. With a `ttft_ms`, prefill has a load of 1 at the highest utilisation that
    meets that TTFT.
    """
    known = {each.phase: each.prediction for each in outlooks if each.prediction is not None}
    if spec.traffic is None or not known:
        return ()
    sizes = {each.phase: each.ep_size for each in layouts}
    rates = {
        phase: each.tokens_per_s_per_gpu.mid * sizes[phase] * (1 / relative_utilisation(each, ttft_ms))
        for phase, each in known.items()
    }
    most = {phase: rate * sizes[phase] for phase, rate in full_rates.items()}
    units = {each.phase: each.num_units for each in layouts}
    return compute_loads(spec.traffic, schedule, units, rates, most, day)


def compute_loads(
    traffic: TrafficSpec,
    schedule: Timetable | None,
    num_units: Mapping[Phase, int],
    tokens_per_s: Mapping[Phase, float],
    most_per_s: Mapping[Phase, float],
    day: str | None = None,
) -> tuple[PhaseLoad, ...]:
    """Return each phase's load at its fullest time of `day`: a date, a weekday, or None for ordinary days.

    `tokens_per_s` has the rate of one unit at its operating point, `most_per_s` its maximum rate. Without a schedule,
    `num_units` are always on.
    """
    on = TimesOfDay.always(dict(num_units))
    if schedule is not None:
        on = TimesOfDay.from_pairs(((step.at, step.num_units) for step in schedule.steps_on(day)), {})
    profile, scale = traffic.profile_on(day), traffic.day_scale(day)
    stretches = stretches_between([*entry_starts(profile), *on.starts])
    shares = demand_shares(profile, stretches)
    found = []
    for phase, rate in tokens_per_s.items():
        loads = [
            PhaseLoad(
                phase=phase,
                at=hh_mm(each.start),
                asked_per_s=scale * traffic.tokens_of(phase) * share / (each.minutes * MINUTE_S),
                served_per_s=on.at(each.start)[phase] * rate,
                most_per_s=on.at(each.start)[phase] * most_per_s[phase],
                lowest=0.0,
                are_all_on=on.at(each.start)[phase] == num_units[phase],
                minutes=each.minutes,
            )
            for each, share in zip(stretches, shares, strict=True)
        ]
        timed = list(zip(stretches, loads, strict=True))
        beyond = [(each, one.are_all_on) for each, one in timed if one.asked_per_s > one.most_per_s]
        on_this_day = partial(
            replace,
            lowest=min(one.load for one in loads),
            hours_over=sum(each.hours for each, one in timed if one.load > 1),
            hours_beyond=sum(each.hours for each, _ in beyond),
            times_beyond=periods((each.start, each.minutes) for each, _ in beyond) or None,
            all_on_beyond=periods((each.start, each.minutes) for each, all_on in beyond if all_on) or None,
            day=day,
        )
        loads = [on_this_day(each) for each in loads]
        found.append(replace(max(loads, key=lambda one: one.load), stretches=tuple(loads)))
    return tuple(found)
