"""What a day's traffic asks of each phase, hour by hour or finer, and how much of it the units that are on can serve.

    prefill          prompt tokens that no cache has          decode, mixed    tokens of output

Demand is even within an entry of the profile. A load is demand over what units make at their operating point. Above 1
they must work on more requests at a time, or use more of their saturated rate, than the point says.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.cost.day import TimesOfDay, demand_shares, entry_starts, stretches_between
from planner.facts.day import MINUTE_S, hh_mm
from planner.facts.terms import Phase
from planner.schedule.schedule import DaySchedule
from planner.spec.traffic import TrafficSpec

__all__ = ["PhaseLoad", "loads_of_day"]


@dataclass(frozen=True)
class PhaseLoad:
    """The time at which a phase is fullest. Rates are tokens/s of all units that are on then."""

    phase: Phase
    at: str
    asked_per_s: float
    served_per_s: float
    lowest: float  # load when it is emptiest

    @property
    def load(self) -> float:
        """Return demand over what is served at the operating point."""
        return self.asked_per_s / self.served_per_s if self.served_per_s else float("inf")


def loads_of_day(
    traffic: TrafficSpec,
    schedule: DaySchedule | None,
    num_units: Mapping[Phase, int],
    tokens_per_s: Mapping[Phase, float],
) -> tuple[PhaseLoad, ...]:
    """Return each phase's load; `tokens_per_s` are those of one unit, and `num_units` are on without a schedule."""
    on = TimesOfDay.always(dict(num_units))
    if schedule is not None:
        on = TimesOfDay.written(((step.at, step.num_units) for step in schedule.steps), {})
    stretches = stretches_between([*entry_starts(traffic.profile), *on.starts])
    shares = demand_shares(traffic.profile, stretches)
    found = []
    for phase, rate in tokens_per_s.items():
        loads = [
            PhaseLoad(
                phase=phase,
                at=hh_mm(each.start),
                asked_per_s=traffic.tokens_of(phase) * share / (each.minutes * MINUTE_S),
                served_per_s=on.at(each.start)[phase] * rate,
                lowest=0.0,
            )
            for each, share in zip(stretches, shares, strict=True)
        ]
        fullest = max(loads, key=lambda one: one.load)
        lowest = min(one.load for one in loads)
        found.append(PhaseLoad(phase, fullest.at, fullest.asked_per_s, fullest.served_per_s, lowest))
    return tuple(found)
