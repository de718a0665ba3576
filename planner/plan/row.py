"""One figure of a plan's report: what it is, how wide its range is, and where it comes from.

Text, JSON, pages and comparisons of plans are made of rows and compute nothing. So every reader sees the same figure,
and two plans are compared row by row: `section` and `name` are the same in both, and unique in each.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Provenance", "Row", "known"]

Provenance = Literal[
    "spec",  # its user wrote it
    "default",  # the spec leaves it out
    "derived",  # follows from the spec and the model's shapes
    "predicted",  # follows from a model of speed: `low` and `high` are the ends of its range
    "published",  # a source gives it, which the note names
    "assumed",  # nobody has read it anywhere, or measured it
]


@dataclass(frozen=True)
class Row:
    """One figure. `low` and `high` are there where it has a range."""

    section: str  # a topic, then what of it: `performance.decode`, `schedule.12:00`
    name: str  # with its unit, `tpot_ms`
    value: float | int | str
    unit: str = ""  # for people: `tokens/s per GPU`; `share` is written in per cent
    low: float | None = None
    high: float | None = None
    provenance: Provenance = "derived"
    note: str = ""


def known(section: str, *figures: tuple[Any, ...]) -> Iterator[Row]:
    """Yield a row for each name, value, unit, provenance and note, of which the last three may be left out.

    A value that is None is not known, and has no row.
    """
    for figure in figures:
        _, value, *_ = figure
        if value is not None:
            yield _row(section, *figure)


def _row(section: str, name: str, value: Any, unit: str = "", origin: Provenance = "derived", note: str = "") -> Row:
    return Row(section, name, value, unit, provenance=origin, note=note)
