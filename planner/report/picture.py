"""Draw figures of a plan's page as one picture, for pull requests and chat.

The picture is PNG or SVG on a light background. It stands alone: it carries its letters as pixels or outlines, the
plan's name and digest, and the legend of its colours. Equal plans give equal bytes.

A `Sheet` is a figure of Matplotlib on which everything is placed in inches from the top left corner. Each figure of the
page becomes a panel. With the plan before a change a row has two panels, drawn to one scale.
"""

import importlib.util
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from planner.plan.plan import Plan
from planner.problems.errors import CallError, OutputError
from planner.problems.finding import Finding
from planner.problems.printable import printable, without_passwords
from planner.report.page.colours import KINDS, on_paper
from planner.report.page.figures import Bars, Segment, Steps, Table, axis_ticks, bar_reaches, short_number
from planner.report.page.nodes import Nodes
from planner.report.page.sections import Section, Shown, sections_of
from planner.report.rows import report_of

WIDTH, DPI = 11.0, 110
MARGIN, GAP = 0.35, 0.45
LINE = 0.19  # of text
SMALL, NORMAL, LARGE = 8, 9, 14  # points
POINTS_PER_INCH = 72
FRACTIONS_OF_A_POINT = 64  # in which FreeType measures
CHARACTERS_PER_INCH = 15.5  # of small text that is broken into lines
KEY = 0.11  # width of a legend's key
PLOT, PLOT_LEFT = 2.1, 0.5  # height of a plot, and the room for the numbers of its axis
LABEL, TRACK = 1.5, 0.2  # width of a bar's label, and height of its line
CELL, RACK_GAP = 0.27, 0.09  # size of a node, and what is between racks
LINES: Mapping[str, Mapping[str, Any]] = {
    "asked": {"linewidth": 2.0, "color": on_paper("ink")},
    "served": {"linewidth": 1.2, "linestyle": (0, (5, 3)), "color": on_paper("soft")},
    "bound": {"linewidth": 1.6, "linestyle": (0, (2, 2))},
    "before": {"linewidth": 1.6},
    "published": {"linewidth": 1.8},
    "promise": {"linewidth": 1.2, "linestyle": (0, (7, 3))},
    "slowest": {"linewidth": 1.2, "linestyle": (0, (4, 3))},
    "fastest": {"linewidth": 1.2, "linestyle": (0, (4, 3))},
    "variant0": {"linewidth": 1.6},
    "variant1": {"linewidth": 1.6, "linestyle": (0, (6, 3))},
    "variant2": {"linewidth": 1.6, "linestyle": (0, (2, 2))},
    "variant3": {"linewidth": 1.6, "linestyle": (0, (8, 3, 2, 3))},
}
STYLE = {"font.family": ["DejaVu Sans"], "text.parse_math": False, "svg.fonttype": "path", "svg.hashsalt": "tidemill"}
METADATA: Mapping[str, Mapping[str, str | None]] = {
    "png": {"Software": None},
    "svg": {"Creator": None, "Date": None},
    "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
}


def require_pictures(form: str | None, chart: str | None) -> None:
    """Raise CallError for a `chart` without a picture's format, and OutputError if Matplotlib is not installed."""
    call = "tidemill report"
    if form is not None:
        require_matplotlib("--format", form, call)
    elif chart is not None:
        rule, reason = "S919 must come with --format png or --format svg", "the page always has all of its charts"
        raise CallError([Finding("--chart", chart, rule, reason, "add one of them, or leave --chart out").at(call)])


def require_matplotlib(option: str, value: str | None, call: str) -> None:
    """Raise OutputError if Matplotlib is not installed, for an `option` of the command `call` that needs it."""
    if importlib.util.find_spec("matplotlib") is None:
        rule, fix = "S918 needs matplotlib", "pip install '.[plot]' in a checkout"
        raise OutputError([Finding(option, value, rule, "it is not installed", fix).at(call)])


