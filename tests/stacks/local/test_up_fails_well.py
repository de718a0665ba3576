"""What goes wrong on a machine: one clear sentence each, no traceback, no orphan process."""

import os
import shutil
import signal
import socket
import subprocess

import openai
import pytest

from stacks.local.run_folder import RunFolder
from tests.stacks.deployments import CHECKPOINT, DEMO_SPEC, Tidemill, get_json, wait_until


@pytest.fixture
def checkpoint(tmp_path):
    """A copy of the demo's checkpoint, to be damaged."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for path in CHECKPOINT.glob("*.json"):
        shutil.copy(path, folder)
    shutil.copy(CHECKPOINT / "model.safetensors", folder)
    return folder


def assert_one_sentence(done: subprocess.CompletedProcess, *words: str, status: int = 1) -> None:
    """The failure is the last line, names what happened, and shows none of our code."""
    last_line = done.stderr.strip().splitlines()[-1]
    assert done.returncode == status, done.stderr
    assert all(word in last_line for word in words), last_line
    assert "Traceback" not in done.stderr


def assert_nothing_is_left(tidemill: Tidemill) -> None:
    """No process, and `status` says so."""
    wait_until(lambda: not tidemill.processes())
    assert tidemill.status() == {"endpoint": None, "plan_digest": None, "units": []}


@pytest.mark.whole
def test_down_stops_everything_it_started_and_nothing_else(tidemill, few_ranks):
    """All processes of the deployment end; a stranger's process goes on."""
    stranger = subprocess.Popen(["sleep", "600"], env=tidemill.environment)
    assert tidemill.up(few_ranks).returncode == 0
    started = tidemill.processes()

    done = tidemill.run("down")

    assert len(started) == 1 + 1 + 2 + 3  # supervisor, gateway, nodes, ranks
    assert done.stdout == "demo is stopped\n"
    assert_nothing_is_left(tidemill)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_a_plan_of_gpus_is_not_started_on_cpus(tidemill, write_spec):
    """S733: exit 3, and what starts it instead."""
    done = tidemill.up(write_spec(cluster__gpu="h800", deterministic=False))

    assert done.returncode == 3
    assert "S733" in done.stderr
    assert "tidemill render writes its manifests" in done.stderr


def test_a_rank_that_is_told_to_leave_lets_its_unit_answer_first(tidemill, few_ranks):
    """SIGTERM to one of two ranks in the middle of an answer: it ends as without, then all leave and come back."""
    assert tidemill.up(few_ranks).returncode == 0
    report = get_json(f"http://{tidemill.host}:8000/readyz")
    (decode,) = [unit for unit in report["units"] if unit["phase"] == "decode"]
    client = openai.OpenAI(base_url=f"http://{tidemill.host}:8000/v1", api_key="-", max_retries=0)
    call = {"model": "tidemill-demo", "prompt": "Return a list of", "max_tokens": 200, "temperature": 0}
    undisturbed = client.completions.create(**call).choices[0].text

    answer = client.completions.create(**call, stream=True)
    text = next(answer).choices[0].text
    os.kill(decode["ranks"][1]["pid"], signal.SIGTERM)
    text += "".join(delta.choices[0].text for delta in answer)
    folder, seen = RunFolder(tidemill.state / "tidemill" / "demo"), []
    wait_until(lambda: seen.append(folder.read().units[1]) or seen[-1].state == "ended")  # it starts again in a second

    assert text == undisturbed
    assert "have drained and ended" in seen[-1].reason
    wait_until(lambda: tidemill.status()["units"][1]["state"] == "ready", timeout_s=120)


@pytest.mark.whole
def test_everything_dies_with_a_killed_supervisor(tidemill, few_ranks):
    """Even SIGKILL of the supervisor leaves no process, and `status` does not pretend. `down` closes the record."""
    assert tidemill.up(few_ranks).returncode == 0
    supervisor = int(
        (tidemill.run("up", few_ranks, "--host", tidemill.host).stderr).partition("process ")[2].split(")")[0]
    )

    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not tidemill.processes())
    left = tidemill.status()

    assert {unit["state"] for unit in left["units"]} == {"ended"}
    assert left["failure"].startswith(f"its supervisor, process {supervisor}, ended without a record of it")
    assert tidemill.run("down", "demo").returncode == 0
    assert_nothing_is_left(tidemill)


