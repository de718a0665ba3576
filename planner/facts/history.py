"""Past days of measured traffic, read from a CSV file; `forecast.py` forecasts the next day from them.

    time,demand
    2026-11-02T00:00,81422
    2026-11-02T01:00,70310

Times are wall-clock times of the schedule's time zone, in equal steps from midnight. Demand may be in any unit. If the
zone is UTC, times may end in Z. An hour that clocks skip has no rows. For an hour that clocks show twice, the larger
demand counts. A day may lack rows if other days have that time. `planner/rules/traffic.py` rejects times without rows
and contradicting rows. Only the last 366 days with rows are kept, which bounds the cost of a file.
"""

import csv
import io
import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from planner.facts.calendar import date_after, days_between, is_date
from planner.facts.day import DAY_MINUTES, HOUR_MINUTES, hh_mm, minute_of
from planner.facts.digest import digest_of_bytes
from planner.facts.files import explain_unreadable, read_file
from planner.problems.finding import Finding

OPTION = "traffic.history"
COLUMNS = ("time", "demand")
MAX_BYTES = 2**24  # assumed: a year of minutes has some 12 MB
MAX_DAYS = 366  # assumed: a forecast knows weeks and growth but no seasons, so older days would say little
MAX_DEMAND = 1e18
UTC, Z = "UTC", "Z"

ReasonAndFix = tuple[str, str]


@dataclass(frozen=True)
class PastDay:
    """The demand of a past day in each entry (equal time steps from midnight); None if an entry was not measured."""

    date: str
    days_before_next: int
    demand: tuple[float | None, ...]


@dataclass(frozen=True)
class History:
    """Past days in order of their dates. Each entry (time step of the day) was measured on at least one of them."""

    days: tuple[PastDay, ...]
    next_date: str
    contradicted: tuple[str, ...] = ()  # times for which several rows give different demands


@dataclass(frozen=True)
class HistoryFile:
    """The past days in a file, and the sha256 of its bytes."""

    history: History
    digest: str


def read_history(path: Path, written: str, zone: str = UTC) -> HistoryFile | Finding:
    """Return the past days in the file at `path`, or the finding that the file is wrong.

    `written` is the path in the spec; `zone` is the time zone of the file's times.
    """
    try:
        content = read_file(path, MAX_BYTES)
    except OSError as error:
        return Finding(OPTION, written, "S617 must be a readable file", *explain_unreadable(error))
    found = _read_rows(content)
    if isinstance(found, str):
        rule = "S618 must be CSV with the columns time and demand"
        return Finding(OPTION, written, rule, found, "begin it with the line time,demand")
    latest = _keep_latest(found)
    wrong = _find_wrong_row(found, zone) or _find_odd_step(latest) or _find_missing(latest)
    if wrong:
        rule = (
            "S619 must have equal time steps over a whole day, times such as 2026-11-02T08:00, and demand of 0 or more"
        )
        return Finding(OPTION, written, rule, *wrong)
    return HistoryFile(_history(latest), digest_of_bytes(content))


def _read_rows(content: bytes) -> list[tuple[str, str]] | str:
    """Return each row's time and demand as written, or the reason why the file cannot be read as CSV."""
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        names = [name.strip() for name in reader.fieldnames or ()]
        if any(names.count(column) != 1 for column in COLUMNS):
            return "its first line is not time,demand"
        reader.fieldnames = names
        return [((row["time"] or "").strip(), _read_demand(row)) for row in reader]
    except UnicodeDecodeError:
        return "it is not UTF-8"
    except csv.Error as error:
        return str(error)


def _read_demand(row: dict[str | Any, Any]) -> str:
    """Return a row's demand; empty if the row has too many values, as an unquoted 389,287 makes two."""
    return "" if None in row else (row["demand"] or "").strip()


