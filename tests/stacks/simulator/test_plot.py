"""The picture of a day."""

import numpy as np
import pytest

from stacks.simulator.flows.day import DayColumn, simulate_day
from stacks.simulator.flows.failures import Failure
from stacks.simulator.report.plot import _draw_tpot, _draw_ttft, draw_days
from stacks.simulator.variants import Variant

figures = pytest.importorskip("matplotlib.figure")


def test_a_day_is_drawn_as_a_png(published_day, tmp_path):
    """Six panels in one file, the same bytes each time."""
    columns = [DayColumn(Variant("as written", {}), published_day), DayColumn(Variant("again", {}), published_day)]
    for name in ("one.png", "other.png"):
        draw_days(columns, tmp_path / name)

    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "other.png").read_bytes()
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_has_a_gap_while_nobody_is_answered(pair):
    """After decode and the only spare have failed at 12:40, no line of a latency goes on."""
    decode = next(unit for unit in pair.units if unit.phase == "decode")
    day = simulate_day(pair, failures=[Failure("node-22", 0), Failure(decode.nodes[0], 760)])
    columns = [DayColumn(Variant("as written", {}), day)]
    panels = figures.Figure().subplots(2, 1)
    for panel, draw in zip(panels, (_draw_ttft, _draw_tpot), strict=True):
        draw(panel, columns)
    drawn = [panel.lines[0].get_ydata() for panel in panels]

    assert all(np.isfinite(each[:760]).all() and np.isnan(each[761:]).all() for each in drawn)
