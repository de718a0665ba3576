"""The windows of a schedule that are left to the planner: those of the day with the fewest node-hours.

What a unit carries follows from who counted the units. Those that are written, or fill the nodes, just carry the
busiest entry of the profile. Those that speed decided carry what they make under the SLO at the operating point. The
windows count units from then on, so the numbers that stood in the phases go away.
"""

from collections.abc import Callable, Mapping
from typing import Any

from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.problems.errors import InfeasibleError, SpecError, Violation
from planner.problems.fix import nearest
from planner.schedule.demand import units_at_rate, units_of_busiest
from planner.schedule.derived import DerivedDay, derived_day
from planner.schedule.starts import StartTimes, start_times
from planner.search.asked import LayoutOf, MemoryOf
from planner.search.decision import Decision
from planner.search.drain import with_drain
from planner.search.fewer_nodes import num_usable
from planner.search.starts import as_text, require_ready, settled_warm_up, warm_up_decision
from planner.spec.check import ResolvedSpec, with_values
from planner.spec.schedule import ScheduleSpec
from planner.spec.traffic import TrafficSpec
from planner.spec.undecided import AUTO, is_undecided

__all__ = ["with_windows"]


def with_windows(
    spec: ResolvedSpec, layout_of: LayoutOf, memory_of: MemoryOf, rates: Mapping[Phase, float]
) -> tuple[ResolvedSpec, list[Decision]]:
    """Return `spec` with windows, a warm-up and a drain in place of `auto`.

    `rates` are tokens/s of a unit, of phases that speed counted.

    Raises SpecError where no profile says what the windows follow, and InfeasibleError where the nodes do not hold the
    units that are always on, or a start is not ready at its window.
    """
    spec, of_drain = with_drain(spec)
    schedule = spec.written.schedule
    if schedule is None:
        return spec, []
    layouts = {phase: layout_of(spec, phase) for phase in spec.phases}
    memory = [each for phase in spec.phases if (each := memory_of(spec, phase)) is not None]
    times = start_times(spec, list(layouts.values()), memory)
    spec, decisions = _followed(spec, schedule, layouts, rates, times)
    decided = spec.written.schedule
    assert decided is not None
    windows = [each.model_dump() for each in decided.windows]
    require_ready(spec, windows, times)
    if is_undecided(schedule.warm_up) and times is not None:
        decisions.append(warm_up_decision(windows, times, decided.warm_up))
    return spec, [*decisions, *of_drain]


def _followed(
    spec: ResolvedSpec,
    schedule: ScheduleSpec,
    layouts: Mapping[Phase, PhaseLayout],
    rates: Mapping[Phase, float],
    times: StartTimes | None,
) -> tuple[ResolvedSpec, list[Decision]]:
    """Return `spec` with numbers for what its schedule leaves to the planner, and why the windows are those."""
    day_with = _day_with(spec, schedule, layouts, rates) if is_undecided(schedule.windows) else None
    values: dict[str, Any] = {}
    if is_undecided(schedule.warm_up):
        written = spec.document.data["schedule"]["windows"]
        warm_up = settled_warm_up(spec, lambda time: day_with(time).windows if day_with else written, times)
        values["schedule.warm_up"] = as_text(warm_up)
    else:
        warm_up = schedule.warm_up
    if day_with is None:
        return (with_values(spec, values) if values else spec), []
    day, section = day_with(warm_up), spec.document.data["schedule"]
    section = {} if section == AUTO else section
    values = {"schedule": section | {"windows": list(day.windows)}} | {f"{p}.units": None for p in spec.phases} | values
    return with_values(spec, values), [Decision("schedule.windows", f"{len(day.windows)} windows", _why(day))]


def _day_with(
    spec: ResolvedSpec, schedule: ScheduleSpec, layouts: Mapping[Phase, PhaseLayout], rates: Mapping[Phase, float]
) -> Callable[[float], DerivedDay]:
    """Return what derives the day for a warm-up."""
    traffic = spec.written.traffic
    if traffic is None or traffic.profile is None or not any(traffic.profile):
        raise SpecError([spec.problem(_no_profile())])
    nodes_per_unit = {phase: each.nodes_per_unit for phase, each in layouts.items()}
    _require_room(spec, nodes_per_unit)
    asked = {phase: _asked(traffic, traffic.profile, each, rates.get(phase)) for phase, each in layouts.items()}
    return lambda warm_up: derived_day(schedule.model_copy(update={"warm_up": warm_up}), asked, nodes_per_unit)


def _asked(
    traffic: TrafficSpec, profile: list[float], layout: PhaseLayout, tokens_per_s: float | None
) -> tuple[float, ...]:
    """Return the units of a phase that each entry of the profile asks for."""
    if tokens_per_s is None:
        return units_of_busiest(profile, layout.num_units, traffic.capacity)
    return units_at_rate(profile, traffic.tokens_of(layout.phase), tokens_per_s)


def _require_room(spec: ResolvedSpec, nodes_per_unit: Mapping[Phase, int]) -> None:
    """Raise InfeasibleError where the units that are on at any time are more than the nodes hold."""
    schedule, usable = spec.written.schedule, num_usable(spec)
    assert schedule is not None
    floor = {phase: schedule.min_units.of(phase) for phase in spec.phases}
    taken = sum(floor[phase] * number for phase, number in nodes_per_unit.items())
    if taken <= usable:
        return
    phase = max(spec.phases, key=lambda each: floor[each] * nodes_per_unit[each])
    most = (usable - (taken - floor[phase] * nodes_per_unit[phase])) // nodes_per_unit[phase]
    rule = f"S762 must be at most {max(most, 0)} ({usable} nodes hold no more units that are always on)"
    reason = f"these units take {taken} nodes at any time"
    fix = nearest(most) if most > 0 else "write fewer units of each phase, or more nodes"
    raise InfeasibleError([spec.problem(Violation(f"schedule.min_units.{phase}", floor[phase], rule, reason, fix))])


def _why(day: DerivedDay) -> str:
    binding = day.bounds[day.binding]
    return (
        f"the fewest node-hours that carry traffic.profile: {day.mean_nodes:.2f} nodes are taken on average, with those"
        f" that warm up and drain, and {day.bound:.2f} at least without. {day.binding} binds: {binding:.2f} of these"
        " are its own"
    )


def _no_profile() -> Violation:
    rule = "S521 must be windows where traffic has no profile"
    reason = "windows that are auto follow the demand of each hour"
    return Violation("schedule.windows", AUTO, rule, reason, "write traffic.profile, the demand of the 24 hours")
