"""SimulationResult days as one picture: six panels over the hours of the day, with a line for each variant.

A minute in which no request is answered has no latency: the line has a gap there.

Colours are Okabe and Ito's, which people with any kind of colour vision tell apart (jfly.uni-koeln.de/color), and line
styles differ too. A single variant has a band from the slowest to the fastest that its prediction allows.
"""

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.command.printed import write_result
from planner.facts.day import DAY_MINUTES, HOUR_MINUTES, MINUTE_S
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.fix import for_example
from planner.report.picture import require_matplotlib
from planner.spec.operating_point import SloSpec
from stacks.simulator.flows.curves import Curve, Curves
from stacks.simulator.flows.day import DayColumn
from stacks.simulator.flows.latency import mean_tpot, mean_ttft
from stacks.simulator.flows.service import Service
from stacks.simulator.requests.columns import ReplayColumn
from stacks.simulator.speed import Level

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_days", "draw_traces", "require_plot"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")
GREY, RED = "#777777", "#B00020"
SUFFIXES = (".png", ".svg", ".pdf")
INCHES, DPI = (10, 13), 110
MAX_COLUMNS = 3  # of the legend
HOURS = DAY_MINUTES // HOUR_MINUTES
CurveFunction = Callable[[Service, Curves], Curve]


def require_plot(path: Path) -> None:
    """Raises CallError if the file's suffix is not one of a picture, and OutputError if Matplotlib is not installed."""
    if path.suffix not in SUFFIXES:
        rule, reason = f"R408 must end in {', '.join(SUFFIXES)}", "the ending says which kind of picture it is"
        raise CallError([Finding("--plot", str(path), rule, reason, for_example("day.png")).at("tidemill simulate")])
    require_matplotlib("--plot", None, "tidemill simulate")


def draw_days(columns: Sequence[DayColumn], path: Path) -> None:
    """Draw all variants into the file at `path`. Raises OutputError if it cannot be written."""
    figure = _figure()
    panels = figure.subplots(len(PANELS), 1, sharex=True)
    for panel, draw in zip(panels, PANELS, strict=True):
        draw(panel, columns)
    _label_hours(panels[-1], columns)
    titles = [column.variant.title for column in columns]
    if len(columns) == 1:
        titles = ["expected; the band is from the slowest to the fastest that the prediction allows"]
    _add_legends(figure, panels[1].lines, titles, f"{columns[0].day.plan.spec.name}: one day, minute by minute")
    _save(figure, path)


def draw_traces(columns: Sequence[ReplayColumn], path: Path) -> None:
    """Draw the results of played traces into the file at `path`. Raises OutputError if it cannot be written."""
    figure = _figure()
    queue, running, room, latency = figure.subplots(4, 1)
    for index, column in enumerate(columns):
        times = [each.at / MINUTE_S for each in column.replay.samples]
        look = _line_style(index)
        queue.plot(times, [each.queued_prompts for each in column.replay.samples], **look)
        running.plot(times, [each.running for each in column.replay.samples], **look)
        room.plot(times, [100 * each.kv_used for each in column.replay.samples], **look)
        room.plot(times, [100 * each.kv_most for each in column.replay.samples], **(look | {"alpha": 0.4}))
        latency.plot(column.ttft, np.linspace(0, 100, len(column.ttft)), **look)
    queue.set_ylabel("requests without\na first token")
    running.set_ylabel("requests that\nget tokens")
    room.set_ylabel("KV in use, %\n(pale: fullest rank)")
    latency.set(ylabel="% of requests with\ntheir first token", xlabel="seconds after they came", xscale="symlog")
    latency.xaxis.set_major_formatter("{x:g}")
    for panel in (queue, running, room):
        panel.set_xlabel("minutes")
        panel.set_ylim(bottom=0)
    _add_legends(
        figure, queue.lines, [each.title for each in columns], f"{columns[0].plan.spec.name}: a trace, one by one"
    )
    _save(figure, path)


def _figure() -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # takes a second to import, so only pictures do it
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any, path: Path) -> None:
    file = BytesIO()
    figure.savefig(
        file, format=path.suffix.removeprefix("."), metadata={"Software": None} if path.suffix == ".png" else None
    )
    write_result(path, file.getvalue())


def _draw_tokens(panel: "Axes", columns: Sequence[DayColumn]) -> None:
    panel.set_ylabel("output,\nmillion tokens/s")
    for index, column in enumerate(columns):
        service = column.day.services["mid"]
        asked = column.day.curves["mid"].asked * service.request.output / MINUTE_S / 1e6
        panel.plot(
            _hours_axis(), asked, color=GREY, linewidth=1, linestyle=(0, (1, 1)), label="asked" if index == 0 else None
        )
        _draw_line(panel, columns, index, lambda _, curves: curves.tokens / MINUTE_S / 1e6)
    panel.set_ylim(bottom=0)


