"""`up`, `down` and `status` take a spec or a plan; a plan is carried out as it stands."""

import json
import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from planner.facts.digest import pretty_json
from planner.plan.load import read_plan
from stacks import cli
from stacks.local import find, up_cli
from stacks.local.processes import start_ticks
from stacks.local.record import GatewayRecord, Record, UnitRecord
from stacks.local.run_folder import RunFolder
from tests.stacks.deployments import DEMO_SPEC


class Starts(Exception):
    """What `up` was about to start."""


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch, tmp_path):
    """A machine on which nothing runs, and nothing is really started."""

    def start(plan, _host, *, detached, keys, day):
        raise Starts(plan)

    monkeypatch.setattr(up_cli, "start", start)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """The demo's plan in a file."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    assert cli.main(["plan", str(DEMO_SPEC), "-o", str(path)]) == 0
    return path


def started(*words):
    """The plan that `up` starts."""
    with pytest.raises(Starts) as begun:
        cli.main(["up", *map(str, words)])
    return begun.value.args[0]


def test_up_starts_a_plan_as_it_stands(plan):
    """The same deployment as from its spec, and of the demo where nothing is given; a spec's estimates are left out."""
    assert started(plan) == read_plan(plan)
    assert started(DEMO_SPEC) == started()
    assert started().digest == read_plan(plan).digest
    assert started().launch_files() == read_plan(plan).launch_files()


def test_up_stays_near_a_previous_plan(plan, tmp_path, write_spec):
    """A previous plan that had prefill on another node: it stays there, and the plan is another."""
    nodes = [{"name": f"node-{index}"} for index in (2, 0, 1)]
    other = write_spec(cluster={"gpu": "cpu", "nodes": nodes, "gpus_per_node": 2})
    cli.main(["plan", str(other), "-o", str(tmp_path / "other.json")])
    near = started(DEMO_SPEC, "--previous", tmp_path / "other.json")

    assert [unit.nodes for unit in near.units] == [("node-2",), ("node-0", "node-1")]
    assert near.digest != started(plan).digest


def test_up_refuses_a_previous_plan_beside_a_plan(plan, capsys):
    """S911: exit 2."""
    assert cli.main(["up", str(plan), "--previous", str(plan), "--format", "json"]) == 2
    assert json.loads(capsys.readouterr().out)["errors"][0]["rule"].startswith("S911")


def test_an_environment_is_found_by_its_own_name(tmp_path, capsys):
    """`up` starts the spec under its overlay, and `status` and `down` look for the name that the overlay gives."""
    (tmp_path / "prod.yaml").write_text("name: prod")
    words = [str(DEMO_SPEC), "-f", str(tmp_path / "prod.yaml")]

    assert started(*words).name == "prod"
    for command in ("status", "down"):
        with patch.object(find, "running_deployments", return_value=[]) as looked_for:
            assert cli.main([command, *words]) == 0
        looked_for.assert_any_call("prod")


def test_up_refuses_an_edited_plan(plan, tmp_path, capsys):
    """S909: exit 2, and nothing is started."""
    document = json.loads(plan.read_text())
    document["launch_documents"]["gateway.launch.json"]["max_queued_requests"] += 1
    (tmp_path / "edited.json").write_text(pretty_json(document))

    assert cli.main(["up", str(tmp_path / "edited.json")]) == 2
    assert "[S909]" in capsys.readouterr().err


def test_up_refuses_a_plan_that_the_runtime_cannot_run(write_spec, tmp_path, capsys):
    """S910: exit 3, with the reason that the plan tells."""
    cli.main(["plan", str(write_spec(cluster__gpu="mi300x")), "-o", str(tmp_path / "plan.json")])
    capsys.readouterr()

    assert cli.main(["up", str(tmp_path / "plan.json")]) == 3
    assert "cluster.gpu (mi300x) must be cpu or an NVIDIA GPU to run" in capsys.readouterr().err


@pytest.fixture
def river_runs(tmp_path):
    """Another deployment runs here, and its unit failed with words that would write to the terminal."""
    folder = RunFolder(tmp_path / "state" / "tidemill" / "river")
    folder.path.mkdir(parents=True)
    unit = UnitRecord("river-decode-0", "decode", "failed", 4, "no\x1b[2J memory")
    gateway = GatewayRecord("gateway", "http://127.0.0.1:8000", "ready")
    supervisor = os.getpid()
    folder.write(
        Record("river", "sha256:0", (gateway,), "river", (unit,), supervisor, supervisor_began=start_ticks(supervisor))
    )
    with folder.hold_lock():
        yield folder


@pytest.mark.usefixtures("river_runs")
@pytest.mark.parametrize("command", ["status", "down"])
def test_what_runs_instead_is_named(plan, command, capsys):
    """The demo does not run here, and it is not so that nothing does."""
    assert cli.main([command, str(plan)]) == 0
    assert capsys.readouterr().out == "it is not running here; running: river\n"


