"""The windows of a schedule that are left to the planner: those of the day with the fewest node-hours.

The phases' units, written or decided by now, are what the busiest hour takes. The windows count units from then on, so
the numbers that stood in the phases go away.
"""

from planner.problems.errors import SpecError, Violation
from planner.schedule.derived import DerivedDay, derived_day
from planner.search.decision import Decision
from planner.search.speed import LayoutOf
from planner.spec.check import ResolvedSpec, with_values
from planner.spec.undecided import AUTO, is_undecided

__all__ = ["with_windows"]


def with_windows(spec: ResolvedSpec, layout_of: LayoutOf) -> tuple[ResolvedSpec, list[Decision]]:
    """Return `spec` with windows in place of `auto`. Raises SpecError where no profile says what they follow."""
    schedule = spec.written.schedule
    if schedule is None or not is_undecided(schedule.windows):
        return spec, []
    traffic = spec.written.traffic
    if traffic is None or traffic.profile is None or not any(traffic.profile):
        raise SpecError([spec.problem(_no_profile())])
    layouts = {phase: layout_of(spec, phase) for phase in spec.phases}
    day = derived_day(
        schedule,
        traffic.profile,
        {phase: each.num_units for phase, each in layouts.items()},
        {phase: each.nodes_per_unit for phase, each in layouts.items()},
    )
    written = spec.document.data["schedule"]
    section = {} if written == AUTO else written
    values = {"schedule": section | {"windows": list(day.windows)}} | {f"{phase}.units": None for phase in spec.phases}
    return with_values(spec, values), [Decision("schedule.windows", f"{len(day.windows)} windows", _why(day))]


def _why(day: DerivedDay) -> str:
    return (
        f"the fewest node-hours that carry traffic.profile: {day.mean_nodes:.2f} nodes are taken on average, with those"
        f" that warm up and drain, and {day.bound:.2f} at least without"
    )


def _no_profile() -> Violation:
    rule = "S521 must be windows where traffic has no profile"
    reason = "windows that are auto follow the demand of each hour"
    return Violation("schedule.windows", AUTO, rule, reason, "write traffic.profile, the demand of the 24 hours")
