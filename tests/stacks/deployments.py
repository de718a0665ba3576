"""Real deployments: the console script, real processes, real sockets. Each has its own loopback addresses and state."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.ports import own_network

REPOSITORY = Path(__file__).parents[2]
DEMO_SPEC = REPOSITORY / "stacks" / "specs" / "demo.yaml"
CHECKPOINT = REPOSITORY / "runtime" / "demo"
UP_TIMEOUT_S = 240
PROMPTS = ["A storm came up from the south", "def total(values):", "Why is the sea salt?", "Bread needs flour, water"]
LISTEN = "0A"  # linux/tcp_states.h
NETWORK = own_network()  # so that runs side by side keep out of each other's way
HOSTS = (f"{NETWORK}.{number}.1" for number in count(1))

__all__ = [
    "CHECKPOINT",
    "DEMO_SPEC",
    "HOSTS",
    "REPOSITORY",
    "Tidemill",
    "decode_samples",
    "get_json",
    "greedy_texts",
    "held_experts",
    "listening",
    "samples",
    "total",
    "wait_until",
    "write_demo",
]


def write_demo(folder: Path) -> Path:
    """Write the demo's spec into `folder`, with the files that it names beside it, and return the spec's path."""
    for name in ("config.json", "expert_load.json"):
        (folder / name).write_bytes((CHECKPOINT / name).read_bytes())
    (folder / "spec.yaml").write_text(DEMO_SPEC.read_text().replace("../../runtime/demo/", ""))
    return folder / "spec.yaml"


@dataclass
class Tidemill:
    """The command, with a state folder and addresses of its own."""

    host: str
    state: Path

    def run(self, *words: str | Path) -> subprocess.CompletedProcess:
        """Run to the end."""
        return subprocess.run(
            self.command(*words),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=UP_TIMEOUT_S,
            check=False,
        )

    def start(self, *words: str | Path) -> subprocess.Popen:
        """Start as a terminal would: in a group of its own, and with Ctrl-C heeded, which background jobs ignore."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(
            self.command(*words), env=self.environment, process_group=0, preexec_fn=heed_interrupts, **pipes
        )

    def up(self, *words: str | Path) -> subprocess.CompletedProcess:
        """`up --detach` on this instance's addresses."""
        return self.run("up", *words, "--detach", "--host", self.host)

    def status(self) -> dict:
        """The JSON of `status`."""
        return json.loads(self.run("status", "--format", "json").stdout)

    def processes(self) -> list[int]:
        """Every living process of ours that was started with this state folder, the supervisor included."""
        marker = f"XDG_STATE_HOME={self.state}".encode()
        ours = [pid for pid in _process_ids() if marker in _environment_of(pid)]
        return [pid for pid in ours if any(name in _command_of(pid) for name in (b"runtime", b"tidemill"))]

    @staticmethod
    def command(*words: str | Path) -> list[str]:
        """The installed console script."""
        return [str(Path(sys.executable).with_name("tidemill")), *map(str, words)]

    @property
    def environment(self) -> dict[str, str]:
        """Of every process that is started here."""
        return {**os.environ, "XDG_STATE_HOME": str(self.state)}


def heed_interrupts() -> None:
    """In a child before its program starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def get_json(url: str) -> dict:
    """GET, whatever the status."""
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        return json.load(error)


def samples(host: str, port: int) -> list:
    """Every sample of a metrics port."""
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    return [sample for family in families for sample in family.samples]


def total(all_samples: list, name: str, **labels: str) -> float:
    """The sum of the samples of that name that have these labels."""
    return sum(s.value for s in all_samples if s.name == name and labels.items() <= s.labels.items())


def decode_samples(tidemill: Tidemill) -> list[list]:
    """The metrics of each rank of the demo's decode unit."""
    prefix = tidemill.host.rpartition(".")[0]
    return [samples(f"{prefix}.{node}", 9400 + local) for node in (3, 4) for local in (0, 1)]


def held_experts(rank: list) -> set[tuple[str, str]]:
    """(Layer, expert) of those that a rank has counted rows for."""
    rows = [each for each in rank if each.name == "tidemill_expert_rows_total" and each.value]
    return {(each.labels["moe_layer"], each.labels["expert"]) for each in rows}


def greedy_texts(tidemill: Tidemill) -> list[str]:
    """Greedy answers to a few prompts."""
    from openai import OpenAI  # not where a GPU is lent (`tests/gpu/quarter_hour`)

    client = OpenAI(base_url=f"http://{tidemill.host}:8000/v1", api_key="none", max_retries=0)
    answer = client.completions.create(model="tidemill-demo", prompt=PROMPTS, max_tokens=32, temperature=0)
    return [choice.text for choice in sorted(answer.choices, key=lambda choice: choice.index)]


def listening(processes: list[int]) -> list[tuple[str, int]]:
    """Every address and port that these processes listen on, as the kernel has them."""
    found = set()
    for process in processes:
        with contextlib.suppress(OSError):
            links = [os.readlink(link) for link in Path(f"/proc/{process}/fd").iterdir()]
            lines = Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]
            sockets = {fields[9]: fields[1] for fields in map(str.split, lines) if fields[3] == LISTEN}
            found |= {address for inode, address in sockets.items() if f"socket:[{inode}]" in links}
    return sorted(_host_and_port(address) for address in found)


def _host_and_port(address: str) -> tuple[str, int]:
    host, port = address.split(":")
    return socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16)


def wait_until(condition: Callable[[], object], timeout_s: float = 120.0) -> float:
    """Wait for `condition`; the seconds that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, "waited too long"
        time.sleep(0.05)
    return time.monotonic() - began


def _process_ids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _environment_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def _command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
