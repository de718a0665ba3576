"""A real gateway process on loopback, a tokenizer of a few hundred tokens, and fake ranks.

The fake ranks speak the wire protocol and compute nothing, so that a test can say which token comes when. Real ranks
are tested in `tests/runtime/`.
"""

import asyncio
import http.client
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

import runtime
from runtime.gateway.core.tokenizer import load_tokenizer
from runtime.protocol.frames import FrameReader, encode_frame
from runtime.protocol.messages import (
    Embed,
    Expect,
    FromGateway,
    Hello,
    Logprobs,
    Ping,
    Pong,
    Prefill,
    PrefixHit,
    State,
    Token,
)
from tests.ports import free_ports
from tests.runtime.gateway.certified import issue_all
from tests.runtime.launch_documents import gateway_launch

ADDRESS = "127.0.0.1"
BOS, EOS, USER, ASSISTANT = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"
BOS_ID, EOS_ID = 0, 1
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'system' and not loop.first %}{{ raise_exception('system comes first') }}{% endif %}"
    "{% if message.role == 'user' %}<｜User｜>{% elif message.role == 'assistant' %}<｜Assistant｜>{% endif %}"
    "{{ message.content }}{% endfor %}{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
)
# As the one above for who wants neither tools nor thoughts. A model's marks are known by its template having them.
TOOL_TEMPLATE = (
    CHAT_TEMPLATE + "{% if tools %}{{ tools | tojson }}{% endif %}{% if thinking %}<think>{% endif %}"
    "{# 'tool' </think> <｜tool▁calls▁begin｜> #}"
)
KV_DIGEST = "sha256:" + "a" * 64
UNIT_DIGEST = "sha256:" + "b" * 64
MAX_REQUEST_TOKENS = 384
MAX_REQUESTS, MAX_QUEUED_REQUESTS = 8, 2
PATIENCE_S = 60  # for what only a hanging test waits for, on a machine that does a lot besides
STALL_TIMEOUT_S = 150
LOGPROB = -0.5


