"""Columns and sentences of a plan's text, for a terminal of 80 columns."""

import textwrap
from collections.abc import Sequence

__all__ = ["WIDTH", "filled", "table", "wrapped"]

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
