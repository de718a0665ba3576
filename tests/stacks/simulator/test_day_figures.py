"""A simulated day on the plan's page, and as a picture."""

import re
from html import unescape

import numpy as np
import pytest

from planner.report.page.figures import draw
from stacks.cli import main
from stacks.simulator.flows.day import DayColumn, simulate_day
from stacks.simulator.flows.failures import Failure
from stacks.simulator.report.day_figures import PANELS, _draw, _stretches, day_page, draw_days
from stacks.simulator.report.day_text import figure_rows
from stacks.simulator.variants import Variant
from tests.planner.test_shipped_specs import SPECS

WRITTEN, AGAIN = Variant("as written", {}), Variant("again", {})


def test_the_page_begins_with_the_day(published_day):
    """Its figures stand before those of the plan, with each figure of the table; the same day gives the same bytes."""
    page = unescape(day_page([DayColumn(WRITTEN, published_day)]))
    sections = re.findall('<section id="([a-z]+)">', page)
    cells = {cell for row in figure_rows([DayColumn(WRITTEN, published_day)], ["as written"]) for cell in row}

    assert sections[:3] == ["summary", "simulated", "nodes"]
    assert [cell for cell in cells if f">{cell}<" not in page] == []
    assert page == unescape(day_page([DayColumn(WRITTEN, published_day)]))


def test_a_line_is_the_curve(published_day):
    """Each minute's value is on the line, and joined minutes have the same one."""
    curve = published_day.curves["mid"].kv_used
    (line,) = _stretches("", curve)
    found = np.full(1440, np.nan)
    for (begin, value), (end, same) in zip(line.points[::2], line.points[1::2], strict=True):
        found[begin:end] = value
        assert value == same

    assert (found == curve).all()


def test_a_line_has_a_gap_while_nobody_is_answered(pair):
    """After decode and the only spare have failed at 12:40, no line of a latency goes on."""
    decode = next(unit for unit in pair.units if unit.phase == "decode")
    day = simulate_day(pair, failures=[Failure("node-22", 0), Failure(decode.nodes[0], 760)])
    latencies = [panel for panel in PANELS if panel.title.endswith(", mean")]
    figures = [_draw(panel, [DayColumn(WRITTEN, day)], ["as written"]) for panel in latencies]
    ends = [max(at for line in each.lines if line.kind == "variant0" for at, _ in line.points) for each in figures]

    assert [end <= 761 for end in ends] == [True, True]
    assert [each.table.rows[-1][-1] for each in figures] == ["-", "-"]


def test_a_day_is_drawn_as_a_picture(published_day, tmp_path):
    """The same bytes each time, in the format that the file's name asks for."""
    pytest.importorskip("matplotlib")
    heads = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for name in ("one", "other"):
        for form in heads:
            draw_days([DayColumn(WRITTEN, published_day)], tmp_path / f"{name}.{form}")
    drawn = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    assert [form for form, head in heads.items() if not drawn[f"one.{form}"].startswith(head)] == []
    assert [form for form in heads if drawn[f"one.{form}"] != drawn[f"other.{form}"]] == []


def test_variants_have_a_line_each_and_more_are_in_the_table(published_day):
    """Four of six variants are drawn; the note says where the others are."""
    columns = [DayColumn(WRITTEN, published_day), *[DayColumn(AGAIN, published_day)] * 5]
    figure = _draw(PANELS[0], columns, [str(number) for number in range(6)])

    assert list(figure.legend.values()) == ["what traffic asks for, 0", "0", "1", "2", "3"]
    assert figure.note == "The figures of 2 more are in the first table."
    assert len(draw(figure).paths) == 5


def test_a_trace_has_no_day_to_draw(capsys):
    """R416: what cannot be with a trace is said for each option, with its own reason."""
    assert main(["simulate", str(SPECS / "deepseek-h800.yaml"), "--trace", "trace.csv", "--report", "day.html"]) == 2
    assert "--report must come without --trace; the page has a day, and a trace has none" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_said_before_the_day_is_played(capsys):
    """S904, as for every file."""
    assert main(["simulate", str(SPECS / "deepseek-h800.yaml"), "--report", "/nowhere/day.html"]) == 1
    assert "must be a writable file" in capsys.readouterr().err


def test_a_page_does_not_end_like_a_picture(tmp_path, capsys):
    """S904: whoever opens it would see nothing."""
    assert main(["simulate", str(SPECS / "deepseek-h800.yaml"), "--report", str(tmp_path / "day.png")]) == 2
    assert "day.png: must not end in .png; its content would be HTML; end it in .html" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
