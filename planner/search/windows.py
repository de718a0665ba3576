"""Decide `schedule.windows: auto` and `schedule.warm_up: auto`: choose the day with the fewest node-hours.

How much load one unit carries depends on what decided the number of units:
    the spec        the written units just carry the busiest entry of the profile; headroom comes on top
    the nodes       as many units as fit carry the busiest entry and its headroom
    speed           a unit carries its predicted rate under the SLO
Afterwards the windows set the number of units, so `units` is removed from the phases.

If windows and warm-up are both `auto`, they are decided together: a longer warm-up may change which units start at the
same time, and so how long they read from storage. The warm-up only grows until it is long enough for the windows
derived with it, so the search ends.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planner.facts.quantities import counted
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout, lay_out
from planner.layout.memory import loaded_bytes, memory_of
from planner.rules.check import change_spec
from planner.rules.starts import LONGEST_S, explain_longest_start, required_warm_up, to_spec_time
from planner.schedule.derived import (
    Demand,
    DerivedDay,
    demand_from_rate,
    demand_from_units,
    derive_days,
    round_up_units,
)
from planner.schedule.starts import StartTimes, start_times
from planner.search.decision import Decision
from planner.spec.resolved import ResolvedSpec
from planner.spec.schedule import ScheduleSpec
from planner.spec.traffic import TrafficSpec
from planner.spec.undecided import AUTO, is_undecided

MAX_ROUNDS = 64  # assumed: each round lengthens the warm-up because more units start at the same time


def decide_windows(spec: ResolvedSpec, rates: Mapping[Phase, float]) -> tuple[ResolvedSpec, list[Decision]]:
    """Return (spec, decisions), where `auto` windows and warm-up are replaced.

    `rates` has one unit's tokens/s for each phase whose number of units was decided by speed.
    """
    schedule = spec.written.schedule
    if schedule is None:
        return spec, []
    layouts = {phase: lay_out(spec, phase) for phase in spec.phases}
    memory = [each for phase in spec.phases if (each := memory_of(spec, phase)) is not None]
    times = start_times(spec.written, list(layouts.values()), loaded_bytes(memory))
    spec, decisions = _decide_schedule(spec, schedule, layouts, rates, times)
    decided = spec.written.schedule
    if is_undecided(schedule.warm_up) and decided and times:
        why = explain_longest_start(decided, times)
        decisions.append(Decision("schedule.warm_up", to_spec_time(decided.warm_up), why))
    return spec, decisions


def most_units(spec: ResolvedSpec, phase: Phase, written: int | None = None) -> int:
    """Return how many units of `phase` are on at the peak of the day. `written` replaces the spec's `units`.

    With `windows: auto` the peak may need more units than written, because of `headroom`, `min_units`, or traffic
    above `traffic.capacity`.
    """
    number = spec.written.num_units(phase) if written is None else written
    schedule, traffic = spec.written.schedule, spec.written.traffic
    if schedule is None or traffic is None or not is_undecided(schedule.windows):
        return number
    (asked,) = demand_from_units([traffic.busiest], number, traffic.capacity)
    return round_up_units(asked * (1 + schedule.headroom), schedule.min_units.of(phase))


def _decide_schedule(
    spec: ResolvedSpec,
    schedule: ScheduleSpec,
    layouts: Mapping[Phase, PhaseLayout],
    rates: Mapping[Phase, float],
    times: StartTimes | None,
) -> tuple[ResolvedSpec, list[Decision]]:
    """Return (spec, decisions about windows), where the schedule's `auto` fields are replaced."""
    days_with = _day_planner(spec, schedule, layouts, rates) if is_undecided(schedule.windows) else None
    values: dict[str, Any] = {}
    if is_undecided(schedule.warm_up):
        assert times is not None
        warm_up = _find_warm_up(
            lambda time: _replace_windows(schedule, spec, days_with(time)) if days_with else schedule, times
        )
        values["schedule.warm_up"] = to_spec_time(warm_up)
    else:
        warm_up = schedule.warm_up
    if days_with is None:
        return (change_spec(spec, values) if values else spec), []
    days, section = days_with(warm_up), spec.document.data["schedule"]
    written = ({} if section == AUTO else section) | _windows_data(spec, days)
    values = {"schedule": written} | {f"{p}.units": None for p in spec.phases} | values
    return change_spec(spec, values), _window_decisions(spec, days)


