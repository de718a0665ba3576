"""Write the board as tables in markdown, which a terminal shows as they are."""

from collections.abc import Iterator, Sequence

from planner.accuracy.board import Board, Group, Line
from planner.accuracy.rows import FIGURES


def board_text(board: Board) -> str:
    """Return the groups, then every figure, then the sources."""
    sources = list(dict.fromkeys(each.source for each in board.lines))
    return "\n".join(
        [
            f"Speeds: median error {_percent(board.median_error)}, {board.share_inside:.0%} inside their range.",
            "",
            *_table(
                ("GPU", "model", "of", "figures", "sources", "median", "worst", "inside"), map(_group, board.groups)
            ),
            "",
            *_table(
                (
                    "row",
                    "GPU",
                    "figure",
                    "measured",
                    "predicted",
                    "range",
                    "error",
                    "left out",
                    "first",
                    "gives",
                    "[n]",
                ),
                (_line(each, sources.index(each.source) + 1) for each in board.lines),
            ),
            "",
            *_table(("[n]", "source"), ((str(number), source) for number, source in enumerate(sources, 1))),
            "",
        ]
    )


def _group(each: Group) -> tuple[str, ...]:
    inside = f"{each.num_inside} of {each.num_ranges}" if each.num_ranges else ""
    figures = str(each.num_figures) + (f", {each.num_unpredicted} not predicted" if each.num_unpredicted else "")
    errors = (_percent(each.median_error), _percent(each.worst_error))
    return (each.gpu, each.model, each.kind, figures, str(each.num_sources), *errors, inside)


def _line(each: Line, source: int) -> tuple[str, ...]:
    has_range = each.low is not None and each.high is not None
    return (
        each.name + (f" ({each.remark})" if each.remark else ""),
        each.gpu,
        FIGURES[each.figure],
        _number(each.measured),
        _number(each.predicted) if each.why_not is None else each.why_not,
        f"{_number(each.low)} to {_number(each.high)}" if has_range else "",
        _signed(each.error),
        _signed(each.left_out_error),
        _signed(each.first_error),
        each.fits or "",
        str(source),
    )


def _table(head: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.1%}"
