"""The picture of a day."""

import pytest

from stacks.simulator.columns import Column, Variant
from stacks.simulator.plot import draw_days

matplotlib = pytest.importorskip("matplotlib")


def test_a_day_is_drawn_as_a_png(published_day, tmp_path):
    """Six panels in one file, the same bytes each time."""
    columns = [Column(Variant("as written", {}), published_day), Column(Variant("again", {}), published_day)]
    for name in ("one.png", "other.png"):
        draw_days(columns, tmp_path / name)

    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "other.png").read_bytes()
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
