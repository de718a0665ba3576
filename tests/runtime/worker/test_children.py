"""Child processes end together, and every failure of the commands that start them is one sentence."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planner.compiler import compile_plan
from planner.rules.check import check_spec
from runtime.worker import children
from tests.runtime.launch_documents import seal

DEMO_SPEC = Path(__file__).parents[3] / "stacks" / "specs" / "demo.yaml"


@pytest.fixture
def launch_file(tmp_path):
    """Write the launch file of the demo's decode unit."""
    path = tmp_path / "demo-decode-0.launch.json"
    path.write_text(compile_plan(check_spec(DEMO_SPEC)).launch_files()[path.name])
    return path


def run_node(launch_file, cwd=None, env=None, **changes):
    """Run `python -m runtime node` to its end, with some flags changed."""
    flags = {"node": "node-1", "address": "127.79.0.3", "leader": "127.79.0.3", "gateway": "127.79.0.1"} | changes
    command = [sys.executable, "-m", "runtime", "node", "--launch", str(launch_file)]
    command += [f"--{name}={value}" for name, value in flags.items()]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=cwd, env=env)


def start_node(launch_file, **flags):
    """Start `python -m runtime node` without waiting for its end."""
    command = [sys.executable, "-m", "runtime", "node", "--launch", str(launch_file), "--gateway=127.79.0.1"]
    return subprocess.Popen(
        [*command, *(f"--{name}={value}" for name, value in flags.items())], stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def waiting_node(launch_file):
    """Start a node whose two ranks load and wait for the unit's other node. Return the process and the ranks' pids."""
    node = start_node(launch_file, node="node-1", address="127.79.0.4", leader="127.79.0.4")
    ports = [json.loads(launch_file.read_text())["ports"]["metrics"] + rank for rank in (0, 1)]
    wait_for(lambda: all(answers("127.79.0.4", port) for port in ports) or node.poll() is not None)
    yield node, living_children(node.pid)
    node.kill()
    node.communicate()


def assert_one_sentence(done, *words):
    """Check status 1, no traceback, and the last line on stderr."""
    last_line = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1, done.stderr
    assert last_line.startswith("tidemill: ")
    assert all(word in last_line for word in words), last_line
    assert "Traceback" not in done.stderr


CRASH = """
import runpy, socket, sys, time
from runtime.protocol.messages import Hello
from runtime.worker import worker
from runtime.worker.gateway_connection import GatewayAddress
from runtime.worker.io_thread import Inbox, Network

def crash(*_):
    hello = Hello(unit="u", phase="mixed", rank=0, num_ranks=1, node="n", pid=1, unit_digest="", kv_digest="",
                  kv_host=None, kv_port=None)
    gateway = socket.create_server(("127.79.0.9", 0))
    network = Network(GatewayAddress(*gateway.getsockname()), hello, Inbox(), None)
    network.open_links()
    time.sleep(0.2)
    raise IndexError("list index out of range")

worker.run_rank = crash
sys.argv[0] = "runtime"
runpy.run_module("runtime", run_name="__main__", alter_sys=True)
"""


def test_a_crashed_rank_says_its_error_last(launch_file):
    """The last line of a crashed rank is its error, although its network thread still runs."""
    flags = ["--node=node-1", "--address=127.79.0.9", "--leader=127.79.0.9", "--place=0", "--local-rank=0"]
    command = [sys.executable, "-c", CRASH, "rank", "--launch", str(launch_file), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == "IndexError: list index out of range"


def test_a_missing_launch_file_is_named(tmp_path):
    """A missing launch file is named with the system's reason."""
    assert_one_sentence(run_node(tmp_path / "none.json"), "none.json", "No such file")


def test_a_node_that_the_unit_does_not_have_is_named(launch_file):
    """An unknown node is named, with the unit's nodes and spares."""
    assert_one_sentence(run_node(launch_file, node="node-9"), "'node-9'", "its nodes are node-1, node-2")

    launch_file.write_text(json.dumps(seal(json.loads(launch_file.read_text()), spares=["node-7"])))

    assert_one_sentence(run_node(launch_file, node="node-9"), "its nodes are node-1, node-2, its spares node-7")


def test_a_wrong_version_names_both(launch_file):
    """A launch file of another version names its version and the runtime's."""
    launch_file.write_text(launch_file.read_text().replace('"version": 2', '"version": 7'))

    assert_one_sentence(run_node(launch_file), "version 7", "reads version 2")


def test_a_changed_launch_file_prints_both_digests(launch_file):
    """A changed launch file prints the digest that it names and that of its content."""
    document = json.loads(launch_file.read_text())
    document["limits"]["max_requests"] += 1
    launch_file.write_text(json.dumps(document))

    done = run_node(launch_file)

    assert_one_sentence(done, "launch_digest", document["launch_digest"])
    assert done.stderr.count("sha256:") == 2


def test_an_address_of_all_interfaces_is_refused(launch_file):
    """The address of all interfaces is refused."""
    assert_one_sentence(run_node(launch_file, address="0.0.0.0"), "0.0.0.0 means all of them")


@pytest.mark.parametrize(
    ("address", "words"),
    [("demo-decode-0", "--address must be an IP address"), ("192.0.2.7", "cannot listen on 192.0.2.7")],
)
def test_an_address_that_is_not_ours_is_refused(launch_file, address, words):
    """A name, or another machine's address, is refused."""
    assert_one_sentence(run_node(launch_file, address=address), words)


def test_a_taken_port_is_named(launch_file, tmp_path):
    """A taken port is named with its address and purpose, and the other rank ends too."""
    (tmp_path / "here").mkdir()
    environment = {**os.environ, "TIDEMILL_TRACE": "", "PYTHONPATH": str(DEMO_SPEC.parents[2])}
    port = json.loads(launch_file.read_text())["ports"]["metrics"] + 1
    with socket.create_server(("127.79.0.3", port)):
        done = run_node(launch_file, cwd=tmp_path / "here", env=environment)

    assert_one_sentence(done, f"demo-decode-0 rank 1 ended with status 1: cannot listen on 127.79.0.3:{port} (metrics)")
    assert list((tmp_path / "here").iterdir()) == []


def test_a_spare_runs_the_ranks_of_the_missing_node(launch_file, tmp_path):
    """A spare says whose place it takes, and starts that place's ranks.

    TIDEMILL_TRACE names the folder where they are recorded, by unit and number.
    """
    launch_file.write_text(json.dumps(seal(json.loads(launch_file.read_text()), spares=["node-7"])))
    environment = {**os.environ, "TIDEMILL_TRACE": str(tmp_path), "PYTHONPATH": str(DEMO_SPEC.parents[2])}
    port = json.loads(launch_file.read_text())["ports"]["metrics"] + 1
    planned = start_node(launch_file, node="node-1", address="127.79.0.6", leader="127.79.0.7")
    try:
        with socket.create_server(("127.79.0.7", port)):
            done = run_node(launch_file, env=environment, node="node-7", address="127.79.0.7", leader="127.79.0.7")
    finally:
        planned.kill()
        planned.communicate()
    records = {path.name: path.read_text() for path in tmp_path.glob("demo-decode-0-*.json")}

    assert "tidemill: spare node-7 takes the place of node-2" in done.stderr.splitlines()
    assert_one_sentence(done, f"demo-decode-0 rank 3 ended with status 1: cannot listen on 127.79.0.7:{port} (metrics)")
    assert records
    assert set(records) <= {"demo-decode-0-2.json", "demo-decode-0-3.json"}
    assert any(f'"pid": {name[-6]}, "args"' in record for name, record in records.items())


def test_sigterm_ends_a_node_with_one_sentence(launch_file):
    """SIGTERM ends a leading node that waits for other nodes, with one sentence."""
    leader = start_node(launch_file, node="node-1", address="127.79.0.8", leader="127.79.0.8")
    wait_for(lambda: living_children(leader.pid) or leader.poll() is not None)
    leader.terminate()
    _, stderr = leader.communicate(timeout=300)

    assert (leader.returncode, stderr) == (143, "tidemill: the node was told by SIGTERM to end at once\n")


def test_another_checkpoint_than_planned_prints_both_digests(launch_file):
    """A checkpoint with another config.json than planned prints both digests."""
    document = seal(json.loads(launch_file.read_text()), checkpoint__config_digest="sha256:" + "0" * 64)
    launch_file.write_text(json.dumps(document))
    done = run_node(launch_file)

    assert_one_sentence(done, "config.json is sha256:", "the plan was made for sha256:0000")


def test_a_killed_rank_ends_its_node_with_the_reason(waiting_node):
    """When one rank is killed, the other goes too, and the node's last line names the signal."""
    node, ranks = waiting_node
    os.kill(ranks[1], signal.SIGKILL)
    _, stderr = node.communicate(timeout=300)

    assert node.returncode == 1
    assert stderr.splitlines()[-1] == "tidemill: demo-decode-0 rank 1 was killed by SIGKILL"
    assert "Traceback" not in stderr
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)


PARENT = """
import sys
from runtime.worker.children import Child, wait_together
wait_together([Child(name, ["generate", *sys.argv[1:]]) for name in ("one", "two")])
"""


def test_children_die_with_a_killed_parent(tmp_path):
    """Children die even if their parent is killed by SIGKILL."""
    pipe = tmp_path / "never.json"  # reading it blocks, so the children stay
    os.mkfifo(pipe)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, "bundled:demo", "--prompt-ids", str(pipe)])
    children = wait_for(lambda: len(found := living_children(parent.pid)) == 2 and found)

    parent.send_signal(signal.SIGKILL)
    parent.wait()

    wait_for(lambda: not any(Path(f"/proc/{child}").exists() for child in children))