def wait_for(condition, what):
    """Return the first true value of `condition()`."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {PATIENCE_S} s: {what}")


@pytest.fixture
def certificates(tmp_path):
    """Return a function that writes certificates of a gateway and two units, and returns their folder."""
    return lambda name="ours", at=None: issue_all(tmp_path / name, at)


@pytest.fixture(scope="session")
def write_checkpoint():
    """Return a function that writes a checkpoint without weights; its arguments change tokenizer_config.json."""

    def write(folder: Path, **overrides) -> Path:
        encoder = tokenizers.Tokenizer(models.BPE())
        encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        encoder.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        special = [BOS, EOS, USER, ASSISTANT]
        trainer = trainers.BpeTrainer(
            vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
        encoder.train_from_iterator(["the mill grinds with the tide, naïve café 日本語 日本語 👍👍"] * 8, trainer)
        encoder.save(str(folder / "tokenizer.json"))
        settings = {"bos_token": BOS, "eos_token": EOS, "add_bos_token": True, "chat_template": CHAT_TEMPLATE}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings | overrides))
        (folder / "config.json").write_text(json.dumps({"vocab_size": 320, "hidden_size": 2, "eos_token_id": EOS_ID}))
        return folder

    return write


@pytest.fixture(scope="session")
def checkpoint(write_checkpoint, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def tokenizer(checkpoint):
    return load_tokenizer(checkpoint)


@dataclass
class GatewayProcess:
    """A gateway process and its ports."""

    process: subprocess.Popen
    ports: dict[str, int]
    launch_file: Path
    log_file: Path
    address: str = ADDRESS

    @property
    def url(self):
        return f"http://{self.address}:{self.ports['http']}/v1"

    def get(self, path, port="http"):
        """Return (status, body)."""
        return self.call("GET", path, port=port)

    def call(self, method, path, body=None, port="http"):
        connection = http.client.HTTPConnection(self.address, self.ports[port], timeout=PATIENCE_S)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def ready_report(self):
        return json.loads(self.get("/readyz")[1])

    def rank_states(self, unit):
        """Return the state of each rank, or None for an unknown unit."""
        units = {entry["unit"]: entry for entry in self.ready_report()["units"]}
        return [rank["state"] for rank in units[unit]["ranks"]] if unit in units else None

    def log(self):
        return self.log_file.read_text()

    def metric(self, name, label=""):
        """Return the value of a sample without a bucket, the first one that has `label`."""
        samples = [line for line in self.get("/metrics", port="metrics")[1].splitlines() if line.startswith(name + "{")]
        return next(float(line.rsplit(" ", 1)[1]) for line in samples if label in line)

    def memory_mib(self):
        """Return the process's peak memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) // 1024

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@pytest.fixture(scope="session")
def start_gateway(write_checkpoint, tmp_path_factory):
    """Starts gateways; `ports` overrules the free ones, `wait=False` does not wait until it answers.

    `open_files` is the limit of its descriptors, `keys` the content of a file of keys. `told` overrules the launch
    file.
    """
    started = []
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("tool-checkpoint"), chat_template=TOOL_TEMPLATE)

    def start(ports=None, wait=True, open_files=None, keys=None, address=ADDRESS, **told) -> GatewayProcess:
        folder = tmp_path_factory.mktemp("gateway")
        ports = dict(zip(("http", "registry", "metrics"), free_ports(3), strict=True)) | (ports or {})
        launch = gateway_launch(
            checkpoint,
            ports,
            kv_digest=KV_DIGEST,
            model__name="org/tiny",
            limits__max_requests=MAX_REQUESTS,
            limits__max_request_tokens=MAX_REQUEST_TOKENS,
            limits__max_batch_tokens=256,
            limits__kv_tokens=4096,
            **{"max_queued_requests": MAX_QUEUED_REQUESTS, "stall_timeout_s": STALL_TIMEOUT_S} | told,
        )
        launch_file = folder / "gateway.launch.json"
        launch_file.write_text(json.dumps(launch))
        log_file = folder / "log"
        environment = os.environ | {"PYTHONPATH": str(Path(runtime.__file__).parents[1])}
        words = ["--launch", launch_file, "--address", address]
        if keys is not None:
            (folder / "keys.json").write_text(json.dumps(keys))
            words += ["--keys", folder / "keys.json"]
        limits = ["prlimit", f"--nofile={open_files}"] if open_files else []
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                [*limits, sys.executable, "-m", "runtime", "gateway", *words],
                stderr=log,
                stdout=log,
                env=environment,
            )
        gateway = GatewayProcess(process, ports, launch_file, log_file, address)
        started.append(gateway)
        if wait:
            wait_for(lambda: answers(gateway), f"the gateway answers; its log: {gateway.log()}")
        return gateway

    yield start
    for gateway in started:
        if gateway.process.poll() is None:
            gateway.process.kill()
            gateway.process.wait()


def answers(gateway):
    try:
        return gateway.get("/health")[0] == 200
    except OSError:
        return False


@pytest.fixture(scope="session")
def gateway(start_gateway):
    """Return one gateway for all tests. Each test brings its own units."""
    return start_gateway()


@pytest.fixture
def client(gateway):
    base_url = f"http://{ADDRESS}:{gateway.ports['http']}/v1"
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=PATIENCE_S) as client:
        yield client


