"""One figure of a plan's report: its value, range and source.

Text, JSON, pages and plan comparisons only show rows and compute no figures, so every reader sees the same figure. A
row's `section` and `name` are unique in its plan, and match its row in another plan.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Provenance = Literal[
    "spec",  # the user wrote it
    "default",  # the spec omits it
    "derived",  # computed from the spec and the model's shapes
    "predicted",  # from the speed model, with a range `low` to `high`
    "published",  # from the source that the note names
    "assumed",  # neither published nor measured
]


@dataclass(frozen=True)
class Row:
    """One figure. `low` and `high` are set if it has a range."""

    section: str  # a topic and its part: `performance.decode`, `schedule.12:00`
    name: str  # includes the unit: `tpot_ms`
    value: float | int | str
    unit: str = ""  # for people: `tokens/s per GPU`; `share` is written in per cent
    low: float | None = None
    high: float | None = None
    provenance: Provenance = "derived"
    note: str = ""


def make_rows(section: str, *figures: tuple[Any, ...]) -> Iterator[Row]:
    """Yield a row for each (name, value, unit, provenance, note) tuple. The last three are optional.

    A None value is unknown and gets no row.
    """
    for figure in figures:
        _, value, *_ = figure
        if value is not None:
            yield _row(section, *figure)


def _row(section: str, name: str, value: Any, unit: str = "", origin: Provenance = "derived", note: str = "") -> Row:
    return Row(section, name, value, unit, provenance=origin, note=note)
