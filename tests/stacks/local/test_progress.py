"""What a user sees while units come up: a bar that moves while they load, or a line a change."""

import io

import pytest
from rich.console import Console

from stacks.local.progress import UpProgress
from stacks.local.record import Record, UnitRecord
from stacks.local.reports import RankReport, update_unit

UNIT = UnitRecord("demo-decode-0", "decode", "starting", 2)


def shown(*units, is_terminal):
    """What is written while a unit's records come one after the other."""
    written = io.StringIO()
    with UpProgress(Console(file=written, force_terminal=is_terminal, width=120)) as progress:
        for unit in units:
            progress.show(Record("demo", "", (), "", (unit,)))
            progress._bars.refresh()
    return written.getvalue()


@pytest.mark.parametrize(("ranks", "loaded"), [([0.5, 0.2], 0.2), ([1.0, 0.75], 0.75)])
def test_a_unit_has_loaded_what_its_slowest_rank_has(ranks, loaded):
    """The others wait for it."""
    assert update_unit(UNIT, [RankReport("loading", part, 1) for part in ranks]).loaded == loaded


def test_a_terminal_sees_how_much_is_loaded():
    """In percent, beside a bar."""
    units = [update_unit(UNIT, [RankReport("loading", part, 1)] * 2) for part in (0.25, 0.5)]
    text = shown(*units, is_terminal=True)

    assert "loading 25%" in text
    assert "loading 50%" in text


def test_a_log_gets_a_line_a_state():
    """And none for every part of the weights."""
    units = [update_unit(UNIT, [RankReport("loading", part, 1)] * 2) for part in (0.25, 0.5)]
    ready = update_unit(UNIT, [RankReport("ready", 1.0, 1)] * 2)

    assert shown(*units, ready, is_terminal=False) == "demo-decode-0: loading\ndemo-decode-0: ready\n"
