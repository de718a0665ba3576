"""The controller hands a unit its next epoch in a form that the unit takes, and says what came of it."""

import http.server
import json
import threading
import time
from contextlib import contextmanager
from itertools import chain
from operator import ne
from types import SimpleNamespace

import pytest

from planner.facts import names
from planner.facts.digest import digest_of
from planner.facts.gate import Gate
from planner.plan.sections import LiveMap
from runtime.errors import EpochError
from runtime.expert_parallel.epochs.document import Standing, first_standing, read_epoch
from runtime.worker.next_epoch import epoch_page
from stacks.controller import live_maps
from stacks.controller.loop import run_round
from stacks.measured.epochs import InService
from stacks.measured.live_maps import Visit
from tests.ports import own_network
from tests.runtime.switching_ranks import unit_launch
from tests.stacks.controller.cluster import MemoryCluster
from tests.stacks.controller.days import MIDNIGHT

MAP = [[0, 1, 2, 0, 3, 4, 5, 3]] * 2  # two layers, two ranks, four slots each
LAUNCH = unit_launch(2, MAP)
RULES = LiveMap(expert_bytes=1000, num_nodes=2, num_groups=1, gate=Gate(), domains=(), split="equal", device="cpu")
HOT = (100, 5000, 4000, 100, 100, 100)  # rows of each expert between two looks: the first rank has nearly all
ADDRESSES = [f"{own_network()}.77.{node}" for node in (1, 2)]


class PlayedUnit:
    """Both ranks of a unit as the controller sees them: pages at their addresses. It reads what is mounted."""

    def __init__(self, cluster):
        self.cluster, self.standing, self.refused = cluster, first_standing(LAUNCH), []
        self.seen, self.hot, self.counts = None, HOT, [0] * len(HOT)
        self.is_slow, self.in_flight, self.adopted = False, None, []  # a slow switch goes on until it is slow no more
        self.num_switches = self.moved = 0

    def page(self, path):
        """Return the page at a path. Each look finds more rows."""
        if path == "/epoch":
            self.follow()
            return epoch_page(LAUNCH, SimpleNamespace(standing=self.standing))
        self.counts = [count + rows for count, rows in zip(self.counts, self.hot, strict=True)]
        rank = f'tidemill_expert_rows_total{{model_name="m",unit="{LAUNCH.unit}",rank="0",slot="0"'
        rows = [
            f'{rank},moe_layer="{layer}",expert="{expert}"}} {count}'
            for layer in range(len(MAP))
            for expert, count in enumerate(self.counts)
        ]
        switches = {
            "bytes": self.moved / 2,
            "seconds": 2.0 * self.num_switches,
            "stall_seconds": 0.03 * self.num_switches,
        }  # of each rank
        rows += [f'tidemill_expert_moves_{name}_total{{rank="0"}} {value}' for name, value in switches.items()]
        return "\n".join([*rows, ""]).encode()

    def follow(self):
        """Follow the mounted document, as the first rank does."""
        mounted = self.cluster.objects.get(("ConfigMap", names.epoch_config(LAUNCH.unit)))
        if mounted is not None and mounted["data"] != self.seen:
            self.seen = dict(mounted["data"])  # which a merge changes in place
            self.propose(self.seen[names.NEXT_EPOCH_FILE].encode())
        if self.in_flight is not None and not self.is_slow:
            self.switch(self.in_flight)

    def hand_in(self, document):
        """Follow a document at once, as when it comes by the first rank's socket."""
        self.switch(json.dumps(document).encode())

    def propose(self, content):
        """Begin to follow a document. Refuse one that is not for the present epoch, or while a switch is under way."""
        try:
            read_epoch(content, LAUNCH, self.standing)
            if self.in_flight is not None:
                raise EpochError("the unit is already on its way")
            self.in_flight = content
        except EpochError as error:
            self.refused.append(str(error))

    def switch(self, content):
        """End the switch to a document."""
        self.in_flight = None
        epoch = read_epoch(content, LAUNCH, self.standing)
        self.adopted.append(epoch.digest)
        self.moved += RULES.expert_bytes * count_moves(self.standing.physical_to_logical, epoch.physical_to_logical)
        self.num_switches += 1
        self.standing = Standing(epoch.number, epoch.digest, epoch.physical_to_logical)


