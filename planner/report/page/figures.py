"""The page's figures as data, and the drawing of them: values become per cents of a scale that two plans can share.

    Bars    a bar for each value: segments and marks on a line that begins at 0
    Steps   areas and lines over a day, or over layers or GPUs
    Table   words; below each drawing, a table has the drawing's numbers

Figures of two plans are drawn to the scale of the larger one, so that before and after compare by eye.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log10
from typing import TypeVar

from planner.facts.terms import PHASES, Phase

Value = TypeVar("Value")

HEIGHT = 1000  # of a drawing of `Steps`, in its own units; browsers stretch it
NUM_TICKS = 4  # most intervals of a vertical axis
LARGE = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Table:
    """A table of words with a row of column heads."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    is_folded: bool = False


@dataclass(frozen=True)
class Segment:
    """A part of a bar, from `begin` to `end`. `kind` decides its colour."""

    begin: float
    end: float
    kind: str
    words: str


@dataclass(frozen=True)
class Mark:
    """A mark at one value of a bar. `kind` decides its look."""

    at: float
    kind: str


@dataclass(frozen=True)
class Bar:
    """One bar, with words that say all that it shows."""

    label: str
    words: str
    segments: Sequence[Segment] = ()
    marks: Sequence[Mark] = ()

    @property
    def reach(self) -> float:
        """The largest value that the bar shows."""
        return max([*(each.end for each in self.segments), *(each.at for each in self.marks)], default=0.0)


@dataclass(frozen=True)
class Bars:
    """A figure of several bars. If `alike` they share a scale, else each bar has its own."""

    title: str
    bars: Sequence[Bar]
    table: Table
    legend: Mapping[str, str] = field(default_factory=dict)  # kind -> words
    note: str = ""
    alike: bool = True
    least_reach: float = 0.0  # what every line reaches at least, such as 1 for shares
    form = "bars"


@dataclass(frozen=True)
class Area:
    """Boxes that are drawn as one area, (left, right, bottom, top) each. `kind` decides its colour."""

    kind: str
    boxes: Sequence[tuple[float, float, float, float]]
    words: str


@dataclass(frozen=True)
class Line:
    """Points that are joined to a line, (x, y) each. `kind` decides its look."""

    kind: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Steps:
    """A figure of areas and lines over a horizontal axis from 0 to `end`, with labels below the axis."""

    title: str
    end: float
    labels: Sequence[tuple[float, str]]
    areas: Sequence[Area]
    lines: Sequence[Line]
    table: Table
    legend: dict[str, str]
    y_title: str
    note: str = ""
    least_step: float = 0.0  # smallest step between numbers of the vertical axis
    has_clock: bool = False  # whether the time that the reader chooses is marked
    form = "steps"

    @property
    def reach(self) -> float:
        """The largest value that the figure shows."""
        tops = [top for area in self.areas for *_, top in area.boxes]
        return max([*tops, *(y for line in self.lines for _, y in line.points)], default=0.0)


Figure = Bars | Steps | Table


@dataclass(frozen=True)
class DrawnBar:
    """A bar with positions in per cent: segments (left, width, kind, words) and marks (left, kind)."""

    label: str
    words: str
    segments: Sequence[tuple[str, str, str, str]]
    marks: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Drawn:
    """A figure with all positions and paths that the page's template needs to draw it."""

    figure: Figure
    form: str
    bars: Sequence[DrawnBar] = ()
    paths: Sequence[tuple[str, str, str]] = ()  # kind, SVG path, words
    x_ticks: Sequence[tuple[str, str]] = ()  # per cent, label
    y_ticks: Sequence[tuple[str, str]] = ()
    box: str = ""  # the SVG's viewBox


def by_phase(section: Mapping[Phase, Value] | None) -> list[tuple[Phase, Value]]:
    """Return the (phase, value) pairs of a plan's section, with prefill first. A plan's file sorts phases by name."""
    return [(phase, section[phase]) for phase in PHASES if phase in section] if section else []


def draw(figure: Figure, beside: Figure | None = None) -> Drawn:
    """Draw `figure`. If the same figure of another plan is shown `beside` it, the larger of the two sets the scale."""
    if isinstance(figure, Bars):
        bars = zip(figure.bars, bar_reaches(figure, beside), strict=True)
        return Drawn(figure, "bars", bars=[_draw_bar(bar, reach) for bar, reach in bars])
    if isinstance(figure, Steps):
        return _draw_steps(figure, axis_ticks(figure, beside))
    return Drawn(figure, "table")


def bar_reaches(figure: Bars, beside: Figure | None = None) -> list[float]:
    """Return for each bar of `figure` the value at the right end of its line.

    It is the largest value of all bars on the same scale, those of the figure `beside` it included.
    """
    every = [*figure.bars, *(beside.bars if isinstance(beside, Bars) else ())]
    return [
        max(figure.least_reach, *(each.reach for each in every if figure.alike or each.label == bar.label))
        for bar in figure.bars
    ]


def axis_ticks(figure: Steps, beside: Figure | None = None) -> list[float]:
    """Return round values for the vertical axis, from 0 to at least the largest value that is shown."""
    reach = max(figure.reach, beside.reach if isinstance(beside, Steps) else 0.0)
    rough = max((reach or 1.0) / NUM_TICKS, figure.least_step)
    power = 10.0 ** floor(log10(rough))
    step = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= rough * (1 - 1e-9))
    return [step * number for number in range(ceil(reach / step - 1e-9) + 1 or 2)]


def short_number(value: float) -> str:
    """Write a number for an axis: 1.5M."""
    size, unit = next(((size, unit) for size, unit in LARGE if value >= size), (1.0, ""))
    return f"{value / size:.3g}{unit}"


def _draw_bar(bar: Bar, reach: float) -> DrawnBar:
    segments = [
        (_per_cent(each.begin, reach), _per_cent(each.end - each.begin, reach), each.kind, each.words)
        for each in bar.segments
    ]
    return DrawnBar(bar.label, bar.words, segments, [(_per_cent(each.at, reach), each.kind) for each in bar.marks])


def _draw_steps(figure: Steps, ticks: Sequence[float]) -> Drawn:
    top = ticks[-1]
    areas = [(area.kind, "".join(_box(box, top) for box in area.boxes), area.words) for area in figure.areas]
    lines = [(f"line {line.kind}", _polyline(line.points, top), "") for line in figure.lines]
    return Drawn(
        figure,
        "steps",
        paths=[*areas, *lines],
        x_ticks=[(_per_cent(x, figure.end), label) for x, label in figure.labels],
        y_ticks=[(_per_cent(tick, top), short_number(tick)) for tick in ticks],
        box=f"0 0 {figure.end:g} {HEIGHT}",
    )


def _box(box: tuple[float, float, float, float], top: float) -> str:
    left, right, low, high = box
    return f"M{left:g} {_y(low, top)}H{right:g}V{_y(high, top)}H{left:g}z"


def _polyline(points: Iterable[tuple[float, float]], top: float) -> str:
    return "M" + "L".join(f"{x:g} {_y(y, top)}" for x, y in points)


def _y(value: float, top: float) -> int:
    return round(HEIGHT * (1 - value / top))


def _per_cent(value: float, of: float) -> str:
    return f"{100 * value / of if of else 0:.2f}%"