def draw_picture(
    plan: Plan, before: Plan | None, form: str, chart: str | None = None, notes: Sequence[str] = ()
) -> bytes:
    """Return a picture in the format `form` (png or svg) with the plan's figures, or those of the section `chart`.

    With the plan `before`, each figure is drawn for both. `notes` say how plans and figures were obtained. Raises
    CallError if the plan has no such figures.
    """
    return draw_sections(plan, before, _chosen_sections(plan, before, chart), form, notes)


def draw_sections(
    plan: Plan, before: Plan | None, sections: Sequence[Section], form: str, notes: Sequence[str] = ()
) -> bytes:
    """Return a picture in the format `form` (png, svg or pdf) of the figures in `sections`. Tables are left out."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()  # nothing of the user's own style: equal plans give equal bytes
        mpl.rcParams.update(STYLE)
        sheet = Sheet(Figure(dpi=DPI, facecolor=on_paper("paper")), WIDTH if before is None else 2 * WIDTH)
        _draw_all(sheet, plan, before, sections, notes)
        return sheet.save(form, f"Plan {plan.name}, {plan.digest}")


def _chosen_sections(plan: Plan, before: Plan | None, chart: str | None) -> list[Section]:
    """Return the sections that have figures besides tables, or only the section `chart`.

    Raises CallError if there is no such section.
    """
    drawn = [
        section
        for section in sections_of(plan, before)
        if any(not isinstance(each, Table | None) for pair in section.pairs for each in pair)
    ]
    chosen = [section for section in drawn if chart in (None, section.id)]
    if chosen:
        return chosen
    fix = f"name one of them: {', '.join(section.id for section in drawn)}"
    finding = Finding("--chart", chart, "S916 must be a chart of the plan", "the plan has no figures for it", fix)
    raise CallError([finding.at("tidemill report")])


class Sheet:
    """A figure of Matplotlib, drawn from the top down: `down` is how far, in inches from the top, it is drawn so far.

    All places are inches from the top left corner.
    """

    def __init__(self, figure: Any, width: float) -> None:
        self.figure, self.width, self.down = figure, width, MARGIN
        self._drawn: list[tuple[Any, tuple[float, ...]]] = []

    def text(
        self, left: float, down: float, words: str, *, size: int = SMALL, colour: str = "ink", **more: Any
    ) -> None:
        """Write `words` as one line from `left` on, with its middle `down` inches below the top."""
        text = self.figure.text(
            0, 0, _clean(words), fontsize=size, color=on_paper(colour), va="center", **({"ha": "left"} | more)
        )
        self._drawn.append((text, (left, down)))

    def width_of(self, words: str) -> float:
        """Return the width of a line of small text, in inches."""
        from matplotlib.font_manager import findfont, get_font

        font = get_font(findfont("DejaVu Sans"))
        font.set_size(SMALL, POINTS_PER_INCH)
        font.set_text(_clean(words), 0)
        return float(font.get_width_height()[0]) / FRACTIONS_OF_A_POINT / POINTS_PER_INCH

    def box(self, left: float, down: float, size: tuple[float, float], colour: str, **more: Any) -> None:
        """Fill a box of `size` (width, height) in inches, whose top left corner is at (left, down)."""
        from matplotlib.patches import Rectangle

        patch = Rectangle((0, 0), 0, 0, facecolor=colour, **({"linewidth": 0} | more))
        self.figure.add_artist(patch)
        self._drawn.append((patch, (left, down, *size)))

    def axes(self, left: float, down: float, size: tuple[float, float]) -> Any:
        """Return new axes of `size` (width, height) in inches, whose top left corner is at (left, down)."""
        axes = self.figure.add_axes((0, 0, 1, 1))
        self._drawn.append((axes, (left, down, *size)))
        return axes

    def save(self, form: str, title: str) -> bytes:
        """Return the picture's bytes in the format `form`.

        Everything is placed first, because the picture's height is known only now.
        """
        height = self.down + SMALL / POINTS_PER_INCH
        self.figure.set_size_inches(self.width, height)
        for thing, (left, down, *size) in self._drawn:
            x, y = left / self.width, 1 - down / height
            if not size:
                thing.set_position((x, y))
                continue
            wide, high = size[0] / self.width, size[1] / height
            if hasattr(thing, "set_bounds"):
                thing.set_bounds(x, y - high, wide, high)
            else:
                thing.set_position((x, y - high, wide, high))
        file = BytesIO()
        self.figure.savefig(file, format=form, metadata={"Title": title, **METADATA[form]}, facecolor=on_paper("paper"))
        return file.getvalue()


@dataclass(frozen=True)
class Panel:
    """A column of a sheet in which a figure is drawn, `width` inches wide."""

    sheet: Sheet
    left: float
    width: float


def _draw_all(sheet: Sheet, plan: Plan, before: Plan | None, sections: Sequence[Section], notes: Sequence[str]) -> None:
    report = report_of(plan)
    clock = f". Times are in {plan.schedule.timezone}" if plan.schedule else ""
    sheet.text(MARGIN, sheet.down + LINE / 2, f"Plan {plan.name}", size=LARGE, weight="bold")
    sheet.down += 1.6 * LINE
    sheet.text(
        MARGIN, sheet.down, f"{report.text('plan', 'model')} on {report.text('plan', 'engine')}{clock}.", size=NORMAL
    )
    digests = plan.digest if before is None else f"{plan.digest}    before: {before.digest}"
    for line in (digests, *(part for note in notes for part in _wrap(note, sheet.width - 2 * MARGIN))):
        sheet.down += LINE
        sheet.text(MARGIN, sheet.down, line, colour="soft")
    sheet.down += 1.2 * LINE
    for section in sections:
        _draw_section(sheet, section, has_two=before is not None)


def _draw_section(sheet: Sheet, section: Section, *, has_two: bool) -> None:
    sheet.text(MARGIN, sheet.down + LINE / 2, section.title, size=LARGE - 2, weight="bold")
    sheet.down += 1.5 * LINE
    for line in _wrap(section.intro, sheet.width - 2 * MARGIN):
        sheet.text(MARGIN, sheet.down, line, colour="soft")
        sheet.down += LINE
    width = (sheet.width - 2 * MARGIN - has_two * GAP) / (1 + has_two)
    for old, new in section.pairs:
        top, ends = sheet.down, [sheet.down]
        for place, figure, beside in ((0, old, new), (1, new, old))[0 if has_two else 1 :]:
            panel = Panel(sheet, MARGIN + (width + GAP) * (place if has_two else 0), width)
            sheet.down = top
            if has_two and not isinstance(figure, Table):
                sheet.text(panel.left, sheet.down + LINE / 2, ("before", "after")[place], colour="soft")
                sheet.down += LINE
            _draw_figure(panel, figure, beside)
            ends.append(sheet.down)
        sheet.down = max(ends)


def _draw_figure(panel: Panel, figure: Shown | None, beside: Shown | None) -> None:
    other = None if isinstance(beside, Nodes) else beside
    if isinstance(figure, Nodes):
        _draw_nodes(panel, figure)
    elif isinstance(figure, Bars):
        _draw_bars(panel, figure, bar_reaches(figure, other))
    elif isinstance(figure, Steps):
        _draw_steps(panel, figure, axis_ticks(figure, other))
    elif figure is None:
        panel.sheet.text(panel.left, panel.sheet.down + LINE / 2, "nothing to show", colour="soft")
        panel.sheet.down += 2 * LINE


def _draw_nodes(panel: Panel, figure: Nodes) -> None:
    sheet, right = panel.sheet, panel.left + panel.width
    racks = [cells for _, cells in figure.racks]
    is_one = len(racks) == 1
    if is_one:  # no rack is named: nodes go on in lines
        per_line = int(panel.width / (CELL + 0.02))
        racks = [racks[0][first : first + per_line] for first in range(0, len(racks[0]), per_line)]
    left, tallest = panel.left, 0.0
    for (name, _), cells in zip(figure.racks if not is_one else [("", ())] * len(racks), racks, strict=True):
        wide, high = (len(cells), 1) if is_one else (1, len(cells))
        if left + wide * (CELL + 0.02) > right + 1e-6 or (is_one and tallest):
            left, sheet.down, tallest = panel.left, sheet.down + tallest + RACK_GAP, 0.0
        if name:
            sheet.text(left, sheet.down + LINE / 2, _shorten(name), size=SMALL - 3, colour="soft")
        for place, cell in enumerate(cells):
            at = (left + (place if is_one else 0) * (CELL + 0.02), sheet.down + bool(name) * LINE)
            _draw_cell(sheet, at[0], at[1] + (0 if is_one else place) * (CELL * 0.8 + 0.02), cell.kind, cell.mark)
        tallest = max(tallest, high * (CELL * 0.8 + 0.02) + bool(name) * LINE)
        left += wide * (CELL + 0.02) + RACK_GAP
    sheet.down += tallest + LINE
    _draw_legend(panel, [(kind, words) for kind, words in figure.legend if kind in KINDS])
    sheet.down += GAP


def _draw_cell(sheet: Sheet, left: float, down: float, kind: str, mark: str) -> None:
    """Draw a node as a cell in its kind's colour, with the letter `mark` that is readable on that colour."""
    is_dark = kind.removesuffix(" shade0") in ("prefill", "decode", "mixed", "spare")
    colour = on_paper(kind.removesuffix(" shade0"))
    edge = {"edgecolor": on_paper("soft"), "linewidth": 0.6} if kind == "idle" else {}
    sheet.box(left, down, (CELL, CELL * 0.8), colour, **edge)
    sheet.text(
        left + CELL / 2, down + CELL * 0.4, mark, size=SMALL - 2, colour="paper" if is_dark else "ink", ha="center"
    )


