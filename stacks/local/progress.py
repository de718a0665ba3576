"""The progress of a deployment that comes up: a bar for each unit on a terminal, a line for each change elsewhere.

A day that is played has one bar, and a line for each act.
"""

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from stacks.local.played_day import DayRecord
from stacks.local.record import ORDER, Record, UnitRecord

__all__ = ["DayProgress", "UpProgress"]


class UpProgress:
    """Shows how a deployment starts. Use as a context manager, and call `show` with each new record."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
        )
        self._bars = Progress(*columns, console=console, disable=not console.is_terminal)
        self._tasks: dict[str, TaskID] = {}
        self._printed: dict[str, str] = {}

    def __enter__(self) -> "UpProgress":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def show(self, record: Record) -> None:
        """Show every unit's state in its bar or, without a terminal, print each change as a line."""
        for unit in record.units:
            if unit.state == "off":
                continue
            if unit.name not in self._tasks:
                self._tasks[unit.name] = self._bars.add_task(f"{unit.name} ({unit.ranks} ranks)", total=3, state="")
            self._bars.update(self._tasks[unit.name], completed=_stages_done(unit), state=_state_text(unit))
            if not self._console.is_terminal and self._printed.get(unit.name) != unit.state:
                self._console.print(f"{unit.name}: {unit.state}", highlight=False)
                self._printed[unit.name] = unit.state


class DayProgress:
    """Shows how far a played day is. Use as a context manager, and call `show` again and again."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[clock]}"))
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task: TaskID | None = None
        self._printed: list[str] = []

    def __enter__(self) -> "DayProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, day: DayRecord, seconds: float, done: Sequence[str]) -> None:
        """Set the bar to `seconds` after the day's beginning.

        Print each new sentence of `done`, preceded by the day's clock.
        """
        if self._task is None:
            self._task = self._bar.add_task("the day", total=day.length_s, clock="")
        self._bar.update(self._task, completed=min(seconds, day.length_s), clock=day.clock(seconds))
        for sentence in done:
            if sentence not in self._printed:
                self._console.print(f"{day.clock(seconds)} {sentence}", highlight=False, markup=False, soft_wrap=True)
                self._printed.append(sentence)


def _stages_done(unit: UnitRecord) -> float:
    """Return how many of three stages (starting, loading, joining) a unit has passed.

    While loading, it counts the fraction of the weights loaded so far.
    """
    if unit.state == "loading":
        return ORDER.index("loading") + unit.loaded
    return ORDER.index(unit.state) if unit.state in ORDER else 0


def _state_text(unit: UnitRecord) -> str:
    return f"loading {unit.loaded:.0%}" if unit.state == "loading" else unit.state
