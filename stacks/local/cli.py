"""The output of `tidemill up` and `status` about a deployment: its record, its failures, and the day that is played.

`stacks/cli.py` has the commands. This file prints; `played_day.py` knows what is due.
"""

import time
from contextlib import suppress
from typing import Any

from planner.command.printed import say
from planner.problems.printable import printable
from stacks.day.runs import Kind
from stacks.local.deployment import follow
from stacks.local.played_day import DayRecord, DueAct
from stacks.local.record import ORDER, GatewayRecord, Record, UnitRecord
from stacks.local.run_folder import RunFolder

__all__ = [
    "day_line",
    "done_acts",
    "explain_epoch",
    "explain_state",
    "map_json",
    "play_day",
    "record_json",
    "say_day",
    "stay",
]

REFRESH_S = 0.5
DONE: dict[Kind, str] = {"start": "starts", "serve": "serves", "drain": "drains", "stop": "has stopped"}
DUE: dict[Kind, str] = {"start": "starts", "serve": "serves", "drain": "drains", "stop": "is to have stopped"}


class Failures:
    """Prints each failure of a deployment once."""

    def __init__(self) -> None:
        self._reported: dict[str, str | None] = {}

    def say(self, record: Record) -> None:
        """Print to stderr each failed gateway or unit and each trouble of the supervisor. None is printed twice."""
        down = {part.name: f"{part.state}: {part.reason}" if part.reason else None for part in record.parts}
        down |= {part.name: self._reported.get(part.name) for part in record.parts if _is_coming_up(part)}
        down["the supervisor"] = record.trouble and f"goes on, but {record.trouble}"
        for name, why in down.items():
            if why is not None and self._reported.get(name) != why:
                say(f"{name} {why}")
        self._reported = down


def stay(folder: RunFolder) -> None:
    """Stay in the foreground until Ctrl-C, or until the deployment is stopped; print each failure.

    Output that does not fit on a full disk is lost: an error here would end the deployment.
    """
    say("Ctrl-C stops it")
    failures = Failures()
    for record in follow(folder):
        with suppress(OSError):
            failures.say(record)


def play_day(folder: RunFolder) -> None:
    """Stay in the foreground until the played day is over or stopped; print each act and each failure."""
    from rich.console import Console  # 20 ms, which every command would wait

    from stacks.local.progress import DayProgress

    say("Ctrl-C stops it")
    failures = Failures()
    with DayProgress(Console(stderr=True)) as progress:
        for record in follow(folder, REFRESH_S):
            with suppress(OSError):  # as above
                failures.say(record)
                if record.day is not None:
                    progress.show(record.day, _elapsed_s(record.day), done_acts(record.day))


def say_day(day: DayRecord) -> int:
    """Print a table of the played day's acts, with the seconds at which each was due and done, and a summary.

    Returns the exit status: 1 if an act was late, missed or failed.
    """
    width = max([len("unit"), *(len(act.unit) for act in day.acts)])
    print(f"{'at':<8}  {'unit':<{width}}  {'act':<5}  {'due s':>7}  {'done s':>7}")
    for act in day.acts:
        done = "never" if act.done_s is None else f"{act.done_s:.1f}"
        wrong = f"  {'late' if act.is_late else ''} {printable(act.reason or '')}".rstrip()
        print(f"{act.clock}  {act.unit:<{width}}  {act.kind:<5}  {act.due_s:7.1f}  {done:>7}{wrong}")
    until = "" if day.is_over else f"; it was stopped at {day.clock(_elapsed_s(day))}"
    print(f"{len(day.acts)} acts in a day of {day.length_s:g} s, {day.num_late} late or wrong{until}", flush=True)
    return 1 if day.num_late else 0


def day_line(day: DayRecord) -> str:
    """Return a line about the played day: its clock, the number of units wanted now, acts done, and the next act."""
    if day.began is None:
        return f"a day in {day.length_s:g} s, which begins when the first units are ready"
    seconds, upcoming = _elapsed_s(day), day.next_act()
    done = sum(act.done_s is not None for act in day.acts)
    then = f"; next: {upcoming.clock[:5]} {upcoming.unit} {DUE[upcoming.kind]}" if upcoming else ""
    wanted = f"{len(day.wanted(seconds))} units wanted"
    return f"{day.clock(seconds)} of a day in {day.length_s:g} s, {wanted}, {done} of {len(day.acts)} acts done{then}"


def done_acts(day: DayRecord) -> list[str]:
    """Return a sentence for each act that is done or missed, in the order of their times."""
    done = [act for act in day.acts if act.done_s is not None or act.is_missed]
    return [_describe_act(act) for act in sorted(done, key=lambda act: act.due_s if act.done_s is None else act.done_s)]