def _draw_bars(panel: Panel, figure: Bars, reaches: Sequence[float]) -> None:
    sheet = panel.sheet
    _draw_title(panel, figure.title)
    left, width = panel.left + LABEL, panel.width - LABEL
    for bar, reach in zip(figure.bars, reaches, strict=True):
        scale = width / (reach or 1.0)
        sheet.text(panel.left, sheet.down + TRACK / 2, bar.label)
        sheet.box(left, sheet.down, (width, TRACK), on_paper("card"))
        for segment in bar.segments:
            _draw_segment(sheet, left, scale, segment)
        for mark in bar.marks:
            sheet.box(left + mark.at * scale - 0.015, sheet.down, (0.03, TRACK), on_paper(mark.kind))
        sheet.down += TRACK + LINE * 0.6
        for line in _wrap(bar.words, width):
            sheet.text(left, sheet.down, line, colour="soft")
            sheet.down += LINE
        sheet.down += LINE * 0.2
    _draw_below(panel, figure)


def _draw_segment(sheet: Sheet, left: float, scale: float, segment: Segment) -> None:
    size = ((segment.end - segment.begin) * scale, TRACK)
    if segment.kind == "wait":
        look: dict[str, Any] = {"hatch": "/////", "edgecolor": on_paper("soft"), "linewidth": 0}
        sheet.box(left + segment.begin * scale, sheet.down, size, on_paper("paper"), **look)
    else:
        look = {"edgecolor": on_paper("paper"), "linewidth": 0.4}
        sheet.box(left + segment.begin * scale, sheet.down, size, on_paper(segment.kind), **look)


