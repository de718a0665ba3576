"""Two gateways side by side on this machine: what is started, what is made of their words, and what users are told."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from planner.compiler import plan_from
from stacks import cli
from stacks.live import status_cli
from stacks.local import supervisor, watched_group
from stacks.local.cli import record_json
from stacks.local.layout import GatewayProcess, Layout, NodeProcess, lay_out_locally
from stacks.local.record import GatewayRecord, Record, UnitRecord
from stacks.local.reports import GatewayReport, RankReport, merge_reports
from stacks.local.run_folder import RunFolder

HOSTS = ("127.0.0.1", "127.0.0.2")
GATEWAYS = tuple(
    GatewayProcess(NodeProcess(f"gateway-{number}", None, ()), host, 8000) for number, host in enumerate(HOSTS)
)
READY = tuple(GatewayRecord(gateway.name, gateway.endpoint, "ready") for gateway in GATEWAYS)
UNITS = (UnitRecord("demo-mixed-0", "mixed", "ready", 1),)
SERVES = GatewayReport(True, {"demo-mixed-0": {0: RankReport("ready", 1.0, 4711)}})
KNOWS_NOBODY = GatewayReport(False, {})
DIES = (-9, "gateway-1 was killed by SIGKILL")


def after(command, flag):
    return command[command.index(flag) + 1]


def test_each_gateway_has_an_address_and_a_certificate_of_its_own_and_every_node_calls_both(tmp_path, write_spec):
    """They prove one identity and hold half of the limits each; the nodes' addresses come after theirs."""
    plan = plan_from(write_spec(gateway={"replicas": 2}), None)
    layout = lay_out_locally(plan, tmp_path, tmp_path / "tls", tmp_path / "kv", "127.0.0.1")
    commands = [gateway.process.command for gateway in layout.gateways]
    (first, second), units = layout.identities[:2], layout.identities[2:]

    assert [gateway.endpoint for gateway in layout.gateways] == ["http://127.0.0.1:8000", "http://127.0.0.2:8000"]
    assert [after(command, "--address") for command in commands] == list(HOSTS)
    assert [after(command, "--tls") for command in commands] == [str(first.folder), str(second.folder)]
    assert [after(command, "--gateways") for command in commands] == ["2", "2"]
    assert first.uri == second.uri
    assert first.folder != second.folder
    assert {after(node.command, "--gateway") for node in layout.nodes} == {"127.0.0.1,127.0.0.2"}
    assert [after(node.command, "--address") for node in layout.nodes] == ["127.0.0.3", "127.0.0.4", "127.0.0.5"]
    assert {identity.folder.name for identity in units} == {unit.name for unit in plan.units}


@pytest.mark.parametrize(
    ("views", "state"),
    [
        (("ready", "lost"), "ready"),  # one line is broken, or one gateway has given the rank up by mistake
        (("ready", None), "ready"),  # one gateway has just started
        (("lost", "lost"), "lost"),
        (("lost", "loading"), "loading"),  # of the next start, whom one gateway has not heard of yet
        (("ready", "refused"), "refused"),  # it loaded other weights, which one gateway knows already
        (("ready", "draining"), "draining"),  # it leaves, which one gateway has heard first
    ],
)
def test_a_rank_is_as_the_gateway_sees_it_that_has_most_of_it(views, state):
    """Whichever of the two that is."""
    reports = [GatewayReport(True, {"u": {0: RankReport(view, 1.0, 1)} if view else {}}) for view in views]

    assert [rank.state for rank in merge_reports(reports)["u"]] == [state]
    assert merge_reports(reports) == merge_reports(reports[::-1])


def test_ranks_that_different_gateways_know_are_those_of_one_unit():
    """In order of their numbers, a slow one with the sentence of whoever says so."""
    slow = RankReport("ready", 1.0, 2, "it is slow")
    first = GatewayReport(True, {"u": {1: RankReport("ready", 1.0, 2)}})
    second = GatewayReport(True, {"u": {1: slow, 0: RankReport("joining", 1.0, 1)}})

    assert merge_reports([first, second]) == {"u": [RankReport("joining", 1.0, 1), slow]}


class FakeGroup:
    """Processes that end when the test says so."""

    def __init__(self, name, members, folder):
        self.name, self.pids, self.end, self.num_starts = name, [1], None, 0

    def start(self):
        self.num_starts, self.end = self.num_starts + 1, None

    def kill(self):
        pass

    def find_first_failure(self):
        return self.end

    def is_stopped(self):
        return False