def record_json(record: Record) -> dict[str, Any]:
    """Return a deployment's record as the JSON document of `status`."""
    units = [
        {"name": unit.name, "phase": unit.phase, "state": unit.state, "ranks": unit.ranks}
        | ({"epoch": {"number": unit.epoch, "digest": unit.epoch_digest}} if unit.epoch else {})
        | {"expert_map": map_json(unit)}
        | _troubles(record, unit)
        for unit in record.units
    ]
    gateways = [
        {"name": gateway.name, "endpoint": gateway.endpoint, "state": gateway.state} | _troubles(record, gateway)
        for gateway in record.gateways
    ]
    head = {"endpoint": record.endpoint, "plan_digest": record.plan_digest, "units": units, "gateways": gateways}
    words = {"failure": record.failure, "trouble": record.trouble}
    return head | {key: said for key, said in words.items() if said is not None} | _day_json(record)


def explain_epoch(unit: UnitRecord) -> str:
    """Return who has changed the expert map that a unit follows and, if that is known, what for."""
    return f"expert_load.live: {unit.own_reason}" if unit.epoch_digest == unit.own_digest else "tidemill experts apply"


def map_json(unit: UnitRecord) -> dict[str, Any]:
    """Return the digests of the plan's map and of the map in service, why they differ, and the last decision.

    There is no map in service unless the unit's ranks say it.
    """
    why = explain_epoch(unit) if unit.epoch else None
    said = {"in_service": unit.map_in_service, "why": why, "decision": unit.decision}
    troubles = {"unread": unit.unread, "forgets": unit.forgets}
    return {"plan": unit.planned_map} | {key: value for key, value in (said | troubles).items() if value}


def explain_state(record: Record, part: UnitRecord | GatewayRecord) -> str | None:
    """Return what is wrong with a unit or gateway and, if it is down, the local time of its next start.

    None if nothing is wrong.
    """
    seconds = _starts_in_s(record, part)
    if seconds is None:
        return f"again, after: {part.reason}" if part.reason and _is_coming_up(part) else part.reason
    start = f"starts again at {time.strftime('%H:%M:%S', time.localtime(round(time.time() + seconds)))}"
    return f"{part.reason}; {start}" if part.reason else start


def _is_coming_up(part: UnitRecord | GatewayRecord) -> bool:
    """Return whether a unit or gateway is starting and not ready; `reason` then explains its previous end."""
    return part.state in ORDER and part.state != "ready"


def _starts_in_s(record: Record, part: UnitRecord | GatewayRecord) -> float | None:
    """Return the seconds until a unit or gateway is restarted.

    Return None if it is not down, or if the time of its restart is not known.
    """
    if part.starts_at is None or record.is_stopping or record.failure is not None or part.state == "unknown":
        return None
    return max(0.0, part.starts_at - time.monotonic())


def _troubles(record: Record, part: UnitRecord | GatewayRecord) -> dict[str, Any]:
    """Return the fields about failures of a unit or gateway: reason, restarts, next start. Empty if it never failed."""
    seconds = _starts_in_s(record, part)
    reason = {"reason": part.reason} if part.reason else {}
    restarts = {"restarts": part.restarts} if part.restarts else {}
    return reason | restarts | ({} if seconds is None else {"starts_in_s": round(seconds, 1)})


def _day_json(record: Record) -> dict[str, Any]:
    """Return the JSON fields about the played day; empty if no day is played."""
    day = record.day
    if day is None:
        return {}
    seconds, upcoming = _elapsed_s(day), day.next_act()
    return {
        "day": {
            "seconds": day.length_s,
            "clock": day.clock(seconds) if day.began is not None else None,
            "is_over": day.is_over,
            "wanted": list(day.wanted(seconds)),
            "running": [unit.name for unit in record.units if unit.state != "off"],
            "late": day.num_late,
            "next": None if upcoming is None else _act_json(upcoming),
            "acts": [_act_json(act) for act in day.acts],
        }
    }


def _act_json(act: DueAct) -> dict[str, Any]:
    wrong = {"reason": act.reason} if act.reason else {}
    timing = {"due_s": act.due_s, "done_s": act.done_s, "late": act.is_late}
    return {"at": act.clock, "unit": act.unit, "act": act.kind} | timing | wrong


def _describe_act(act: DueAct) -> str:
    """Return a sentence about an act and when it was due, such as "demo-decode-0 serves, due at 08:00:00"."""
    if act.done_s is None:
        return f"{act.unit} {DUE[act.kind]} at {act.clock}: never"
    late_s = act.done_s - act.due_s
    when = f": {late_s:.1f} s late" if act.is_late else f": {-late_s:.1f} s ahead" if late_s < -REFRESH_S else ""
    return f"{act.unit} {DONE[act.kind]}, due at {act.clock}{when}" + (f" ({act.reason})" if act.reason else "")


def _elapsed_s(day: DayRecord) -> float:
    return 0.0 if day.began is None else time.monotonic() - day.began