def _draw_steps(panel: Panel, figure: Steps, ticks: Sequence[float]) -> None:
    from matplotlib.collections import PolyCollection

    sheet = panel.sheet
    _draw_title(panel, figure.title)
    sheet.text(panel.left, sheet.down, figure.y_title, colour="soft")
    sheet.down += LINE * 0.7
    axes = sheet.axes(panel.left + PLOT_LEFT, sheet.down, (panel.width - PLOT_LEFT, PLOT))
    axes.set(xlim=(0, figure.end), ylim=(0, ticks[-1]))
    axes.set_yticks(ticks, [short_number(tick) for tick in ticks])
    axes.set_xticks([at for at, _ in figure.labels], [label for _, label in figure.labels])
    axes.tick_params(length=0, labelsize=SMALL, labelcolor=on_paper("soft"))
    axes.tick_params(axis="x", pad=6)
    axes.grid(axis="y", color=on_paper("grid"), linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_frame_on(False)
    for area in figure.areas:
        boxes = [[(left, low), (right, low), (right, high), (left, high)] for left, right, low, high in area.boxes]
        edge = {"edgecolor": on_paper("paper"), "linewidth": 0.5} if area.kind.startswith("unit") else {"linewidth": 0}
        axes.add_collection(PolyCollection(boxes, facecolor=on_paper(area.kind), **edge))
    for line in figure.lines:
        xs, ys = zip(*line.points, strict=True)
        axes.plot(xs, ys, **_line_style(line.kind), clip_on=False)
    sheet.down += PLOT + 1.7 * LINE
    _draw_below(panel, figure)


def _draw_title(panel: Panel, title: str) -> None:
    if title:
        panel.sheet.text(panel.left, panel.sheet.down + LINE / 2, title, size=NORMAL, weight="bold")
        panel.sheet.down += 1.6 * LINE


def _draw_below(panel: Panel, figure: Bars | Steps) -> None:
    """Draw the legend and the note of a figure below it."""
    lines = {line.kind for line in figure.lines} if isinstance(figure, Steps) else set()
    _draw_legend(panel, list(figure.legend.items()), lines)
    for line in _wrap(figure.note, panel.width):
        panel.sheet.text(panel.left, panel.sheet.down, line, colour="soft")
        panel.sheet.down += LINE
    panel.sheet.down += GAP * 0.6


def _draw_legend(panel: Panel, kinds: Sequence[tuple[str, str]], lines: Collection[str] = ()) -> None:
    """Draw (kind, words) pairs as a legend, in as many rows as needed.

    A kind in `lines` gets a short line before its words, any other a coloured square.
    """
    sheet, left = panel.sheet, panel.left
    for kind, words in kinds:
        width = 2 * KEY + sheet.width_of(words) + 0.25
        if left > panel.left and left + width > panel.left + panel.width:
            left, sheet.down = panel.left, sheet.down + LINE
        if kind in lines:
            is_dashed, high = "linestyle" in LINES[kind], 0.02
            for begin, wide in ((0.0, 0.6), (0.9, 0.6)) if is_dashed else ((0.0, 1.5),):
                sheet.box(left + begin * KEY, sheet.down - high / 2, (wide * KEY, high), _line_style(kind)["color"])
        else:
            look = {"hatch": "/////", "edgecolor": on_paper("soft")} if kind == "wait" else {}
            colour = on_paper("paper" if kind == "wait" else kind)
            edge = {"edgecolor": on_paper("soft"), "linewidth": 0.6} if kind == "idle" else {}
            sheet.box(left, sheet.down - KEY / 2, (KEY, KEY), colour, **look, **edge)
        sheet.text(left + 2 * KEY, sheet.down, words)
        left += width
    sheet.down += LINE if kinds else 0


def _line_style(kind: str) -> dict[str, Any]:
    """Return Matplotlib's style of a line of the given kind."""
    look = dict(LINES[kind])
    if "color" not in look:
        look["color"] = on_paper(kind)
    return look


def _wrap(words: str, width: float) -> Iterator[str]:
    """Yield `words` as lines of small text that are at most `width` inches long."""
    yield from textwrap.wrap(_clean(words), int(width * CHARACTERS_PER_INCH), break_on_hyphens=False)


def _shorten(name: str) -> str:
    """Return a rack's name, cut to fit above its nodes. A long name keeps its end, which differs between racks."""
    return name if len(name) <= 7 else f"…{name[-6:]}"


def _clean(words: str) -> str:
    return printable(without_passwords(words))
