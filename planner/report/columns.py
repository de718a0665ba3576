"""Columns and sentences of a plan's text, for a terminal of 80 columns."""

import textwrap
from collections.abc import Sequence
from string import digits as DIGITS

__all__ = ["WIDTH", "filled", "runs_of", "table", "wrapped"]

WIDTH = 80
MIN_WIDTH = 24  # of a column that is wrapped, beside names of any length


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return `rows` in columns two spaces apart, indented by two."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"  {line}".rstrip() for line in lines)


def wrapped(rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table whose last column takes as many lines as it needs."""
    room = WIDTH - 2 - sum(2 + max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1))
    lines: list[tuple[str, ...]] = []
    for *cells, last in rows:
        parts = textwrap.wrap(last, max(room, MIN_WIDTH), break_on_hyphens=False) or [""]
        lines += [(*cells, parts[0]), *((*[""] * len(cells), part) for part in parts[1:])]
    return table(lines)


def filled(note: str) -> list[str]:
    """Return the lines of a sentence below a table."""
    return textwrap.wrap(note, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def runs_of(names: Sequence[str]) -> list[list[str]]:
    """Return `names` in their order, those together whose numbers follow one another: node-0 and node-1, but node-3."""
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    return runs


def _follows(name: str, other: str) -> bool:
    """Whether `other` is called like `name`, with the next number, written at least as wide."""
    (start, number), (other_start, other_number) = _numbered(name), _numbered(other)
    return start == other_start and bool(number) and other_number == f"{int(number) + 1:0{len(number)}d}"


def _numbered(name: str) -> tuple[str, str]:
    """What stands before the number at the end of `name`, and that number."""
    start = name.rstrip(DIGITS)
    return start, name[len(start) :]
