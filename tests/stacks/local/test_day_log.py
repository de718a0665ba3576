"""What a played day says while it goes on."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from stacks.local import cli
from stacks.local.played_day import DayRecord, DueAct
from stacks.local.record import Record

AHEAD = DueAct("u0", "serve", "06:00:00", 75.0, done_s=60.0)
ON_TIME = DueAct("u1", "drain", "05:00:00", 62.5, done_s=62.6)
MISSED = DueAct("u1", "stop", "04:00:00", 50.0, is_missed=True)


@pytest.fixture
def said(monkeypatch, capsys):
    """A function: the lines about a day, of which `looks` are (seconds since it began, its acts)."""

    def lines(*looks):
        now = SimpleNamespace(seconds=0.0)

        def follow(_, __):
            for now.seconds, acts in looks:
                day = DayRecord(300.0, ("u1",), tuple(acts), began=0.0)
                yield Record("river", "sha256:0", gateways=(), model="m", units=(), day=day)

        monkeypatch.setattr(cli, "follow", follow)
        monkeypatch.setattr(cli, "time", SimpleNamespace(monotonic=lambda: now.seconds))
        cli.play_day(None)
        return [each for each in capsys.readouterr().err.splitlines() if re.match(r"\d\d:\d\d ", each)]

    return lines


def test_the_log_of_a_day_goes_forward(said):
    """What was due later may be done first, and what was missed is known only afterwards."""
    acts = [AHEAD, replace(ON_TIME, done_s=None)]

    assert said((61.0, acts), (63.0, [AHEAD, ON_TIME]), (90.0, [AHEAD, ON_TIME, MISSED])) == [
        "04:52 u0 serves, due at 06:00:00: 15.0 s ahead",
        "05:02 u1 drains, due at 05:00:00",
        "07:12 u1 is to have stopped at 04:00:00: never",
    ]
