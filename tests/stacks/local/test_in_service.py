"""The map in service is what a unit's ranks say, whatever lies in the file with which the unit starts again."""

import http.server
import json
import threading

import pytest

from planner.facts.digest import digest_of
from stacks.local import in_service
from stacks.local.cli import explain_epoch, map_json
from stacks.local.in_service import with_maps
from stacks.local.record import GatewayRecord, Record, UnitRecord
from stacks.measured.epochs import next_document

PLANNED, OTHER = [[0, 1, 2, 3]], [[3, 2, 1, 0]]
FIRST = {"unit": "u", "unit_digest": "sha256:u", "number": 0, "digest": "sha256:u", "places": ["n"]}
SECOND = next_document(FIRST, OTHER)


@pytest.fixture
def rank(monkeypatch):
    """The first rank of the unit: a dictionary that it shows as its page; it answers 503 while that is empty."""
    page = {}
    monkeypatch.setattr(in_service, "WRITTEN_S", 0)

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if page else 503)
            self.end_headers()
            self.wfile.write(json.dumps(page.get(self.path)).encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()

        def shows(said):
            page.update({"/epoch": said})

        shows.unit = UnitRecord("u", "decode", "ready", 1, metrics=(f"127.0.0.1:{server.server_port}",))
        yield shows
        server.shutdown()


def look(unit, folder):
    """Return the unit's record after its rank was asked."""
    record = Record("a", "sha256:0", (GatewayRecord("g", "http://127.0.0.1:8000"),), "m", (unit,))
    return with_maps(record, folder).units[0]


@pytest.mark.parametrize(
    ("written", "begins_elsewhere"),
    [
        (None, False),
        (json.dumps(SECOND | {"number": 99}), False),  # which the rank refuses at its start
        ("{", False),
        ("[]", False),
        (json.dumps(SECOND), True),
    ],
)
def test_a_file_changes_no_map_in_service(rank, tmp_path, written, begins_elsewhere):
    """Ranks in epoch 0 are in epoch 0. A document that they would begin with again is told apart."""
    if written is not None:
        (tmp_path / "u.epoch.json").write_text(written)
    rank(FIRST | {"physical_to_logical": PLANNED})
    unit = look(rank.unit, tmp_path)

    assert (unit.epoch, unit.epoch_digest, unit.map_in_service) == (0, None, digest_of(PLANNED))
    assert (unit.forgets is not None) == begins_elsewhere


def test_a_map_that_a_restart_would_lose_is_said(rank, tmp_path):
    """Ranks follow a map whose document could not be written, or was edited since."""
    rank(SECOND)
    kept, found = tmp_path / "u.epoch.json", []
    for content in (None, SECOND | {"physical_to_logical": PLANNED}, SECOND):
        if content is not None:
            kept.write_text(json.dumps(content))
        found.append(look(rank.unit, tmp_path))

    assert {(each.epoch, each.epoch_digest, each.map_in_service) for each in found} == {
        (1, SECOND["digest"], digest_of(OTHER))
    }
    assert [each.forgets for each in found] == [f"{kept} does not hold this one"] * 2 + [None]


def test_of_ranks_that_do_not_say_their_map_nothing_is_claimed(rank, tmp_path):
    """Ranks that are not ready, show no map, or another unit's. A unit that is down is not asked."""
    (tmp_path / "u.epoch.json").write_text(json.dumps(SECOND))
    assert "503" in look(rank.unit, tmp_path).unread
    for said in (3, {"unit": "u"}, SECOND | {"unit": "v"}):
        rank(said)
        unit = look(rank.unit, tmp_path)

        assert "in_service" not in map_json(unit)
        assert unit.unread.startswith("its map cannot be read: ")


def test_a_reason_belongs_to_one_epoch(rank, tmp_path):
    """A unit in another epoch of the same number has its map by another hand."""
    rank(SECOND)
    for digest, author in ((SECOND["digest"], "expert_load.live: why"), (digest_of({}), "tidemill experts apply")):
        rank.unit = UnitRecord(
            "u", "decode", "ready", 1, metrics=rank.unit.metrics, own_digest=digest, own_reason="why"
        )
        assert explain_epoch(look(rank.unit, tmp_path)) == author
