"""Reads the spec of a TidemillDeployment: its day, and a person's orders. Pure.

Its schema admits more than anybody can follow, and whoever may edit the object may write it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.facts.calendar import is_day, is_timezone
from planner.facts.day import DAY_MINUTES, minute_of
from planner.facts.terms import Phase
from planner.schedule.schedule import OtherDays, Step, Timetable
from stacks.controller.clock import Clock
from stacks.controller.situation import Force, Orders
from stacks.kube.manifest import Manifest, parse_instant

__all__ = ["WrongDay", "read_clock", "read_orders", "read_timetable"]


class WrongDay(ValueError):
    """The spec of a TidemillDeployment cannot be followed, though the object fits its schema.

    The text names field and reason.
    """


def read_clock(deployment: Manifest) -> Clock:
    """Return the clock that the deployment's day runs by: wall-clock time times its `pace`, from its creation on."""
    began = parse_instant(deployment["metadata"]["creationTimestamp"])
    assert began is not None, "the server writes it"
    return Clock(began, float(deployment["spec"].get("pace", 1)))


def read_timetable(spec: Mapping[str, Any]) -> Timetable:
    """Return the day of a deployment's spec. Raises WrongDay if it cannot be followed."""
    steps = tuple(_read_steps(spec, "steps", spec["steps"]))
    if not spec["units"]:
        raise WrongDay(
            "spec.units has no unit, and nobody means by that to delete them all; the units stay as they are"
        )
    if not is_timezone(spec["timezone"]):
        raise WrongDay(f"spec.timezone ({spec['timezone']}) is no name of a time zone")
    notice_s = float(spec["lendNodes"]["noticeSeconds"]) if "lendNodes" in spec else 0.0
    warm_up_s, drain_s = float(spec["warmUpSeconds"]), float(spec["drainSeconds"])
    others = tuple(_read_other_days(spec))
    timetable = Timetable(spec["timezone"], steps, warm_up_s, drain_s, notice_s, other_days=others)
    if not any(step.units for step in timetable.all_steps):
        raise WrongDay("spec.steps and spec.otherDays want no unit at any time; the units stay as they are")
    return timetable


def read_orders(spec: Mapping[str, Any], states: set[str], clock: Clock, now: float) -> Orders:
    """Return the orders that have not ended by `now`. An order that has ended is ignored, even if it is invalid."""
    written = {name: spec[name] for name in ("hold", "force") if spec.get(name) is not None}
    ends = {name: parse_instant(order["until"]) for name, order in written.items()}
    lasting = {name: order for name, order in written.items() if (end := ends[name]) is None or now < end}
    unreadable = {
        name: why
        for name, order in lasting.items()
        if (why := _explain_unreadable_order(name, order, ends[name], states))
    }
    until = {
        name: clock.day_time(end) for name in lasting if name not in unreadable and (end := ends[name]) is not None
    }
    force = Force(written["force"]["state"], until["force"]) if "force" in until else None
    return Orders(until.get("hold"), force, tuple(unreadable.values()), may_drain="hold" not in unreadable)


def _read_other_days(spec: Mapping[str, Any]) -> Iterator[OtherDays]:
    for index, each in enumerate(spec.get("otherDays", ())):
        wrong = next((day for day in each["days"] if not is_day(day)), None)
        if wrong is not None:
            raise WrongDay(f"spec.otherDays.{index}.days has {wrong}, which is no weekday and no date")
        yield OtherDays(tuple(each["days"]), tuple(_read_steps(spec, f"otherDays.{index}.steps", each["steps"])))


def _read_steps(spec: Mapping[str, Any], place: str, written: Sequence[Mapping[str, Any]]) -> Iterator[Step]:
    by_phase: dict[Phase, list[str]] = {}
    pods = {each["name"]: each["pods"] for each in spec["units"]}
    for each in spec["units"]:
        by_phase.setdefault(each["phase"], []).append(each["name"])
    starts = sorted(minute_of(step["at"]) for step in written)
    if len(set(starts)) != len(starts):
        raise WrongDay(f"spec.{place} has two states that begin at one time")
    later = dict(zip(starts, [*starts[1:], starts[0] + DAY_MINUTES], strict=True))
    for step in written:
        _require_units(place, step, by_phase)
        num_units = {phase: step["units"].get(phase, 0) for phase in by_phase}
        units = tuple(name for phase, number in num_units.items() for name in by_phase[phase][:number])
        begins = minute_of(step["at"])
        yield Step(step["at"], later[begins] - begins, num_units, units, sum(pods[name] for name in units), None)


def _require_units(place: str, step: Mapping[str, Any], by_phase: Mapping[Phase, Sequence[str]]) -> None:
    for phase, number in step["units"].items():
        there_are = len(by_phase.get(phase, []))
        if number > there_are:
            raise WrongDay(f"spec.{place} at {step['at']} wants {number} {phase} units of {there_are}")


def _explain_unreadable_order(name: str, order: Mapping[str, Any], end: float | None, states: set[str]) -> str | None:
    """Return why an order cannot be followed, and what happens instead; None if it can."""
    instead = "so no unit drains until it is corrected or null" if name == "hold" else "so the day goes on without it"
    if end is None:
        return f"spec.{name}.until ({order['until']}) is no time such as 2026-11-25T06:00:00Z, {instead}"
    if "state" in order and order["state"] not in states:
        return f"spec.{name}.state ({order['state']}) is none of the day's ({', '.join(sorted(states))}), {instead}"
    return None
