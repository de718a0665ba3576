"""Played traces as a picture of four panels, with a line for each column.

Colours are Okabe and Ito's, which people with any kind of colour vision tell apart (jfly.uni-koeln.de/color), and line
styles differ too.
"""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from planner.command.printed import write_result
from planner.facts.day import MINUTE_S
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.fix import for_example
from planner.report.picture import require_matplotlib
from stacks.simulator.requests.columns import ReplayColumn

__all__ = ["draw_traces", "require_plot"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")
SUFFIXES = (".png", ".svg", ".pdf")
INCHES, DPI = (10, 13), 110
MAX_COLUMNS = 3  # of the legend


def require_plot(path: Path) -> None:
    """Raise CallError if `path` has no suffix of a picture, and OutputError if Matplotlib is not installed."""
    if path.suffix not in SUFFIXES:
        rule, reason = f"R408 must end in {', '.join(SUFFIXES)}", "the ending says which kind of picture it is"
        raise CallError([Finding("--plot", str(path), rule, reason, for_example("day.png")).at("tidemill simulate")])
    require_matplotlib("--plot", None, "tidemill simulate")


def draw_traces(columns: Sequence[ReplayColumn], path: Path) -> None:
    """Draw the results of played traces into the file at `path`. Raises OutputError if the file cannot be written."""
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
    _add_legend(
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


def _add_legend(figure: Any, lines: Sequence[Any], titles: Sequence[str], head: str) -> None:
    """Add the title `head` above all panels, and the legend below them."""
    figure.legend(
        lines[: len(titles)], titles, loc="outside lower center", ncols=min(len(titles), MAX_COLUMNS), frameon=False
    )
    figure.suptitle(head, fontsize=13)
    for panel in figure.axes:
        panel.grid(visible=True, alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)


def _line_style(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": STYLES[index % len(STYLES)], "linewidth": 1.6}
