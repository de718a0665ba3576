"""The file from which a unit in a cluster takes its next epoch, and the page about its present one."""

import json
import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry

from runtime.expert_parallel.epochs.document import Standing, first_standing
from runtime.expert_parallel.epochs.switch import Switch
from runtime.expert_parallel.group import SoloGroup
from runtime.protocol.metrics_server import serve_metrics
from runtime.worker.next_epoch import NextEpoch, epoch_page
from tests.runtime.expert_parallel.epochs.test_switch import HeldExperts
from tests.runtime.switching_ranks import epoch_document, unit_launch

MAP, OTHER = [[*range(16)]], [[*reversed(range(16))]]
LAUNCH = unit_launch(1, MAP)


@pytest.fixture
def switch():
    return Switch(LAUNCH, SoloGroup(), [HeldExperts(16)], first_standing(LAUNCH))


def settle(switch):
    """Turn until nothing is under way."""
    while any(votes := switch.votes()) or switch._walk is not None:
        switch.turn(*votes)


def test_a_unit_follows_the_document_in_the_file(tmp_path, switch, capfd):
    """A new document is proposed once; an old one, a torn one, or none changes nothing, and the log says why."""
    file, said = tmp_path / "next", []
    following = NextEpoch(file, switch)
    first = epoch_document(LAUNCH, switch.standing, OTHER)
    for content in (None, first, first, first[:-3], epoch_document(LAUNCH, Standing(4, "sha256:", OTHER), MAP)):
        if content is not None:
            file.write_bytes(content)
        following.look()
        settle(switch)
        said.append((switch.standing.number, capfd.readouterr().err.count("\n")))

    assert said == [(0, 0), (1, 1), (1, 0), (1, 1), (1, 1)]


def test_the_page_shows_the_epoch_once_the_rank_is_ready(switch, free_port):
    """A rank's metrics port shows the epoch that it is in, with its map, and nothing before the rank is ready."""
    is_ready = []

    def ask():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/epoch", timeout=10) as answer:
            return json.load(answer)

    port, pages = free_port(), {"/epoch": lambda: epoch_page(LAUNCH, switch)}
    with serve_metrics(CollectorRegistry(), "127.0.0.1", port, lambda: bool(is_ready), pages=pages):
        with pytest.raises(urllib.error.HTTPError, match="503"):
            ask()
        is_ready.append(True)
        found = ask()

    assert (found["number"], found["digest"]) == (0, LAUNCH.unit_digest)
    assert found["physical_to_logical"] == MAP
