"""Lay out a plan's text in columns and paragraphs for a terminal of 80 columns."""

import textwrap
from collections.abc import Sequence
from string import digits as DIGITS

WIDTH = 80
MIN_WIDTH = 24  # of the wrapped column, however wide the other columns are


def format_table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return `rows` of cells as text, in columns two spaces apart and indented by two spaces."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"  {line}".rstrip() for line in lines)


def wrap_table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return `rows` of cells as text in columns. The last column wraps at the terminal's width."""
    room = WIDTH - 2 - sum(2 + max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1))
    lines: list[tuple[str, ...]] = []
    for *cells, last in rows:
        parts = textwrap.wrap(last, max(room, MIN_WIDTH), break_on_hyphens=False) or [""]
        lines += [(*cells, parts[0]), *((*[""] * len(cells), part) for part in parts[1:])]
    return format_table(lines)


def wrap_note(note: str) -> list[str]:
    """Return a note below a table as indented lines of the terminal's width."""
    return textwrap.wrap(note, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def group_numbered(names: Sequence[str]) -> list[list[str]]:
    """Return consecutively numbered names in groups, in their order: [node-0, node-1], [node-3]."""
    runs: list[list[str]] = []
    for name in names:
        if runs and _is_next_number(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    return runs


def format_runs(names: Sequence[str]) -> str:
    """Return names as text, with consecutively numbered ones shortened: `node-0 to node-15, node-18`."""
    runs = group_numbered(names)
    return ", ".join(
        run[0] if len(run) == 1 else f"{run[0]}{' to ' if len(run) > 2 else ', '}{run[-1]}" for run in runs
    )


def numeric_order(name: str) -> tuple[str, int]:
    """Return a sort key that puts node-9 before node-10."""
    start, number = _split_number(name)
    return start, int(number or -1)


def _is_next_number(name: str, other: str) -> bool:
    """Return whether `other` is `name` with its last number one higher, and with the same zero padding."""
    (start, number), (other_start, other_number) = _split_number(name), _split_number(other)
    return start == other_start and bool(number) and other_number == f"{int(number) + 1:0{len(number)}d}"


def _split_number(name: str) -> tuple[str, str]:
    """Return (text, number) of a name that ends in a number; the number is empty if there is none."""
    start = name.rstrip(DIGITS)
    return start, name[len(start) :]