@pytest.mark.parametrize("command", ["status", "down"])
def test_what_is_neither_a_file_nor_runs_is_answered(command, river_runs, capsys):
    """S101: with what runs, which may be named as well as its spec; without anything that runs, with the path."""
    assert cli.main([command, "riverr"]) == 2
    assert capsys.readouterr().err == (
        "riverr: must be a readable file; there is no such file, and nothing of that name is running here; "
        "name what is running: river [S101]\n"
    )


def test_a_name_that_runs_nowhere_is_a_wrong_path(capsys):
    """S101 where nothing runs at all."""
    assert cli.main(["down", "foo"]) == 2
    assert "nothing of that name is running here; check the path [S101]" in capsys.readouterr().err


@pytest.mark.usefixtures("river_runs")
def test_status_takes_the_name_of_what_runs(capsys):
    """The endpoint is without /v1, as in JSON; what a rank said last cannot write to the terminal."""
    assert cli.main(["status", "river"]) == 1
    text = capsys.readouterr().out
    assert cli.main(["status", "river", "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)

    assert text.splitlines() == [
        "river: http://127.0.0.1:8000, plan sha256:0",
        r"  river-decode-0  decode  4 ranks  failed (no\x1b[2J memory)",
    ]
    assert document["endpoint"] == "http://127.0.0.1:8000"


@pytest.fixture
def demo_runs(plan, tmp_path):
    """The demo runs here, on 127.0.0.1, and its gateway asks for no key; a file of keys lies beside."""
    (tmp_path / "keys.json").write_text('{"keys": []}')
    folder = RunFolder(tmp_path / "state" / "tidemill" / "demo")
    folder.make()
    supervisor = os.getpid()
    gateway = GatewayRecord("gateway", "http://127.0.0.1:8000", "ready")
    digest = read_plan(plan).digest
    folder.write(Record("demo", digest, (gateway,), "demo", (), supervisor, supervisor_began=start_ticks(supervisor)))
    with folder.hold_lock():
        yield folder


@pytest.mark.usefixtures("demo_runs")
@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [("--keys", "keys.json", "R125"), ("--keys", "nowhere.json", "R124"), ("--host", "127.0.1.1", "R126")],
)
def test_up_is_refused_where_something_else_runs(plan, tmp_path, monkeypatch, capsys, option, value, rule):
    """An open gateway is no answer to who wants one with keys, nor one at another address."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["up", str(plan), option, value]) != 0
    said = capsys.readouterr()

    assert (said.out, f"[{rule}]" in said.err) == ("", True)


def test_up_says_of_what_runs_what_its_record_says(demo_runs, plan, tmp_path, monkeypatch, capsys):
    """Whether calls need a key, whatever is asked for; the same file of keys may be written in another way."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["up", str(plan), "--host", "127.0.0.1"]) == 0
    assert "$KEY" not in capsys.readouterr().out

    demo_runs.write(replace(demo_runs.read(), keys=str(tmp_path / "keys.json")))
    for words in ([], ["--keys", "state/../keys.json"]):
        assert cli.main(["up", str(plan), *words]) == 0
        assert "Bearer $KEY" in capsys.readouterr().out
    (tmp_path / "others.json").touch()
    assert cli.main(["up", str(plan), "--keys", "others.json"]) == 1
    assert f"with the API keys of {tmp_path}/keys.json" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["nothing", "a folder", "a pipe"])
def test_keys_that_cannot_be_read_start_nothing(kind, tmp_path, capsys):
    """R124, before anything is started; nobody waits for the other end of a pipe."""
    path = tmp_path / "keys"
    {"nothing": lambda: None, "a folder": path.mkdir, "a pipe": lambda: os.mkfifo(path)}[kind]()
    assert cli.main(["up", "--keys", str(path)]) == 2

    assert f"--keys ({path}) must be a file that can be read" in capsys.readouterr().err


@pytest.mark.usefixtures("river_runs")
def test_a_name_is_found_beside_a_folder_that_is_called_so(tmp_path, monkeypatch, capsys):
    """As beside a file; of a folder whose name nothing has, that is said."""
    monkeypatch.chdir(tmp_path)
    for make in (Path.mkdir, Path.touch):
        make(tmp_path / "river")
        assert cli.main(["status", "river"]) == 1
        assert capsys.readouterr().out.startswith("river: ")
        (Path.rmdir if make is Path.mkdir else Path.unlink)(tmp_path / "river")
    (tmp_path / "creek").mkdir()

    assert cli.main(["down", "creek"]) == 2
    assert "it is a folder, and nothing of that name is running here; name what is running: river" in (
        capsys.readouterr().err
    )


@pytest.fixture
def creek_runs(river_runs):
    """Another deployment, whose units are well."""
    folder = RunFolder(river_runs.path.with_name("creek"))
    folder.make()
    supervisor = os.getpid()
    gateway = GatewayRecord("gateway", "http://127.0.1.1:8000", "ready")
    unit = UnitRecord("creek-mixed-0", "mixed", "ready", 2)
    folder.write(
        Record("creek", "sha256:1", (gateway,), "creek", (unit,), supervisor, supervisor_began=start_ticks(supervisor))
    )
    with folder.hold_lock():
        yield folder