@pytest.mark.whole
def test_ctrl_c_stops_what_up_started(tidemill, few_ranks):
    """In the foreground, SIGINT after ready ends the deployment and the command, in order."""
    process = tidemill.start("up", few_ranks, "--host", tidemill.host)
    endpoint = process.stdout.readline()

    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=240)

    assert endpoint == f"endpoint: http://{tidemill.host}:8000\n"
    assert process.returncode == 0
    assert "Traceback" not in stderr
    assert_nothing_is_left(tidemill)


def test_ctrl_c_while_starting_stops_what_was_started(tidemill):
    """SIGINT in the middle of the start leaves nothing either."""
    process = tidemill.start("up", "--host", tidemill.host)
    wait_until(lambda: len(tidemill.processes()) >= 5)

    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=240)

    assert "Traceback" not in stderr
    assert_nothing_is_left(tidemill)


@pytest.mark.parametrize(
    ("node", "port", "purpose"),
    [
        (0, 8000, "http"),
        *(
            pytest.param(*port, marks=pytest.mark.whole)
            for port in [
                (0, 29400, "registry"),
                (0, 9400, "metrics"),
                (2, 29500, "rendezvous"),
                (2, 29501, "where the unit's nodes meet"),
                (3, 29600, "kv"),
            ]
        ),
    ],
)
def test_a_taken_port_is_named(tidemill, node, port, purpose):
    """Whichever port somebody else holds, the sentence says address, port and purpose."""
    prefix, _, last = tidemill.host.rpartition(".")
    address = f"{prefix}.{int(last) + node}"

    with socket.create_server((address, port)):
        done = tidemill.up()

    assert_one_sentence(done, f"{address}:{port}", f"({purpose})", "address already in use")
    assert_nothing_is_left(tidemill)


def test_another_deployments_gateway_is_not_taken_for_ours(demo, tmp_path):
    """Units of the same names answer on the port already: that is a taken port, not a ready deployment."""
    other = Tidemill(demo.host, tmp_path / "state")

    done = other.up()

    assert_one_sentence(done, "cannot listen on 127.", "address already in use")
    assert_nothing_is_left(other)
    assert get_json(f"http://{demo.host}:8000/readyz")["ready"]


@pytest.mark.whole
def test_a_truncated_checkpoint_is_named(tidemill, write_spec, checkpoint):
    """The file, what its header promises, and what is there."""
    weights = checkpoint / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)

    done = tidemill.up(write_spec(model__config=str(checkpoint / "config.json"), model__checkpoint=str(checkpoint)))

    assert_one_sentence(done, str(weights), "truncated")
    assert_nothing_is_left(tidemill)


def test_a_checkpoint_of_another_shape_is_refused_by_digest(tidemill, write_spec, checkpoint):
    """The plan was made for one config.json, the checkpoint has another: both digests are printed."""
    (checkpoint / "config.json").write_text((checkpoint / "config.json").read_text() + "\n")

    done = tidemill.up(write_spec(model__checkpoint=str(checkpoint)))

    assert_one_sentence(done, str(checkpoint / "config.json"), "the plan was made for sha256:")
    assert done.stderr.count("sha256:") == 2
    assert_nothing_is_left(tidemill)


def test_a_host_that_is_not_loopback_is_refused(tidemill):
    """A deployment without authentication is not offered to the network. The call is wrong: exit 2."""
    done = tidemill.run("up", "--host", "0.0.0.0")

    assert_one_sentence(done, "--host (0.0.0.0) must be in 127.0.0.0/8", status=2)


def test_a_plan_that_the_runtime_cannot_run_is_refused(tidemill, write_spec):
    """It is infeasible, with the field and the nearest fix, and nothing is started."""
    done = tidemill.up(write_spec(cluster__gpu="mi300x"))

    assert done.returncode == 3
    assert "cluster.gpu (mi300x) must be cpu or an NVIDIA GPU to run" in done.stderr
    assert_nothing_is_left(tidemill)


def test_down_and_status_without_a_deployment_say_so(tidemill):
    """Nothing to stop is not an error."""
    assert tidemill.run("down").stdout == "nothing is running here\n"
    assert tidemill.run("status", DEMO_SPEC).stdout == "nothing is running here\n"