def _keep_latest(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the rows of the last MAX_DAYS dates that have rows."""
    dates = sorted({time[:10] for time, _ in rows})[-MAX_DAYS:]
    return [row for row in rows if row[0] >= dates[0]]


def _find_wrong_row(rows: list[tuple[str, str]], zone: str) -> ReasonAndFix | None:
    """Explain the first wrong row by its line number; None if no row is wrong.

    The row's text is not quoted, because the path may name a private file.
    """
    if not rows:
        return "it has no rows", "add a row for each hour of past days, or for each equal part of one"
    for number, (time, demand) in enumerate(rows, 2):
        if not _is_time(time):
            fix = f"write what clocks show in {zone}, in whole minutes and without an offset: 2026-11-02T08:00"
            return f"the time in line {number} is not written so", fix
        if time.endswith(Z) and zone != UTC:
            reason = f"line {number} has the time {time!r} of UTC, and clocks show that of schedule.timezone ({zone})"
            return reason, f"write what clocks show in {zone}, without Z"
        if not _is_demand(demand):
            fix = f"write a number from 0 to {MAX_DEMAND:g}, without separators of thousands"
            return f"the demand in line {number} is no such number", fix
    return None


def _find_odd_step(rows: list[tuple[str, str]]) -> ReasonAndFix | None:
    """Explain a time step that does not divide an hour, so that rows fall on other minutes on other days; else None."""
    steps = Counter(
        abs(_minute(later) - _minute(time)) for (time, _), (later, _) in pairwise(rows) if time[:10] == later[:10]
    )
    usual = max(steps, key=steps.__getitem__, default=HOUR_MINUTES)
    if usual < 1 or usual > HOUR_MINUTES or HOUR_MINUTES % usual == 0:
        return None
    reason = f"most of its rows are {usual} minutes apart, which is no whole part of an hour"
    return reason, "write the demand of each hour, or of each equal part of one"


def _find_missing(rows: list[tuple[str, str]]) -> ReasonAndFix | None:
    """Explain the first time of the day that has no row on any day; None if every time has one."""
    times = {_minute(time) for time, _ in rows}
    step = _time_step(times)
    missing = next((each for each in range(0, DAY_MINUTES, step) if each not in times), None)
    if missing is None:
        return None
    has_all = len({time[:10] for time, _ in rows}) < MAX_DAYS
    reason = f"no day{'' if has_all else f' of the last {MAX_DAYS}'} has a demand at {hh_mm(missing)}"
    every = "minute" if step == 1 else f"{step} minutes"
    return reason, f"add a day with a row every {every}, or correct the times"


def _is_time(written: str) -> bool:
    day, clock = written[:10], written[11:].removesuffix(Z)
    clock = clock.removesuffix(":00") if len(clock) == len("08:00:00") else clock
    is_clock = len(clock) == 5 and clock[2] == ":" and clock[:2].isdecimal() and clock[3:].isdecimal()
    return written[10:11] in ("T", " ") and is_date(day) and is_clock and clock[:2] < "24" and clock[3:] < "60"


def _is_demand(written: str) -> bool:
    """Return whether `written` is a plain number. Python's float would also read 1_000 and digits of other scripts."""
    try:
        return written.isascii() and "_" not in written and 0 <= float(written) <= MAX_DEMAND
    except ValueError:
        return False


def _time_step(minutes: set[int]) -> int:
    """Return the time step in minutes: the largest, up to an hour, that divides all `minutes` of the day."""
    return math.gcd(HOUR_MINUTES, *minutes)


def _history(rows: list[tuple[str, str]]) -> History:
    step = _time_step({_minute(time) for time, _ in rows})
    days: dict[str, list[float | None]] = {}
    contradicted = set[str]()
    for time, demand in rows:
        day = time[:10]
        entries = days.setdefault(day, [None] * (DAY_MINUTES // step))
        index = _minute(time) // step
        if entries[index] not in (None, float(demand)):
            contradicted.add(f"{day}T{time[11:16]}")
        entries[index] = max(entries[index] or 0.0, float(demand))
    following = date_after(max(days), 1)
    found = (PastDay(day, days_between(day, following), tuple(days[day])) for day in sorted(days))
    return History(tuple(found), following, tuple(sorted(contradicted)))


def _minute(time: str) -> int:
    return minute_of(time[11:16])