@pytest.fixture
def watched(monkeypatch, tmp_path):
    """Let a supervisor of two gateways and a unit look once; `reports` are what the gateways say."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    reports = dict.fromkeys((gateway.name for gateway in GATEWAYS), None)
    monkeypatch.setattr(supervisor, "time", clock)
    monkeypatch.setattr(watched_group, "time", clock)
    monkeypatch.setattr(supervisor, "ProcessGroup", FakeGroup)
    monkeypatch.setattr(supervisor.signal, "signal", lambda *_: None)
    monkeypatch.setattr(supervisor, "ask_gateway", lambda gateway, _: reports[gateway.name])
    gateways = tuple(GatewayRecord(gateway.name, gateway.endpoint) for gateway in GATEWAYS)
    units = (UnitRecord("demo-mixed-0", "mixed", "starting", 1),)
    watching = supervisor._Supervisor(
        RunFolder(tmp_path), Layout(GATEWAYS, (), (), 1.0), Record("demo", "", gateways, "m", units)
    )

    def look(*said, after_s=1.0):
        clock.now += after_s
        reports.update(zip(reports, said, strict=True))
        watching._watch()
        record = watching._record
        return record, [gateway.state for gateway in record.gateways], record.units[0].state

    return look, watching._gateways | watching._units


def test_a_deployment_is_ready_when_every_gateway_has_ranks(watched):
    """A URL that `up` prints answers."""
    look, _ = watched
    seen = [look(None, None), look(SERVES, None), look(SERVES, KNOWS_NOBODY), look(SERVES, SERVES)]

    assert [states for _, states, _ in seen] == [
        ["starting"] * 2,
        ["ready", "starting"],
        ["ready", "starting"],
        ["ready"] * 2,
    ]
    assert [record.is_ready for record, _, _ in seen] == [False, False, False, True]


@pytest.mark.parametrize("was_ready", [False, True])
def test_a_unit_that_is_refused_ends_the_start_and_nothing_that_serves(watched, was_ready):
    """Nobody waits for a unit that would load the same again; once all were ready, the others go on."""
    look, _ = watched
    if was_ready:
        look(SERVES, SERVES)
    refused = GatewayReport(False, {"demo-mixed-0": {0: RankReport("refused", 1.0, 4711, None, "it differs")}})
    record, *_ = look(refused, KNOWS_NOBODY)

    assert record.failure == (None if was_ready else "demo-mixed-0 gets no requests: it differs")
    assert record.has_failed
    assert record.units[0].reason == "demo-mixed-0 gets no requests: it differs"


def test_a_gateway_that_dies_is_started_again_and_its_unit_stays_ready(watched):
    """It has failed until it is started again, with that reason until it answers; the other one goes on meanwhile."""
    look, groups = watched
    look(SERVES, SERVES)
    groups["gateway-1"].group.end = DIES
    seen = [look(SERVES, None), look(SERVES, None, after_s=0.5), look(SERVES, None), look(SERVES, KNOWS_NOBODY)]
    last, *_ = look(SERVES, SERVES)

    assert [states for _, states, _ in seen] == [["ready", "failed"]] * 2 + [["ready", "starting"]] * 2
    assert {unit for _, _, unit in seen} == {"ready"}
    assert [record.has_failed for record, _, _ in seen] == [True, True, False, False]
    assert [record.gateways[1].reason for record, _, _ in seen] == [DIES[1]] * 3 + [None]
    assert [record.gateways[1].starts_at for record, _, _ in seen] == [3.0, 3.0, None, None]
    assert last.gateways == (READY[0], replace(READY[1], restarts=1))
    assert [groups[name].group.num_starts for name in groups] == [0, 1, 0]


def test_a_unit_that_is_killed_starts_as_soon_as_it_is_started_again(watched):
    """It is down while it waits; then it comes up, with the reason of its last end and how often it was started."""
    look, groups = watched
    look(SERVES, SERVES)
    groups["demo-mixed-0"].group.end = DIES
    lost = GatewayReport(True, {"demo-mixed-0": {0: RankReport("lost", 1.0, 4711)}})
    seen = [look(lost, lost)[0].units[0] for _ in range(2)]
    last, *_ = look(SERVES, SERVES)

    assert [(each.state, each.reason, each.restarts) for each in seen] == [
        ("failed", DIES[1], 0),
        ("starting", DIES[1], 1),
    ]
    assert (last.units[0].state, last.units[0].reason) == ("ready", None)


def test_status_says_when_what_is_down_is_started_again(tmp_path, monkeypatch, capsys):
    """It is a time of the clock, so that --watch shows it once; a deployment that ends has none."""
    folder = RunFolder(tmp_path)
    monkeypatch.setattr(status_cli, "find_all", lambda path, overlays: [folder])
    starts = {"starts_at": time.monotonic() + 40}
    down, unit = replace(READY[1], state="failed", reason=DIES[1], **starts), replace(UNITS[0], state="ended", **starts)
    known = Record("demo", "sha256:0", (READY[0], down), "m", (unit,))
    folder.write(known)
    shown = {
        time.strftime("starts again at %H:%M:%S", time.localtime(time.time() + seconds)) for seconds in range(30, 43)
    }

    assert cli.main(["status"]) == 1
    *_, gateway, ended = capsys.readouterr().out.splitlines()
    assert gateway.partition("failed (gateway-1 was killed by SIGKILL; ")[2].rstrip(")") in shown
    assert ended.partition("ended (")[2].rstrip(")") in shown
    assert 0 < record_json(folder.read())["gateways"][1]["starts_in_s"] <= 40
    assert "starts_in_s" not in record_json(replace(known, is_stopping=True))["units"][0]


def test_status_shows_both_gateways(tmp_path, monkeypatch, capsys):
    """`status` shows their URLs, and exits with 1 when one is down."""
    folder = RunFolder(tmp_path)
    monkeypatch.setattr(status_cli, "find_all", lambda path, overlays: [folder])
    down = GatewayRecord("gateway-1", READY[1].endpoint, "failed", DIES[1], 1)
    folder.write(Record("demo", "sha256:0", (READY[0], down), "m", UNITS))

    assert cli.main(["status"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "demo: 2 gateways, plan sha256:0",
        "  gateway-0  http://127.0.0.1:8000  ready",
        "  gateway-1  http://127.0.0.2:8000  failed (gateway-1 was killed by SIGKILL)",
        "  demo-mixed-0  mixed  1 ranks  ready",
    ]
    assert record_json(folder.read())["gateways"] == [
        {"name": "gateway-0", "endpoint": "http://127.0.0.1:8000", "state": "ready"},
        {"name": "gateway-1", "endpoint": "http://127.0.0.2:8000", "state": "failed", "reason": DIES[1], "restarts": 1},
    ]