@pytest.fixture(scope="session")
def loop():
    """Return an event loop in a thread, for the fake ranks."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


class FakeRank:
    """A rank that sends what the test tells it to. `heard` has the gateway's messages, `expected` the announced KV."""

    def __init__(self, loop, port, hello: Hello, source: str):
        self.hello = hello
        self.heard: queue.Queue[FromGateway] = queue.Queue()
        self.expected: queue.Queue[Expect] = queue.Queue()
        self.on_prefill = self.on_embed = None
        self._loop = loop
        self._reader, self._writer = self._run(asyncio.open_connection(ADDRESS, port, local_addr=(source, 0)))
        self._listening = asyncio.run_coroutine_threadsafe(self._listen(), loop)
        self.say(hello)

    def say(self, message):
        self.write(encode_frame(message))

    def write(self, data: bytes):
        self._loop.call_soon_threadsafe(self._writer.write, data)

    def hear(self) -> FromGateway:
        return self.heard.get(timeout=PATIENCE_S)

    def leave(self):
        self._loop.call_soon_threadsafe(self._writer.close)

    def is_closed_by_gateway(self):
        return self._listening.done()

    async def _listen(self):
        frames = FrameReader(self._reader, FromGateway)
        while (frame := await frames.read()) is not None:
            if isinstance(frame[0], Ping):
                self.say(Pong())
                continue
            (self.expected if isinstance(frame[0], Expect) else self.heard).put(frame[0])
            answer = {Prefill: self.on_prefill, Embed: self.on_embed}.get(type(frame[0]))
            if answer is not None:
                asyncio.ensure_future(answer(frame[0]))  # noqa: RUF006  # the loop outlives every test

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)


class FakePair:
    """A prefill unit and a decode unit of one rank each.

    With `reply` (token ids, the last one being the stop id or the last of max_tokens) they answer every prompt: the
    first token from the prefill rank, the others from the decode rank, the last not before `last_may_come` is set.
    Each token's logprob is `LOGPROB`, and the likeliest are the ids from 0 on. The prefill rank finds as many tokens of
    each prompt in its cache as `hits` says next.
    """

    def __init__(self, prefill: FakeRank, decode: FakeRank):
        self.prefill, self.decode = prefill, decode
        self.reply = None
        self.hits = iter(())
        self.last_may_come = threading.Event()
        self.last_may_come.set()
        prefill.on_prefill = self._answer

    async def _answer(self, prompt: Prefill):
        if num_hits := next(self.hits, 0):
            self.prefill.say(PrefixHit(prompt.request_id, num_hits))
        for index, token_id in list(enumerate(self.reply or ()))[len(prompt.generated) :]:
            is_last = index == len(self.reply) - 1
            if is_last:
                await asyncio.to_thread(self.last_may_come.wait, PATIENCE_S)
            finish_reason = None if not is_last else "stop" if token_id in prompt.sampling.stop_ids else "length"
            best = [(other, LOGPROB - other) for other in range(prompt.sampling.num_logprobs or 0)]
            logprobs = None if prompt.sampling.num_logprobs is None else Logprobs(LOGPROB, best)
            speaker = self.prefill if index == 0 else self.decode
            speaker.say(Token(prompt.request_id, index, token_id, finish_reason, logprobs))


unit_numbers = itertools.count()


@pytest.fixture
def join(gateway, loop):
    """Makes fake ranks that join the gateway, or another one `at`; all leave when the test is over.

    `source` is the address that one calls from.
    """
    joined = []

    def join(at=gateway, source=ADDRESS, **hello) -> FakeRank:
        phase = hello.get("phase", "prefill")
        kv = {"kv_host": "10.0.0.9", "kv_port": 29600} if phase == "decode" else {"kv_host": None, "kv_port": None}
        defaults = {
            "unit": f"{phase}-{next(unit_numbers)}",
            "phase": phase,
            "rank": 0,
            "num_ranks": 1,
            "node": "node-0",
            "pid": 4711,
            "unit_digest": UNIT_DIGEST,
            "kv_digest": KV_DIGEST,
        }
        rank = FakeRank(loop, at.ports["registry"], Hello(**(defaults | kv | hello)), source)
        joined.append(rank)
        return rank

    yield join
    for rank in joined:
        rank.leave()
    wait_for(lambda: is_all_lost(gateway), "every fake rank is lost")


def is_all_lost(gateway):
    return all(rank["state"] == "lost" for unit in gateway.ready_report()["units"] for rank in unit["ranks"])


@pytest.fixture
def pair(gateway, join):
    """Return a ready prefill and a ready decode unit."""
    ranks = [join(phase=phase) for phase in ("prefill", "decode")]
    for rank in ranks:
        rank.say(State("ready"))
    wait_for(lambda: gateway.ready_report()["ready"], "the pair is ready")
    return FakePair(*ranks)


@pytest.fixture
def wait_until():
    return wait_for