def _find_warm_up(schedule_with: Callable[[float], ScheduleSpec], times: StartTimes) -> float:
    """Return the shortest warm-up, in whole seconds, that suffices for every start of `schedule_with(warm_up)`.

    Returns LONGEST_S if none suffices.
    """
    warm_up = 0.0
    for _ in range(MAX_ROUNDS):
        least = min(required_warm_up(schedule_with(warm_up), times), LONGEST_S)
        if least <= warm_up:
            break
        warm_up = least
    return warm_up


def _windows_data(spec: ResolvedSpec, days: Sequence[DerivedDay]) -> dict[str, Any]:
    """Return the windows of ordinary and special days as data for the spec's section `schedule`."""
    traffic = spec.written.traffic
    assert traffic is not None
    others = [
        {"days": each.days, "windows": list(day.windows)}
        for each, day in zip(traffic.other_days, days[1:], strict=True)
    ]
    return {"windows": list(days[0].windows)} | ({"other_days": others} if others else {})


def _replace_windows(schedule: ScheduleSpec, spec: ResolvedSpec, days: Sequence[DerivedDay]) -> ScheduleSpec:
    """Return a schedule with the windows of `days`, the `start` section of `schedule`, and defaults for all else."""
    return ScheduleSpec.model_validate(_windows_data(spec, days)).model_copy(update={"start": schedule.start})


def _window_decisions(spec: ResolvedSpec, days: Sequence[DerivedDay]) -> list[Decision]:
    traffic = spec.written.traffic
    assert traffic is not None
    found = [Decision("schedule.windows", counted(len(days[0].windows), "window"), _explain_windows(days[0]))]
    for index, (each, day) in enumerate(zip(traffic.other_days, days[1:], strict=True)):
        why = f"on {', '.join(each.days)}: {day.mean_nodes:.2f} nodes are taken on average, {day.bound:.2f} at least"
        found.append(Decision(f"schedule.other_days.{index}.windows", counted(len(day.windows), "window"), why))
    return found


def _day_planner(
    spec: ResolvedSpec, schedule: ScheduleSpec, layouts: Mapping[Phase, PhaseLayout], rates: Mapping[Phase, float]
) -> Callable[[float], tuple[DerivedDay, ...]]:
    """Return a function from a warm-up in seconds to the derived windows of ordinary and special days."""
    traffic = spec.written.traffic
    assert traffic is not None
    filling = {phase for phase in layouts.keys() - rates.keys() if f"{phase}.units" in spec.document.autos}
    nodes_per_unit = {phase: each.nodes_per_unit for phase, each in layouts.items()}
    days = [None, *(each.days[0] for each in traffic.other_days)]
    of_nodes = {phase: layouts[phase].num_units / (1 + schedule.headroom) for phase in filling}
    asked = [_required_units(traffic, each, layouts, rates, of_nodes) for each in days]
    return lambda warm_up: derive_days(schedule.model_copy(update={"warm_up": warm_up}), asked, nodes_per_unit)


def _required_units(
    traffic: TrafficSpec,
    day: str | None,
    layouts: Mapping[Phase, PhaseLayout],
    rates: Mapping[Phase, float],
    of_nodes: Mapping[Phase, float],
) -> Demand:
    """Return phase -> how many units (fractions too) the demand of each profile entry takes on `day`.

    `rates` has one unit's tokens/s for phases decided by speed. `of_nodes` has the units that the busiest entry
    takes, for phases whose units fill the nodes.
    """
    profile, scale = traffic.profile_on(day) or [], traffic.day_scale(day)
    asked: dict[Phase, Sequence[float]] = {}
    for phase, each in layouts.items():
        if phase in rates:
            asked[phase] = demand_from_rate(profile, scale * traffic.tokens_of(phase), rates[phase])
        elif phase in of_nodes:
            asked[phase] = demand_from_units(profile, of_nodes[phase], traffic.busiest)
        else:
            asked[phase] = demand_from_units(profile, each.num_units, traffic.capacity or traffic.busiest)
    return asked


def _explain_windows(day: DerivedDay) -> str:
    binding = day.bounds[day.binding]
    return (
        f"the fewest node-hours that follow traffic.profile: {day.mean_nodes:.2f} nodes are taken on average, with"
        f" those that warm up and drain. Without these it is at least {day.bound:.2f}, and most of that is for"
        f" {day.binding}: {binding:.2f}"
    )
