"""Hold published measurements against predictions: one line a figure, and medians of groups.

A row whose source gave its engine a constant is judged `left out`: predicted with the constants that all other sources
give. Other rows are judged as they are predicted. Nothing is judged twice, and no row is dropped because it is
missed.

    error     predicted / measured - 1
    inside    whether the measured figure lies in the predicted range, of rows that gave no constant
    first     the error when the row was added, before anything was learned from it
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from statistics import median
from typing import Any

from planner.accuracy.fit import fit
from planner.accuracy.predicted import Predicted
from planner.accuracy.rows import Figure, PublishedRow, published_rows
from planner.estimate.throughput.engines import read_engine
from planner.estimate.throughput.intervals import Estimate
from planner.facts.part import Maybe, Part, Rounded

MEMORY: tuple[Figure, ...] = ("weights_gib", "kv_tokens")


class Line(Part):
    """One measured figure of a row, and its prediction."""

    name: str
    source: str
    published: str
    gpu: str
    model: str
    engine: str
    phase: str
    figure: Figure
    measured: Rounded
    predicted: Maybe[Rounded]
    low: Maybe[Rounded]
    high: Maybe[Rounded]
    error: Maybe[Rounded]
    left_out_error: Maybe[Rounded]  # without the source's own constants; None if it gave none
    first_error: Maybe[Rounded]
    fits: Maybe[str]
    why_not: Maybe[str]
    remark: Maybe[str]

    @property
    def judged(self) -> float | None:
        """Return the error by which the row is judged: `left_out_error`, or `error` if its source gave no constant."""
        return self.error if self.left_out_error is None else self.left_out_error

    @property
    def is_inside(self) -> bool | None:
        """Return whether the measured figure is in the predicted range.

        Returns None if there is no range, or if the row gave its engine a constant.
        """
        return None if self.low is None or self.high is None or self.fits else self.low <= self.measured <= self.high


class Group(Part):
    """The errors of the lines with one GPU, one model and one kind of figure."""

    gpu: str
    model: str
    kind: str
    num_figures: int
    num_sources: int
    median_error: Maybe[Rounded]
    worst_error: Maybe[Rounded]
    num_inside: int
    num_ranges: int  # of figures that have a range and gave no constant; none of memory has
    num_unpredicted: int


class Board(Part):
    """The measured figures beside their predictions, one line each, and the errors of groups of lines."""

    lines: tuple[Line, ...]
    groups: tuple[Group, ...]

    @property
    def median_error(self) -> float:
        """Return the median absolute error of all predicted speeds."""
        return median(abs(each.judged) for each in _speeds(self.lines) if each.judged is not None)

    @property
    def share_inside(self) -> float:
        """Return the share of speeds that lie in their predicted range, of those that have one (`Line.is_inside`)."""
        inside = [each.is_inside for each in _speeds(self.lines) if each.is_inside is not None]
        return sum(inside) / len(inside)


def make_board(own: Sequence[PublishedRow] = ()) -> Board:
    """Return the board of all published rows and of a user's `own`.

    Raises SpecError if a row's spec breaks rules, and CallError if the spec has an `auto` or lacks the row's phase.
    """
    lines = (*_published_lines(), *(line for row in own for line in _lines(Predicted(row), None)))
    return Board(lines=lines, groups=tuple(_groups(lines)))


@cache
def _published_lines() -> tuple[Line, ...]:
    rows = [Predicted(row) for row in published_rows()]
    givers = {each.row.source for each in rows if each.row.fits not in (None, "utilisation")}
    without = {source: fit([each for each in rows if each.row.source != source]) for source in givers}
    return tuple(line for each in rows for line in _lines(each, without.get(each.row.source)))


def _lines(each: Predicted, without: Mapping[str, Any] | None) -> Iterable[Line]:
    """Yield a line for each measured figure of a row.

    `without` has the engines' constants fitted without the row's source; None if the source gave no constant.
    """
    found = each.estimates()
    left_out: Mapping[Figure, Estimate] = {}
    if without is not None:
        left_out = each.estimates(read_engine(without, each.engine))
    for figure, measured in each.row.measured.items():
        yield _line(each, figure, measured, found.get(figure), left_out.get(figure))


def _line(each: Predicted, figure: Figure, measured: float, found: Estimate | None, left_out: Estimate | None) -> Line:
    row, has_range = each.row, found is not None and figure not in MEMORY
    return Line(
        name=row.name,
        source=row.source,
        published=row.published,
        gpu=each.gpu,
        model=each.model,
        engine=each.engine,
        phase=row.phase,
        figure=figure,
        measured=measured,
        predicted=None if found is None else found.mid,
        low=found.low if found is not None and has_range else None,
        high=found.high if found is not None and has_range else None,
        error=None if found is None else found.mid / measured - 1,
        left_out_error=None if left_out is None else left_out.mid / measured - 1,
        first_error=row.first[figure] / measured - 1 if figure in row.first else None,
        fits=row.fits,
        why_not=each.why_not if found is None else None,
        remark=row.remark or None,
    )


def _groups(lines: Sequence[Line]) -> Iterable[Group]:
    found: dict[tuple[str, str, str], list[Line]] = defaultdict(list)
    for each in lines:
        found[each.gpu, each.model, "memory" if each.figure in MEMORY else each.phase].append(each)
    for (gpu, model, kind), members in sorted(found.items()):
        errors = [abs(each.judged) for each in members if each.judged is not None]
        yield Group(
            gpu=gpu,
            model=model,
            kind=kind,
            num_figures=len(members),
            num_sources=len({each.source for each in members}),
            median_error=median(errors) if errors else None,
            worst_error=max(errors, default=None),
            num_inside=sum(each.is_inside is True for each in members),
            num_ranges=sum(each.is_inside is not None for each in members),
            num_unpredicted=len(members) - len(errors),
        )


def _speeds(lines: Iterable[Line]) -> list[Line]:
    return [each for each in lines if each.figure not in MEMORY]
