"""The windows of a schedule that are left to the planner: those of the day with the fewest node-hours.

What a unit carries follows from who counted the units. Those that are written just carry the busiest entry of the
profile, and headroom comes on top. Those that fill the nodes carry it with its headroom, as no more would fit. Those
that speed decided carry what they make under the SLO at the operating point. The windows count units from then on, so
the numbers that stood in the phases go away.

Where windows and warm-up are both `auto`, they are found together: a longer warm-up may change which units start at
once, and so the storm that storage has to feed. The time only grows, to what the largest start of the new day takes, so
that the search ends.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planner.facts.quantities import counted
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout, lay_out
from planner.layout.memory import memory_of
from planner.rules.check import with_values
from planner.rules.starts import LONGEST_S, as_text, least_of_day, longest_in_words
from planner.schedule.demand import units_at_rate, units_of_busiest, whole_units
from planner.schedule.derived import Asked, DerivedDay, derived_days
from planner.schedule.starts import StartTimes, start_times
from planner.search.decision import Decision
from planner.spec.resolved import ResolvedSpec
from planner.spec.schedule import ScheduleSpec
from planner.spec.traffic import TrafficSpec
from planner.spec.undecided import AUTO, is_undecided

__all__ = ["most_units", "with_windows"]

MAX_ROUNDS = 64  # assumed: each makes the warm-up longer, by a start that did not happen at once before


def with_windows(spec: ResolvedSpec, rates: Mapping[Phase, float]) -> tuple[ResolvedSpec, list[Decision]]:
    """Return `spec` with windows and a warm-up in place of `auto`.

    `rates` are tokens/s of a unit, of phases that speed counted.
    """
    schedule = spec.written.schedule
    if schedule is None:
        return spec, []
    layouts = {phase: lay_out(spec, phase) for phase in spec.phases}
    memory = [each for phase in spec.phases if (each := memory_of(spec, phase)) is not None]
    times = start_times(spec, list(layouts.values()), memory)
    spec, decisions = _followed(spec, schedule, layouts, rates, times)
    decided = spec.written.schedule
    if is_undecided(schedule.warm_up) and decided and times:
        why = longest_in_words(decided, times)
        decisions.append(Decision("schedule.warm_up", as_text(decided.warm_up), why))
    return spec, decisions


def most_units(spec: ResolvedSpec, phase: Phase, written: int | None = None) -> int:
    """Return the units of `phase` that are on when most are, with `written` ones or those of the spec.

    Windows that are left to the planner have more than are written: headroom, a floor, what exceeds traffic.capacity.
    """
    number = spec.written.num_units(phase) if written is None else written
    schedule, traffic = spec.written.schedule, spec.written.traffic
    if schedule is None or traffic is None or not is_undecided(schedule.windows):
        return number
    (asked,) = units_of_busiest([traffic.busiest], number, traffic.capacity)
    return whole_units(asked * (1 + schedule.headroom), schedule.min_units.of(phase))


def _followed(
    spec: ResolvedSpec,
    schedule: ScheduleSpec,
    layouts: Mapping[Phase, PhaseLayout],
    rates: Mapping[Phase, float],
    times: StartTimes | None,
) -> tuple[ResolvedSpec, list[Decision]]:
    """Return `spec` with numbers for what its schedule leaves to the planner, and why the windows are those."""
    days_with = _days_with(spec, schedule, layouts, rates) if is_undecided(schedule.windows) else None
    values: dict[str, Any] = {}
    if is_undecided(schedule.warm_up):
        assert times is not None
        warm_up = _settled_warm_up(
            lambda time: _with(schedule, spec, days_with(time)) if days_with else schedule, times
        )
        values["schedule.warm_up"] = as_text(warm_up)
    else:
        warm_up = schedule.warm_up
    if days_with is None:
        return (with_values(spec, values) if values else spec), []
    days, section = days_with(warm_up), spec.document.data["schedule"]
    written = ({} if section == AUTO else section) | _windows(spec, days)
    values = {"schedule": written} | {f"{p}.units": None for p in spec.phases} | values
    return with_values(spec, values), _decisions(spec, days)


def _settled_warm_up(schedule_with: Callable[[float], ScheduleSpec], times: StartTimes) -> float:
    """Return the least warm-up in whole seconds that suffices for the windows that follow from it, else the longest."""
    warm_up = 0.0
    for _ in range(MAX_ROUNDS):
        least = min(least_of_day(schedule_with(warm_up), times), LONGEST_S)
        if least <= warm_up:
            break
        warm_up = least
    return warm_up


def _windows(spec: ResolvedSpec, days: Sequence[DerivedDay]) -> dict[str, Any]:
    """Return the windows of all days, as a spec writes them."""
    traffic = spec.written.traffic
    assert traffic is not None
    others = [
        {"days": each.days, "windows": list(day.windows)}
        for each, day in zip(traffic.other_days, days[1:], strict=True)
    ]
    return {"windows": list(days[0].windows)} | ({"other_days": others} if others else {})


def _with(schedule: ScheduleSpec, spec: ResolvedSpec, days: Sequence[DerivedDay]) -> ScheduleSpec:
    """Return `schedule` with the windows of `days`."""
    return ScheduleSpec.model_validate(_windows(spec, days)).model_copy(update={"start": schedule.start})


def _decisions(spec: ResolvedSpec, days: Sequence[DerivedDay]) -> list[Decision]:
    traffic = spec.written.traffic
    assert traffic is not None
    found = [Decision("schedule.windows", counted(len(days[0].windows), "window"), _why(days[0]))]
    for index, (each, day) in enumerate(zip(traffic.other_days, days[1:], strict=True)):
        why = f"on {', '.join(each.days)}: {day.mean_nodes:.2f} nodes are taken on average, {day.bound:.2f} at least"
        found.append(Decision(f"schedule.other_days.{index}.windows", counted(len(day.windows), "window"), why))
    return found


def _days_with(
    spec: ResolvedSpec, schedule: ScheduleSpec, layouts: Mapping[Phase, PhaseLayout], rates: Mapping[Phase, float]
) -> Callable[[float], tuple[DerivedDay, ...]]:
    """Return what derives the days for a warm-up."""
    traffic = spec.written.traffic
    assert traffic is not None
    filling = {phase for phase in layouts.keys() - rates.keys() if f"{phase}.units" in spec.document.autos}
    nodes_per_unit = {phase: each.nodes_per_unit for phase, each in layouts.items()}
    days = [None, *(each.days[0] for each in traffic.other_days)]
    of_nodes = {phase: layouts[phase].num_units / (1 + schedule.headroom) for phase in filling}
    asked = [_asked(traffic, each, layouts, rates, of_nodes) for each in days]
    return lambda warm_up: derived_days(schedule.model_copy(update={"warm_up": warm_up}), asked, nodes_per_unit)


def _asked(
    traffic: TrafficSpec,
    day: str | None,
    layouts: Mapping[Phase, PhaseLayout],
    rates: Mapping[Phase, float],
    of_nodes: Mapping[Phase, float],
) -> Asked:
    """Return the units of each phase that each entry of a day's profile asks for.

    `of_nodes` are those that the busiest entry asks for, of phases that fill the nodes.
    """
    profile, scale = traffic.profile_on(day) or [], traffic.day_scale(day)
    asked: dict[Phase, Sequence[float]] = {}
    for phase, each in layouts.items():
        if phase in rates:
            asked[phase] = units_at_rate(profile, scale * traffic.tokens_of(phase), rates[phase])
        elif phase in of_nodes:
            asked[phase] = units_of_busiest(profile, of_nodes[phase], traffic.busiest)
        else:
            asked[phase] = units_of_busiest(profile, each.num_units, traffic.capacity or traffic.busiest)
    return asked


def _why(day: DerivedDay) -> str:
    binding = day.bounds[day.binding]
    return (
        f"the fewest node-hours that follow traffic.profile: {day.mean_nodes:.2f} nodes are taken on average, with"
        f" those that warm up and drain. Without these it is at least {day.bound:.2f}, and most of that is for"
        f" {day.binding}: {binding:.2f}"
    )