@pytest.mark.usefixtures("creek_runs")
def test_status_without_a_name_shows_all_that_runs(capsys):
    """The exit status is 1 where a unit of any has failed; the document of JSON is of one (R103)."""
    assert cli.main(["status"]) == 1
    text = capsys.readouterr().out
    assert cli.main(["status", "creek"]) == 0
    assert capsys.readouterr().out in text

    assert [line.split(":")[0] for line in text.splitlines() if not line.startswith(" ")] == ["creek", "river"]
    assert cli.main(["status", "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["errors"][0]["rule"].startswith("R103")


def test_a_record_writes_nothing_to_a_terminal_but_text(river_runs, capsys):
    """Whatever is in its fields: each is printed as it stands, without what would move the cursor or the title."""
    found = river_runs.read()
    unit = replace(found.units[0], phase="de\x1b[2Jcode")
    gateway = replace(found.gateways[0], endpoint="http://\x1b]0;x\x07")
    river_runs.write(replace(found, name="ri\x1b[1mver", units=(unit,), gateways=(gateway,)))
    cli.main(["status", "river"])
    text = capsys.readouterr().out

    assert "\x1b" not in text
    assert text.startswith(r"ri\x1b[1mver: http://\x1b]0;x\x07, plan sha256:0")


def test_down_stops_what_is_named(river_runs, monkeypatch, capsys):
    """It stops the deployment of that name and no other."""
    monkeypatch.setattr(up_cli, "stop", lambda folder: folder.path == river_runs.path or pytest.fail(str(folder.path)))

    assert cli.main(["down", "river"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "river is stopped\n"
    assert "its logs are in " in printed.err


@pytest.mark.usefixtures("creek_runs")
def test_down_without_a_name_stops_what_was_started_in_this_folder(river_runs, tmp_path, monkeypatch, capsys):
    """Nothing that was started elsewhere, though it be all that runs: R127 names it."""
    stopped = []
    monkeypatch.setattr(up_cli, "stop", lambda folder: stopped.append(folder.name))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["down"]) == 2
    refusal = capsys.readouterr().err
    river_runs.write(replace(river_runs.read(), started_in=str(tmp_path)))
    assert cli.main(["down"]) == 0

    assert stopped == ["river"]
    assert "creek was started in an unknown folder, river was started in an unknown folder" in refusal
    assert "name it: tidemill down creek [R127]" in refusal


@pytest.fixture
def killed(river_runs):
    """The supervisor of river is gone, and its last record says that all was ready."""
    began = start_ticks(os.getpid()) - 1
    gateway = GatewayRecord("gateway", "http://127.0.0.1:8000", "ready")
    unit = UnitRecord("creek-decode-0", "decode", "ready", 4)
    folder = RunFolder(river_runs.path.with_name("creek"))
    folder.make()
    folder.write(Record("creek", "sha256:1", (gateway,), "creek", (unit,), os.getpid(), supervisor_began=began))
    return folder


@pytest.mark.usefixtures("killed")
def test_a_killed_deployment_is_told_until_it_is_taken_down(plan, capsys):
    """`status` tells it by name and among all; `down` with the name closes the record, and the name stays known."""
    for words in (["status", "creek"], ["status"], ["status", "creek", "--format", "json"]):
        assert cli.main(words) == 1
        assert (
            "ended without a record of it (killed, a full disk, or this machine was restarted): nothing of it runs"
            in capsys.readouterr().out
        )
    assert cli.main(["down", "creek"]) == 0
    assert capsys.readouterr().out == "creek is stopped\n"
    for words in (["status", "creek"], ["down", "creek"]):
        assert cli.main(words) == 0
        assert capsys.readouterr().out == "it is not running here; running: river\n"


def test_the_last_words_of_a_supervisor_are_believed(killed, capsys):
    """One that ended by itself was not killed, also where its record was read just before."""
    read, last = killed._parse_record, replace(killed.read(), is_stopping=True, failure=None)
    killed._parse_record = lambda: (read(), killed.write(last))[0]

    assert killed.read().failure is None
    assert cli.main(["status", "creek"]) == 0
    assert capsys.readouterr().out.startswith("it is not running here")


@pytest.mark.parametrize(("words", "fix"), [(["up", "--detatch"], "--detach"), (["status", "--contxt=x"], "--context")])
def test_a_misspelt_option_is_answered_with_the_right_one(words, fix, capsys):
    """By the command that has it."""
    assert cli.main(words) == 2
    assert f"{words[1]} is not known; did you mean {fix}? [S900]" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "down"])
def test_a_plan_names_its_deployment(plan, command, capsys):
    """As its spec does."""
    assert cli.main([command, str(plan)]) == 0
    assert capsys.readouterr().out == "nothing is running here\n"
