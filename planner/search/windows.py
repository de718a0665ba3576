"""Decide `schedule.windows: auto`: choose the day with the fewest node-hours.

How much load one unit carries depends on what decided the number of units:
    the spec        the written units just carry the busiest entry of the profile; headroom comes on top
    the nodes       as many units as fit carry the busiest entry and its headroom
    speed           a unit carries its predicted rate under the SLO
Afterwards the windows set the number of units, so `units` is removed from the phases.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.facts.quantities import counted
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout, lay_out
from planner.rules.check import change_spec
from planner.schedule.derived import (
    Demand,
    DerivedDay,
    demand_from_rate,
    demand_from_units,
    derive_days,
    round_up_units,
)
from planner.spec.decision import Decision
from planner.spec.resolved import ResolvedSpec
from planner.spec.schedule import ScheduleSpec
from planner.spec.traffic import TrafficSpec
from planner.spec.undecided import AUTO, is_undecided


def decide_windows(spec: ResolvedSpec, rates: Mapping[Phase, float]) -> tuple[ResolvedSpec, list[Decision]]:
    """Return (spec, decisions), where windows derived from traffic have replaced `auto` ones.

    `rates` has one unit's tokens/s for each phase whose number of units was decided by speed.
    """
    schedule = spec.written.schedule
    if schedule is None or not is_undecided(schedule.windows):
        return spec, []
    days = _derive_days(spec, schedule, {phase: lay_out(spec, phase) for phase in spec.phases}, rates)
    section = spec.document.data["schedule"]
    written = ({} if section == AUTO else section) | _windows_data(spec, days)
    values = {"schedule": written} | {f"{phase}.units": None for phase in spec.phases}
    return change_spec(spec, values), _window_decisions(spec, days)


def most_units(spec: ResolvedSpec, phase: Phase, written: int | None = None) -> int:
    """Return how many units of `phase` are on at the peak of the day. `written` replaces the spec's `units`.

    With `windows: auto` the peak may need more units than written, because of `headroom` or `min_units`.
    """
    number = spec.written.num_units(phase) if written is None else written
    schedule, traffic = spec.written.schedule, spec.written.traffic
    if schedule is None or traffic is None or not is_undecided(schedule.windows):
        return number
    return round_up_units(number * (1 + schedule.headroom), schedule.min_units.of(phase))


def _windows_data(spec: ResolvedSpec, days: Sequence[DerivedDay]) -> dict[str, Any]:
    """Return the windows of ordinary and special days as data for the spec's section `schedule`."""
    traffic = spec.written.traffic
    assert traffic is not None
    others = [
        {"days": each.days, "windows": list(day.windows)}
        for each, day in zip(traffic.other_days, days[1:], strict=True)
    ]
    return {"windows": list(days[0].windows)} | ({"other_days": others} if others else {})


def _window_decisions(spec: ResolvedSpec, days: Sequence[DerivedDay]) -> list[Decision]:
    traffic = spec.written.traffic
    assert traffic is not None
    found = [Decision("schedule.windows", counted(len(days[0].windows), "window"), _explain_windows(days[0]))]
    for index, (each, day) in enumerate(zip(traffic.other_days, days[1:], strict=True)):
        why = f"on {', '.join(each.days)}: {day.mean_nodes:.2f} nodes are taken on average, {day.bound:.2f} at least"
        found.append(Decision(f"schedule.other_days.{index}.windows", counted(len(day.windows), "window"), why))
    return found


def _derive_days(
    spec: ResolvedSpec, schedule: ScheduleSpec, layouts: Mapping[Phase, PhaseLayout], rates: Mapping[Phase, float]
) -> tuple[DerivedDay, ...]:
    """Return the derived windows of ordinary and special days."""
    traffic = spec.written.traffic
    assert traffic is not None
    filling = {phase for phase in layouts.keys() - rates.keys() if f"{phase}.units" in spec.document.autos}
    nodes_per_unit = {phase: each.nodes_per_unit for phase, each in layouts.items()}
    days = [None, *(each.days[0] for each in traffic.other_days)]
    of_nodes = {phase: layouts[phase].num_units / (1 + schedule.headroom) for phase in filling}
    asked = [_required_units(traffic, each, layouts, rates, of_nodes) for each in days]
    return derive_days(schedule, asked, nodes_per_unit)


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
        else:
            asked[phase] = demand_from_units(profile, of_nodes.get(phase, each.num_units), traffic.busiest)
    return asked


def _explain_windows(day: DerivedDay) -> str:
    binding = day.bounds[day.binding]
    return (
        f"the fewest node-hours that follow traffic.profile: {day.mean_nodes:.2f} nodes are taken on average, with"
        f" those that warm up and drain. Without these it is at least {day.bound:.2f}, and most of that is for"
        f" {day.binding}: {binding:.2f}"
    )