def count_moves(before, after):
    """Return how many slots get another expert. These maps leave an expert that stays on a rank in its slot."""
    return sum(map(ne, chain(*before), chain(*after)))


@pytest.fixture
def cluster():
    spec = {
        "timezone": "UTC",
        "warmUpSeconds": 600,
        "drainSeconds": 300,
        "units": [{"name": LAUNCH.unit, "phase": "decode", "pods": 2}],
        "steps": [{"at": "00:00", "units": {"decode": 1}}],
        "liveMaps": {
            "everySeconds": 0.2,
            "minGain": 0.1,
            "maxBytes": 4000,
            "phases": {"decode": {"ranksPerPod": 1, "rules": RULES.model_dump(mode="json")}},
        },
    }
    found = MemoryCluster(spec)
    for address in ADDRESSES:
        found.pod(LAUNCH.unit, address, f"pod-{address}")["status"] = {"podIP": address}
    return found


@pytest.fixture
def unit(cluster, monkeypatch):
    """The unit, whose ranks listen at their addresses."""
    monkeypatch.setattr(live_maps, "POLL_S", 0.01)
    unit = PlayedUnit(cluster)
    with served(unit):
        yield unit


@contextmanager
def served(unit):
    """Let the unit's ranks listen at their addresses."""

    class Rank(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            content = unit.page(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    servers = [http.server.ThreadingHTTPServer((each, names.Ports.METRICS), Rank) for each in ADDRESSES]
    for each in servers:
        threading.Thread(target=each.serve_forever, args=(0.01,), daemon=True).start()
    yield
    for each in servers:
        each.shutdown()
        each.server_close()


def rounds_until(cluster, condition, follower=None):
    """Do rounds of one controller until `condition` holds. Return what it said."""
    said = []
    follower = follower or cluster.follower(said=said)
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until, (said, shown(cluster))
        run_round(follower, MIDNIGHT, 5.0)
        time.sleep(0.02)
    return said


def shown(cluster):
    """Return what the status says of the unit's map."""
    (found,) = cluster.status.get("expertMaps") or [{}]
    return found


def test_the_controller_changes_a_map_within_its_limits(cluster, unit):
    """A unit takes the better map that the controller hands it: the diff's bytes are within max_bytes, and status and
    an event say what it gains."""
    said = rounds_until(cluster, lambda: "adopted" in shown(cluster))
    moved = count_moves(MAP, unit.standing.physical_to_logical)
    written = cluster.objects["ConfigMap", names.epoch_config(LAUNCH.unit)]["metadata"]

    assert unit.standing.number == shown(cluster)["epoch"] == 1
    assert unit.refused == []
    (owner,) = written["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == (names.DEPLOYMENT_KIND, "uid-of-a")  # with which it goes
    assert written["labels"] == {names.PLAN_LABEL: "a", names.UNIT_LABEL: LAUNCH.unit}  # none by which Argo CD prunes
    assert shown(cluster)["inService"] == digest_of(unit.standing.physical_to_logical) != digest_of(MAP)
    assert 0 < moved * RULES.expert_bytes <= 4000
    assert f"for {moved} experts" in shown(cluster)["adopted"]
    assert (
        "moved 0.0 MB (as promised), in 2.0 s (0.3 promised), with 30 ms between steps (20 promised)"
        in (
            shown(cluster)["adopted"]  # two rounds, as the plan has it
        )
    )
    assert any("follows a better expert map: max/mean" in each for each in said)
    assert "ExpertMap" in {reason for reason, _ in cluster.told()}


@pytest.mark.parametrize("until", ["2025-11-25T00:00:01Z", "tomorrow"])
def test_no_map_changes_during_a_hold(cluster, unit, until):
    """Nor while nobody can read until when to hold. No rank is asked for its loads either."""
    cluster.objects[names.DEPLOYMENT_KIND, "a"]["spec"]["hold"] = {"until": until}
    follower = cluster.follower()
    run_round(follower, MIDNIGHT, 5.0)

    assert follower.maps.live is None
    del cluster.objects[names.DEPLOYMENT_KIND, "a"]["spec"]["hold"]
    rounds_until(cluster, lambda: "adopted" in shown(cluster), follower)


def test_a_unit_that_starts_again_gets_its_map_back(cluster, unit):
    """A unit that has lost its second map begins with the plan's, and the controller hands it the second one again."""
    cluster.objects[names.DEPLOYMENT_KIND, "a"]["spec"]["liveMaps"]["maxBytes"] = 20_000
    follower = cluster.follower()
    rounds_until(cluster, lambda: shown(cluster).get("epoch") == 1, follower)
    unit.hot = HOT[::-1]
    rounds_until(cluster, lambda: shown(cluster).get("epoch") == 2, follower)
    adopted = shown(cluster)["adopted"]
    rows, unit.standing, unit.seen = unit.standing.physical_to_logical, first_standing(LAUNCH), None
    for address in ADDRESSES:
        cluster.objects["Pod", f"pod-{address}"]["metadata"]["uid"] += "-again"
    rounds_until(cluster, lambda: "before it started again" in shown(cluster).get("adopted", ""), follower)

    assert "moved 0.0 MB (as promised), in 2.0 s (" in adopted
    assert "nothing promised" not in adopted  # of the second switch, since there was a first one
    assert "predecessor" in unit.refused[0]  # of the second document, which follows the first
    assert unit.standing.number == shown(cluster)["epoch"] == 1
    assert unit.standing.physical_to_logical == rows


def test_a_controller_that_ends_in_a_switch_leaves_the_unit_one_map(cluster, unit, monkeypatch):
    """The unit takes the document of the controller that was killed, whole. The next controller, which has handed in
    another one meanwhile, does not wait for that, says so, and then changes the map further.

    A controller that has written its document only reads, so one that gets no more rounds is like a killed one.
    """
    monkeypatch.setattr("stacks.measured.live_maps.RETRY_S", 0.02)
    cluster.objects[names.DEPLOYMENT_KIND, "a"]["spec"]["liveMaps"]["maxBytes"] = 20_000
    unit.is_slow = True
    rounds_until(cluster, lambda: unit.in_flight is not None)
    first, said, unit.hot = json.loads(unit.in_flight)["digest"], [], HOT[::-1]
    follower = cluster.follower(said=said)
    rounds_until(cluster, lambda: unit.refused, follower)
    unit.is_slow = False
    rounds_until(cluster, lambda: any("it has taken another document" in each for each in said), follower)
    after_first = unit.adopted[:]
    rounds_until(cluster, lambda: shown(cluster).get("epoch") == 1, follower)
    why = shown(cluster)["adopted"]
    rounds_until(cluster, lambda: shown(cluster).get("epoch") == 2, follower)

    assert after_first == [first]
    assert why == "from an earlier controller, or from somebody else"
    assert all({*slots} == {*range(len(HOT))} for slots in unit.standing.physical_to_logical)


def test_what_the_limits_forbid_is_proposed_in_status(cluster, unit):
    """Where no map within the limits gains enough, the unit keeps its map, and status says what a better one does."""
    cluster.objects[names.DEPLOYMENT_KIND, "a"]["spec"]["liveMaps"]["maxBytes"] = 900
    rounds_until(cluster, lambda: "decision" in shown(cluster))

    assert unit.standing.number == shown(cluster)["epoch"] == 0
    assert shown(cluster)["inService"] == digest_of(MAP)
    assert "but within max_bytes (0.0 MB) a map gains nothing" in shown(cluster)["decision"]
    assert ("ConfigMap", names.epoch_config(LAUNCH.unit)) not in cluster.objects


def test_a_reason_belongs_to_the_map_of_its_epoch():
    """A unit in an epoch of the same number but with another map has that map from others."""
    written = [{"unit": "u", "epoch": 1, "inService": digest_of(MAP), "adopted": "why", "decision": "none"}]
    for rows, adopted in ((MAP, "why"), (MAP[::-1] + MAP, "from an earlier controller, or from somebody else")):
        (found,) = live_maps.update_maps(written, Visit("u", in_service=InService(1, rows, "sha256:u", "sha256:1")))

        assert (found["inService"], found["adopted"]) == (digest_of(rows), adopted)


def test_ranks_that_do_not_answer_are_reported_once(cluster, monkeypatch):
    """A unit whose ranks show no loads keeps its map; the controller says why, and not again and again."""
    monkeypatch.setattr("stacks.measured.live_maps.RETRY_S", 0.02)
    rounds = iter(range(40))
    said = rounds_until(cluster, lambda: next(rounds, None) is None)
    (news,) = (each for each in said if "expert map" in each)

    assert news.startswith(f"{LAUNCH.unit} gets no better expert map: its loads or its map cannot be read: http://")
