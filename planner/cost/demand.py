"""What a day's traffic asks of each phase, hour by hour or finer, and how much of it the units that are on can serve.

    prefill          prompt tokens that no cache has          decode, mixed    tokens of output

Demand is even within an entry of the profile. A load is demand over what units make at their operating point. Above 1
they must work on more requests at a time, or use more of their saturated rate, than the point says. What is beyond the
most that they make is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.estimate.performance import PhaseOutlook
from planner.estimate.utilisation import relative_utilisation
from planner.facts.day import MINUTE_S, hh_mm, periods
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.schedule.schedule import DaySchedule
from planner.schedule.stretches import TimesOfDay, demand_shares, entry_starts, stretches_between
from planner.spec.schema import Spec
from planner.spec.traffic import TrafficSpec

__all__ = ["PhaseLoad", "demand_of", "fullest_demand", "loads_of_day"]

ROUNDED = 0.005  # loads are told in whole per cent


@dataclass(frozen=True)
class PhaseLoad:
    """The time of a day at which a phase is fullest. Rates are tokens/s of all units that are on then."""

    phase: Phase
    at: str
    asked_per_s: float
    served_per_s: float
    most_per_s: float  # that they make when they are full
    lowest: float  # load when it is emptiest
    hours_over: float = 0.0  # in which it is asked for more than it makes at its operating point
    hours_beyond: float = 0.0  # in which it is asked for more than it makes at most
    times_beyond: str | None = None  # when that is; None where it never is
    all_on_beyond: str | None = None  # that part of it at which the plan has no further unit of the phase
    are_all_on: bool = False  # whether it has none at the fullest time
    day: str | None = None  # a date or a weekday that is not like the others

    @property
    def load(self) -> float:
        """Return demand over what is served at the operating point; 0 where nothing is asked for."""
        if not self.asked_per_s:
            return 0.0
        return self.asked_per_s / self.served_per_s if self.served_per_s else float("inf")

    @property
    def known_load(self) -> float | None:
        """Return `load`; None while no unit is on."""
        return self.load if self.served_per_s else None

    @property
    def share_of_most(self) -> float:
        """Return demand over the most that is made; endless while no unit is on."""
        return self.asked_per_s / self.most_per_s if self.most_per_s else float("inf")

    @property
    def is_over(self) -> bool:
        """Whether more is asked than is served at the operating point, with loads rounded to whole per cent."""
        return self.load >= 1 + ROUNDED


def fullest_demand(
    spec: Spec,
    schedule: DaySchedule | None,
    layouts: Sequence[PhaseLayout],
    outlooks: Sequence[PhaseOutlook],
    full_rates: Mapping[Phase, float],
) -> tuple[PhaseLoad, ...]:
    """Return how full traffic makes each phase on the kind of day on which the phase is fullest.

    Prefill is as full as its prompts may wait, where `slo` promises a TTFT.
    """
    entries = (*(spec.traffic.other_days if spec.traffic else ()), *(schedule.other_days if schedule else ()))
    days = [None, *dict.fromkeys(name for each in entries for name in each.days)]
    found = (demand_of(spec, schedule, layouts, outlooks, full_rates, day, spec.slo.ttft_ms) for day in days)
    return tuple(max(loads, key=lambda each: each.load) for loads in zip(*found, strict=True))


def demand_of(
    spec: Spec,
    schedule: DaySchedule | None,
    layouts: Sequence[PhaseLayout],
    outlooks: Sequence[PhaseOutlook],
    full_rates: Mapping[Phase, float],
    day: str | None,
    ttft_ms: float | None = None,
) -> tuple[PhaseLoad, ...]:
    """Return how full the spec's traffic makes each phase whose speed is known, on `day` as `loads_of_day` has it.

    With a `ttft_ms`, prefill counts as full at the highest utilisation that keeps it.
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
    return loads_of_day(spec.traffic, schedule, units, rates, most, day)


def loads_of_day(
    traffic: TrafficSpec,
    schedule: DaySchedule | None,
    num_units: Mapping[Phase, int],
    tokens_per_s: Mapping[Phase, float],
    most_per_s: Mapping[Phase, float],
    day: str | None = None,
) -> tuple[PhaseLoad, ...]:
    """Return each phase's load on a date or a weekday; without one, on a day like most.

    `tokens_per_s` are those of one unit at its operating point, `most_per_s` those of a full one. `num_units` are on
    without a schedule.
    """
    on = TimesOfDay.always(dict(num_units))
    if schedule is not None:
        on = TimesOfDay.written(((step.at, step.num_units) for step in schedule.steps_on(day)), {})
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
            )
            for each, share in zip(stretches, shares, strict=True)
        ]
        fullest = max(loads, key=lambda one: one.load)
        timed = list(zip(stretches, loads, strict=True))
        beyond = [(each, one.are_all_on) for each, one in timed if one.asked_per_s > one.most_per_s]
        found.append(
            replace(
                fullest,
                lowest=min(one.load for one in loads),
                hours_over=sum(each.hours for each, one in timed if one.load > 1),
                hours_beyond=sum(each.hours for each, _ in beyond),
                times_beyond=periods((each.start, each.minutes) for each, _ in beyond) or None,
                all_on_beyond=periods((each.start, each.minutes) for each, all_on in beyond if all_on) or None,
                day=day,
            )
        )
    return tuple(found)