SIBLINGS = """
import sys
from runtime.worker.children import ChildDied, Child, wait_together

class Script(Child):
    "A child that runs Python given as text."
    def __init__(self, name, text):
        import subprocess, threading
        self.name, self._last_line = name, ""
        self.process = subprocess.Popen([sys.executable, "-c", text], stderr=subprocess.PIPE, text=True)
        self._relay = threading.Thread(target=self._pass_on_stderr, daemon=True)
        self._relay.start()

try:
    wait_together([Script(f"child {number}", text) for number, text in enumerate(sys.argv[1:])])
except ChildDied as error:
    print(error, "| echo" if error.is_echo else "| cause", file=sys.stdout)
"""
SLEEP = "import time; time.sleep(600)"
FAIL = "import sys; print('tidemill: no such thing', file=sys.stderr); sys.exit(1)"
LOSE_PEER = "import sys; print('tidemill: a rank is gone', file=sys.stderr); sys.exit(75)"
FAIL_LATER = f"import time; time.sleep(0.5); {FAIL}"


@pytest.mark.parametrize(
    ("children", "said"),
    [
        ((SLEEP, FAIL), "child 1 ended with status 1: no such thing | cause"),
        ((LOSE_PEER, FAIL_LATER), "child 1 ended with status 1: no such thing | cause"),
        ((LOSE_PEER, SLEEP), "child 0 ended with status 75: a rank is gone | echo"),
        ((SLEEP, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), "child 1 was killed by SIGKILL | cause"),
        (("", ""), ""),
    ],
    ids=["one fails", "the echo comes first", "only an echo", "killed", "all end well"],
)
def test_the_first_death_that_is_no_echo_is_the_cause(children, said):
    """The report names the first child that died of itself, and the others are killed."""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", SIBLINGS, *children], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == said
    assert time.monotonic() - began < 300  # the sleepers were not waited for


def wait_for(found):
    """Return what `found()` returns once it is true."""
    deadline = time.monotonic() + 240
    while not (result := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return result


def answers(address, port):
    """Return whether somebody listens at the port."""
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False


def living_children(pid):
    """Return the living children of a process."""
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def test_ranks_log_torchs_errors_and_no_warnings(tmp_path, monkeypatch):
    """Ranks log torch's errors, but not the warnings that any stranger to the store can cause."""
    shown = tmp_path / "python"
    shown.write_text('#!/bin/sh\necho "$TORCH_CPP_LOG_LEVEL" >&2\n')
    shown.chmod(0o755)
    monkeypatch.setattr(children.sys, "executable", str(shown))
    child = children.Child("rank 0", [])
    child.process.wait()

    assert "ERROR" in child.describe_death()
