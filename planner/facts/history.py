"""Past days of traffic, as measured and read from a CSV file; `forecast.py` makes the next day of them.

    time,demand
    2026-11-02T00:00,81422
    2026-11-02T01:00,70310

Times are what clocks showed in the schedule's time zone, on equally long steps from midnight; demand is in any unit,
the same for all. Where that zone is UTC, times may end in Z. An hour that clocks skipped is not there, and of one that
they showed twice the larger demand counts. Rows may be missing, where other days have that time: a day without some of
them says nothing about these times. `planner/estimate/past_days.py` warns of what is missing or said in two ways.
Only the last 366 days that have rows are kept, so that what a file costs has an end.
"""

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

from planner.facts.day import DAY_MINUTES, HOUR_MINUTES, hh_mm, minute_of
from planner.facts.digest import digest_of_bytes
from planner.facts.files import read_file
from planner.facts.wall_clock import days_between, is_date, next_date
from planner.problems.errors import Violation

__all__ = ["MAX_DEMAND", "History", "HistoryFile", "PastDay", "read_history"]

OPTION = "traffic.history"
COLUMNS = ("time", "demand")
MAX_BYTES = 2**24  # assumed: a year of minutes has some 12 MB
MAX_DAYS = 366  # assumed: a forecast knows weeks and growth but no seasons, so older days would say little
MAX_DEMAND = 1e18
UTC, Z = "UTC", "Z"


@dataclass(frozen=True)
class PastDay:
    """A day's demand, entry by entry from midnight; None where nobody measured it."""

    date: str
    days_before_next: int
    demand: tuple[float | None, ...]


@dataclass(frozen=True)
class History:
    """Past days in their order, with some demand in each entry of some day."""

    days: tuple[PastDay, ...]
    next_date: str
    contradicted: tuple[str, ...] = ()  # times of rows that differ in their demand


@dataclass(frozen=True)
class HistoryFile:
    """The past days in a file, and the sha256 of its bytes."""

    history: History
    digest: str


def read_history(path: Path, written: str, zone: str = UTC) -> HistoryFile | Violation:
    """Return the past days of `zone` at `path`, which the spec calls `written`; or what is wrong with them."""
    try:
        content = read_file(path, MAX_BYTES)
    except OSError as error:
        reason, fix = error.strerror or str(error), "give the path relative to the spec's folder"
        return Violation(OPTION, written, "S617 must be a readable file", reason, fix)
    found = _rows(content)
    if isinstance(found, str):
        rule = "S618 must be CSV with the columns time and demand"
        return Violation(OPTION, written, rule, found, "begin it with the line time,demand")
    latest = _latest(found)
    wrong = _wrong_row(found, zone) or _missing(latest)
    if wrong:
        rule = (
            "S619 must have equal time steps over a whole day, times such as 2026-11-02T08:00, and demand of 0 or more"
        )
        return Violation(OPTION, written, rule, wrong, "correct the file")
    return HistoryFile(_history(latest), digest_of_bytes(content))


def _rows(content: bytes) -> list[tuple[str, str]] | str:
    """Return times and demands as written, or why there are none."""
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        names = [name.strip() for name in reader.fieldnames or ()]
        if any(names.count(column) != 1 for column in COLUMNS):
            return f"its first line has {', '.join(names)[:80] or 'no columns'}"
        reader.fieldnames = names
        return [((row["time"] or "").strip(), (row["demand"] or "").strip()) for row in reader]
    except UnicodeDecodeError:
        return "it is not UTF-8"
    except csv.Error as error:
        return str(error)


def _latest(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the rows of the last days that have any."""
    dates = sorted({time[:10] for time, _ in rows})[-MAX_DAYS:]
    return [row for row in rows if row[0] >= dates[0]]


def _wrong_row(rows: list[tuple[str, str]], zone: str) -> str | None:
    if not rows:
        return "it has no rows"
    for number, (time, demand) in enumerate(rows, 2):
        if not _is_time(time):
            return f"line {number} has the time {time[:40]!r}"
        if time.endswith(Z) and zone != UTC:
            return f"line {number} has the time {time!r} of UTC, and clocks show that of schedule.timezone ({zone})"
        if not _is_demand(demand):
            return f"line {number} has the demand {demand[:40]!r}"
    return None


def _missing(rows: list[tuple[str, str]]) -> str | None:
    """Return which time of the day none of the days has, if there is one."""
    times = {_minute(time) for time, _ in rows}
    missing = next((each for each in range(0, DAY_MINUTES, _step(times)) if each not in times), None)
    if missing is None:
        return None
    has_all = len({time[:10] for time, _ in rows}) < MAX_DAYS
    return f"no day{'' if has_all else f' of the last {MAX_DAYS}'} has a demand at {hh_mm(missing)}"


def _is_time(written: str) -> bool:
    day, clock = written[:10], written[11:].removesuffix(Z)
    clock = clock.removesuffix(":00") if len(clock) == len("08:00:00") else clock
    is_clock = len(clock) == 5 and clock[2] == ":" and clock[:2].isdecimal() and clock[3:].isdecimal()
    return written[10:11] in ("T", " ") and is_date(day) and is_clock and clock[:2] < "24" and clock[3:] < "60"


def _is_demand(written: str) -> bool:
    """Return whether it is a number as programs write one: Python takes 1_000 and other scripts' digits, too."""
    try:
        return written.isascii() and "_" not in written and 0 <= float(written) <= MAX_DEMAND
    except ValueError:
        return False


def _step(minutes: set[int]) -> int:
    """Return the minutes between the times of a day: an hour at most, and all times are multiples of it."""
    return math.gcd(HOUR_MINUTES, *minutes)


def _history(rows: list[tuple[str, str]]) -> History:
    step = _step({_minute(time) for time, _ in rows})
    days: dict[str, list[float | None]] = {}
    contradicted = set[str]()
    for time, demand in rows:
        day = time[:10]
        entries = days.setdefault(day, [None] * (DAY_MINUTES // step))
        index = _minute(time) // step
        if entries[index] not in (None, float(demand)):
            contradicted.add(f"{day}T{time[11:16]}")
        entries[index] = max(entries[index] or 0.0, float(demand))
    following = next_date(max(days))
    found = (PastDay(day, days_between(day, following), tuple(days[day])) for day in sorted(days))
    return History(tuple(found), following, tuple(sorted(contradicted)))


def _minute(time: str) -> int:
    return minute_of(time[11:16])
