"""A rank that keeps blocks of its prefix cache on a disk, as a real process: they outlive it."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from openai import OpenAI

import runtime
from runtime.kernels.device import HostLink
from runtime.kv.host_memory import HostMemory
from runtime.kv.tiers.block_file import HEADER_BYTES
from runtime.kv.tiers.host import HostTier
from runtime.launch import Disk, Limits
from runtime.protocol.counting import PAGE_TOKENS
from runtime.worker import disk as worker_disk
from runtime.worker.disk import close_disk, open_disk
from tests.ports import free_ports
from tests.runtime.launch_documents import GATEWAY, UNIT, seal
from tests.runtime.serving.test_scheduler import expected, new_rank, shared_request
from tests.stacks.deployments import get_json, samples, total, wait_until

HERE = "127.0.0.1"
MODEL = "tidemill-demo"
NUM_BLOCKS = 3
BLOCK_BYTES = 5 * PAGE_TOKENS * (64 + 16) * 4  # layers x tokens x latent x FP32
SLOW = 3 * BLOCK_BYTES // 2  # bytes/s: the last block's turn comes after 1.3 s, so it is due when the rank leaves
TURN = [5 + number % 3000 for number in range(0, 7 * (NUM_BLOCKS * PAGE_TOKENS + 8), 7)]
NEXT = [11, 101, 1001]


class Deployment:
    """A gateway and one mixed rank of the demo, with a folder for blocks."""

    def __init__(self, folder):
        self.folder = folder
        names = ("http", "registry", "metrics", "places", "rendezvous", "kv", "rank")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        shared = {
            "model": {"name": MODEL},
            "checkpoint": {"uri": "bundled:demo", "config_digest": None, "weights_digest": None},
            "kv_cache": {"wire_version": 11, "dtype": "fp32", "bytes_per_token": BLOCK_BYTES // PAGE_TOKENS},
            "limits": {
                "max_requests": 4,
                "max_request_tokens": 512,
                "max_batch_tokens": 256,
                "kv_tokens": 1024,
                "host_bytes": 16 * BLOCK_BYTES,
                "disk": {"path": str(folder / "blocks"), "max_bytes": 2**30},
            },
        }
        experts = {"sha256": "", "num_logical_experts": 32, "physical_to_logical": [list(range(32))] * 4}
        self.unit = seal(
            UNIT,
            **shared,
            unit="demo-mixed-0",
            phase="mixed",
            ranks=[{"place": 0, "local_rank": 0, "rank": 0}],
            places=["node-0"],
            spares=[],
            expert_map=experts,
            deterministic=True,
            ports={key: self.ports[key] for key in ("places", "rendezvous", "kv", "registry")}
            | {"metrics": self.ports["rank"]},
        )
        kv_digest, ports = self.unit["kv_digest"], {key: self.ports[key] for key in ("http", "registry", "metrics")}
        shared.pop("kv_cache")
        self.gateway = seal(GATEWAY, **shared, kv_digest=kv_digest, ports=ports)
        self.client = OpenAI(base_url=f"http://{HERE}:{self.ports['http']}/v1", api_key="none", max_retries=0)

    @contextmanager
    def process(self, name, document, *words):
        """Run `python -m runtime NAME` until the block ends, with its log in NAME.log."""
        launch = self.folder / f"{name}.launch.json"
        launch.write_text(json.dumps(document))
        command = [sys.executable, "-m", "runtime", name, "--launch", launch, "--address", HERE, *words]
        environment = os.environ | {"PYTHONPATH": str(Path(runtime.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    @contextmanager
    def rank(self, **disk):
        """Run the node with its rank from its readiness to its drain. `disk` overrides its limits."""
        words = ("--node", "node-0", "--leader", HERE, "--gateway", HERE, "--drain", "60")
        unit = seal(self.unit, limits__disk=self.unit["limits"]["disk"] | disk)
        with self.process("node", unit, *words) as node:
            wait_until(lambda: node.poll() is not None or self.is_ready())
            assert node.poll() is None, self.log()
            yield
            node.send_signal(signal.SIGTERM)
            assert node.wait(60) == 0, self.log()

    def is_ready(self):
        try:
            return get_json(f"http://{HERE}:{self.ports['http']}/readyz")["ready"]
        except OSError:
            return False

    def log(self):
        return (self.folder / "node.log").read_text()

    def ask(self, prompt, **more):
        """Return the prompt's greedy answer, and the number of its tokens that were found."""
        asked = {"model": MODEL, "prompt": [prompt], "max_tokens": 8, "temperature": 0, "logprobs": 1}
        answer = self.client.completions.create(**asked, extra_body=more)
        (choice,) = answer.choices
        details = answer.usage.prompt_tokens_details
        return (choice.text, choice.logprobs.token_logprobs), details.cached_tokens if details else 0

    def metric(self, name, **labels):
        return total(samples(HERE, self.ports["rank"]), f"tidemill_{name}", **labels)