def _draw_nodes(panel: "Axes", columns: Sequence[DayColumn]) -> None:
    panel.set_ylabel("nodes")
    for index, column in enumerate(columns):
        curves = column.day.curves["mid"]
        between = curves.nodes_on, curves.nodes_taken
        panel.fill_between(_hours_axis(), *between, step="post", color=GREY, alpha=0.5 / len(columns), linewidth=0)
        panel.step(_hours_axis(), curves.nodes_on, where="post", **_line_style(index))
    panel.fill_between([], [], color=GREY, alpha=0.5, linewidth=0, label="taken by warm-up and drain")
    panel.set_ylim(bottom=0)


def _draw_ttft(panel: "Axes", columns: Sequence[DayColumn]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    panel.set_ylabel("TTFT,\nmean, s")
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_formatter(NullFormatter())
    for index in range(len(columns)):
        _draw_line(panel, columns, index, mean_ttft)
    _draw_promises(panel, columns, lambda slo: slo.ttft_ms and slo.ttft_ms / 1e3)


def _draw_tpot(panel: "Axes", columns: Sequence[DayColumn]) -> None:
    panel.set_ylabel("TPOT, ms")
    for index in range(len(columns)):
        _draw_line(panel, columns, index, lambda _, curves: mean_tpot(curves) * 1e3)
    _draw_promises(panel, columns, lambda slo: slo.tpot_ms)
    panel.set_ylim(bottom=0)


def _draw_kv_room(panel: "Axes", columns: Sequence[DayColumn]) -> None:
    panel.set_ylabel("KV in use, %")
    for index in range(len(columns)):
        _draw_line(panel, columns, index, lambda _, curves: curves.kv_used * 100)
    panel.set_ylim(0, 104)


def _draw_refused(panel: "Axes", columns: Sequence[DayColumn]) -> None:
    panel.set_ylabel("refused (429),\n% of requests")
    for index in range(len(columns)):
        _draw_line(panel, columns, index, _refused_share)
    panel.set_ylim(0, max(panel.get_ylim()[1], 1.0))


def _refused_share(_: Service, curves: Curves) -> Curve:
    """Return the percentage of each minute's requests that are refused; NaN for a minute without requests."""
    return np.where(curves.asked > 0, 100 * curves.refused / np.maximum(curves.asked, 1e-12), np.nan)


PANELS = (_draw_tokens, _draw_nodes, _draw_ttft, _draw_tpot, _draw_kv_room, _draw_refused)


def _draw_line(panel: "Axes", columns: Sequence[DayColumn], index: int, compute: CurveFunction) -> None:
    """Draw one variant's line in a panel and, if it is the only variant, a band between slowest and fastest speed."""
    day = columns[index].day

    def curve(level: Level) -> Curve:
        return compute(day.services[level], day.curves[level])

    panel.plot(_hours_axis(), curve("mid"), **_line_style(index))
    if len(columns) == 1:
        low, high = curve("low"), curve("high")
        panel.fill_between(
            _hours_axis(), np.minimum(low, high), np.maximum(low, high), color=COLOURS[0], alpha=0.15, linewidth=0
        )


def _draw_promises(
    panel: "Axes", columns: Sequence[DayColumn], promised_value: Callable[[SloSpec], float | None]
) -> None:
    """Draw a horizontal line at each latency that a variant's SLO promises."""
    values = {promised_value(column.day.plan.spec.slo) for column in columns} - {None}
    for number, value in enumerate(sorted(each for each in values if each)):
        panel.axhline(value, color=RED, linewidth=1, linestyle=(0, (6, 3)), label=None if number else "promised")


def _label_hours(panel: "Axes", columns: Sequence[DayColumn]) -> None:
    schedule = columns[0].day.plan.schedule
    panel.set_xlim(0, HOURS)
    panel.set_xticks(range(0, HOURS + 1, 2), [f"{hour:02}:00" for hour in range(0, HOURS + 1, 2)])
    panel.set_xlabel(f"time of day, {schedule.timezone if schedule else 'UTC'}")


def _add_legends(figure: Any, lines: Sequence[Any], titles: Sequence[str], head: str) -> None:
    """Add the legends: one under all panels, and one in each panel that has further lines."""
    figure.legend(
        lines[: len(titles)], titles, loc="outside lower center", ncols=min(len(titles), MAX_COLUMNS), frameon=False
    )
    figure.suptitle(head, fontsize=13)
    for panel in figure.axes:
        panel.grid(visible=True, alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
        if panel.get_legend_handles_labels()[1]:
            panel.legend(loc="lower right", frameon=False, fontsize="small")


def _line_style(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": STYLES[index % len(STYLES)], "linewidth": 1.6}


def _hours_axis() -> Curve:
    return np.arange(DAY_MINUTES) / HOUR_MINUTES
