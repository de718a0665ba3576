"""Units on this machine change their maps by what their ranks say, whatever can be written to a disk."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from runtime.expert_parallel.epochs.document import first_standing
from stacks.local import live_maps
from stacks.local.layout import LiveSettings
from stacks.local.live_maps import LiveMaps, note_live_maps
from stacks.local.record import GatewayRecord, Record, UnitRecord
from stacks.measured.epochs import next_document
from stacks.measured.limits import Limits
from tests.contract.test_live_maps import ADDRESSES, LAUNCH, RULES, PlayedUnit, served

LIMITS = Limits(every_s=0.1, min_gain=0.1, max_bytes=4000)


@pytest.fixture
def unit(monkeypatch):
    """A unit whose ranks take documents and keep none on a disk."""
    unit = PlayedUnit(SimpleNamespace(objects={}))

    def hand_over(folder, name, rows, after):
        standing = {"unit": LAUNCH.unit, "unit_digest": LAUNCH.unit_digest, "places": LAUNCH.places}
        unit.hand_in(next_document(standing | {"number": unit.standing.number, "digest": after}, rows))
        return {"number": unit.standing.number, "digest": unit.standing.digest}

    monkeypatch.setattr(live_maps, "hand_over", hand_over)
    monkeypatch.setattr("stacks.measured.live_maps.RETRY_S", 0.02)
    with served(unit):
        yield unit


@pytest.fixture
def watched(tmp_path):
    """A function that looks at the unit for some time, or until a condition holds. It returns the unit's record."""
    ports = tuple(f"{each}:9400" for each in ADDRESSES)
    gateways = (GatewayRecord("g", "http://127.0.0.1:8000"),)
    record = Record("a", "sha256:0", gateways, "m", (UnitRecord(LAUNCH.unit, "decode", "ready", 2, metrics=ports),))
    live, settings = LiveMaps(LIMITS), LiveSettings(LIMITS, {"decode": RULES})

    def look(seconds=30.0, until=lambda unit: False, restarts=0):
        nonlocal record
        end = time.monotonic() + seconds
        record = record.with_unit(replace(record.units[0], restarts=restarts))
        while time.monotonic() < end and not until(record.units[0]):
            record = note_live_maps(record, live, settings, tmp_path)
            time.sleep(0.01)
        return record.units[0]

    return look


def test_a_map_that_cannot_be_kept_is_not_restored_to_a_unit_that_follows_it(unit, watched):
    """One switch moves what it says, and nothing moves after it."""
    first = watched(until=lambda record: record.own_digest)
    moved = unit.moved
    unit.hot = (0,) * len(unit.hot)  # no more rows, so nothing else is better
    watched(0.4)

    assert first.own_digest == unit.standing.digest
    assert (unit.standing.number, unit.moved) == (1, moved)


def test_a_unit_that_has_lost_its_map_gets_it_back_once(unit, watched):
    """Ranks that have started again are in epoch 0, and say so."""
    watched(until=lambda record: record.own_digest)
    rows, unit.standing, unit.hot = unit.standing.physical_to_logical, first_standing(LAUNCH), (0,) * len(unit.hot)
    after = watched(until=lambda record: "before it started again" in record.own_reason, restarts=1)
    watched(0.4, restarts=1)

    assert unit.standing.physical_to_logical == rows
    assert (unit.num_switches, after.own_digest) == (2, unit.standing.digest)


def test_why_ranks_cannot_be_read_goes_with_its_reason(unit, watched):
    """The word about it is gone once they can be read again."""
    page, unit.page = unit.page, lambda path: b"{"
    trouble = watched(until=lambda record: record.unread).unread
    unit.page = page

    assert "/epoch cannot be read: " in trouble
    assert watched(until=lambda record: record.unread is None).unread is None