@pytest.fixture
def deployment(tmp_path):
    """A deployment whose gateway runs; the folder `blocks` is the rank's disk."""
    (tmp_path / "blocks").mkdir()
    served = Deployment(tmp_path)
    with served.process("gateway", served.gateway):
        yield served


def test_a_conversation_is_found_on_the_disk_when_its_rank_has_started_anew(deployment, tmp_path):
    """Its blocks are written when they are used again, those that are due when the rank leaves as well.

    The next turn computes what is new, and its text and logprobs are those of one that finds nothing, bit for bit.
    """
    with deployment.rank(bytes_per_s=SLOW):
        deployment.ask(TURN)
        wait_until(lambda: deployment.metric("kv_host_bytes", holder="blocks") == NUM_BLOCKS * BLOCK_BYTES)
        before = deployment.ask(TURN)
    files = [path for path in (tmp_path / "blocks").rglob("*") if path.stat().st_size > BLOCK_BYTES]
    with deployment.rank():
        found = deployment.ask(TURN + NEXT)
        anew = deployment.ask(TURN + NEXT, cache_salt="another")
        hits = deployment.metric("prefix_cache_hits_total", tier="disk")
        read = deployment.metric("prefix_cache_disk_bytes_total", direction="read")
        num_absent = deployment.metric("prefix_cache_disk_misses_total", reason="absent")

    assert before[1] == found[1] == hits == NUM_BLOCKS * PAGE_TOKENS
    assert [path.stat().st_size for path in files] == [HEADER_BYTES + BLOCK_BYTES] * NUM_BLOCKS
    assert (read, num_absent) == (NUM_BLOCKS * BLOCK_BYTES, 1)
    assert anew == (found[0], 0)
    assert "prefix cache" not in deployment.log()


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.symlink_to("nowhere")], ids=["none", "link"])
def test_a_rank_whose_folder_is_gone_says_so_once(small_config, tmp_path, capsys, make):
    """There is nothing, or a link that leads nowhere. Requests are answered as without a disk."""
    make(tmp_path / "blocks")
    limits = Limits(4, 256, 64, 512, host_bytes=2**20, disk=Disk(str(tmp_path / "blocks"), max_bytes=2**30))
    rank = new_rank(small_config, host_bytes=limits.host_bytes)
    disk = open_disk(limits, bytes(32), rank.cache.host, "rank 0 of unit")
    rank.scheduler.use(disk)
    requests = [shared_request(number, (2 * PAGE_TOKENS, 9, False), 1, 1, False, small_config) for number in range(3)]
    for each in requests:
        rank.scheduler.add(each)
        while rank.scheduler.has_work():
            rank.step()
        for _ in range(2):
            rank.scheduler.rest()
    close_disk(disk)

    assert rank.ended == {each.id: expected(each) for each in requests}
    assert disk.counters.written == 0
    assert sum(disk.counters.dropped.values()) > 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tidemill: rank 0 of unit: prefix cache: writing to {tmp_path / 'blocks'} fails: ")


def test_a_rank_does_not_wait_for_a_disk_that_hangs_to_leave(tmp_path, monkeypatch):
    """It gives up what is due, and its process ends without the thread that hangs."""
    answers, pwritev = threading.Event(), os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda *arguments: answers.wait() and pwritev(*arguments))
    monkeypatch.setattr(worker_disk, "FLUSH_S", 0.1)
    limits = Limits(4, 256, 64, 512, host_bytes=2**20, disk=Disk(str(tmp_path), max_bytes=2**30))
    host = HostTier((1, PAGE_TOKENS, 1), torch.float32, limits.host_bytes, HostLink(), HostMemory())
    disk = open_disk(limits, bytes(32), host, "rank 0 of unit")
    disk.offer(bytes(32), torch.zeros(host.shape), b"tenant")
    leaving = threading.Thread(target=close_disk, args=(disk,), daemon=True)
    leaving.start()
    leaving.join(30)
    has_left = not leaving.is_alive()
    answers.set()

    assert has_left
    assert disk.flush(30) == 0
